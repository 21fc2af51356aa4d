"""Training rows straight from a file, without a store: what `thumbwheel train` and `thumbwheel inspect` read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thumbwheel.cli.app import now, say
from thumbwheel.collect.formats import Good, read
from thumbwheel.collect.join import join
from thumbwheel.collect.noise import NoiseFilter
from thumbwheel.config import Settings
from thumbwheel.errors import DataError
from thumbwheel.records import Feedback, Step
from thumbwheel.signals.views import views


def rows_of(file: Path, view: str, settings: Settings) -> list[Any]:
    """The rows of one view that the file's feedback makes. Raises DataError where there is none."""
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
                if rejected <= 3:
                    say(f"line {row.line}: {row.detail}")
        say(f"{file}: {reading.format.name} in {reading.container}, because {reading.why}")
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
