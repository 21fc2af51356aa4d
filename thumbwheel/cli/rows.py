"""Training rows straight from a file, without a store: what `thumbwheel train` and `thumbwheel inspect` read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thumbwheel.cli.app import now, say
from thumbwheel.collect.formats import Good, read
from thumbwheel.collect.formats.containers import open_rows
from thumbwheel.collect.formats.raw import RawRow
from thumbwheel.collect.join import join
from thumbwheel.collect.noise import NoiseFilter
from thumbwheel.config import Settings
from thumbwheel.errors import DataError, NotFound
from thumbwheel.grouped import Grouped
from thumbwheel.records import Feedback, Message, Prompt, Step
from thumbwheel.signals.prompts import prompt_key
from thumbwheel.signals.views import views

SHOWN = 3  # bad rows that are told one by one


def prompts_of(file: Path) -> list[Prompt]:
    """Every prompt of a file, once: of any format that can be imported, or of a .txt with a prompt a line.

    Raises DataError where there is none, NotFound for a missing file.
    """
    if file.suffix == ".txt":
        if not file.is_file():
            raise NotFound(f"There is no file '{file}'. Name one with a prompt a line.")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"'{file}' cannot be read as UTF-8 text: {error}.") from error
        lines = [line.strip() for line in text.splitlines()]
        found: list[Prompt] = [(Message(role="user", content=line),) for line in lines if line]
    else:
        steps, _, _ = _read(file)
        found = [step.state for step in steps]
    unique = list({prompt_key(prompt): prompt for prompt in found}.values())
    twice = len(found) - len(unique)
    say(f"{file}: {len(unique)} prompts" + (f", {twice} more were there already" if twice else ""))
    if not unique:
        raise DataError(
            f"'{file}' holds no prompt. Give a .txt with a prompt a line, or a file that `thumbwheel import` reads."
        )
    return unique


def rows_of(file: Path, view: str, settings: Settings) -> list[Any]:
    """The rows of one view that the file's feedback makes. Raises DataError where there is none."""
    steps, feedback, rejected = _read(file)
    # The same row twice is the same id twice: it counts once, as in the store.
    unique = {step.id: step for step in steps}, {one.id: one for one in feedback}
    quiet = NoiseFilter(settings.feedback)
    episodes = quiet(join(unique[0].values(), unique[1].values()).episodes)
    found = views.get(view)(episodes, settings.feedback)
    say(f"noise: {quiet.line()}")
    say(f"{view}: {found.account.line()}" + (f"; {rejected} rows could not be read" if rejected else ""))
    found.account.check(settings.feedback.max_dropped_share)
    if not found.rows:
        raise DataError(
            f"'{file}' holds nothing that makes {view}. `thumbwheel import --help` names the formats; "
            "a file of demonstrations trains sft, one of pairs trains dpo and reward, one of labels trains dpo with kto."
        )
    return found.rows


def groups_of(file: Path) -> list[Grouped]:
    """The groups that `thumbwheel export groups FILE` wrote. Raises DataError where no row is one, NotFound."""
    found: list[Grouped] = []
    wrong = 0
    container = open_rows(file)
    with closing(container):
        for row in container.rows:
            try:
                found.append(_group(row))
            except DataError as error:
                wrong += 1
                if wrong <= SHOWN:
                    say(f"line {row.line}: {error}")
    say(f"{file}: {len(found)} groups" + (f"; {wrong} rows could not be read" if wrong else ""))
    if not found:
        raise DataError(
            f"'{file}' holds no group of answers that people picked from. Make one with: thumbwheel export groups picks.jsonl"
        )
    return found


def _group(row: RawRow) -> Grouped:
    """Raises DataError with what is wrong with the row."""
    if row.value is None:
        raise DataError(row.problem or "no row")
    record = row.value.get("record")
    try:
        return Grouped.model_validate_json(record) if isinstance(record, str) else Grouped.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"no group: {'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}") from None


def _read(file: Path) -> tuple[list[Step], list[Feedback], int]:
    """Steps, feedback, and how many rows could not be read; the first of those are told."""
    steps: list[Step] = []
    feedback: list[Feedback] = []
    rejected = 0
    with read(file, now=now()) as reading:
        for row in reading:
            if isinstance(row, Good):
                steps.extend(row.made.steps)
                feedback.extend(row.made.feedback)
            else:
                rejected += 1
                if rejected <= SHOWN:
                    say(f"line {row.line}: {row.detail}")
        say(f"{file}: {reading.format.name} in {reading.container}, because {reading.why}")
    return steps, feedback, rejected
