"""The stages of one round, each done once: kill it anywhere, start it again, and it goes on where it stopped.

A round is a folder. `round.json` names its inputs; each finished stage leaves `NAME.json`, written to a temporary file,
synced and renamed, so that a stage is either there whole or not at all.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from thumbwheel.errors import CheckpointError, NotFound, explain

Outcome = dict[str, Any]


class Announce(Protocol):
    """Told of each stage that begins, or is found done."""

    def __call__(self, name: str, *, done: bool) -> None: ...


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, allow_nan=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_json(path: Path) -> Outcome:
    """A stage's outcome. Raises CheckpointError where it cannot be read."""
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(f"There is no '{path}'.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"'{path}' cannot be read: {error}. Delete that one file to do the stage again."
        ) from None
    if not isinstance(outcome, dict):
        raise CheckpointError(f"'{path}' holds no object. Delete that one file to do the stage again.")
    return outcome


@dataclass(frozen=True)
class RoundFolder:
    """One round on disk."""

    path: Path
    announce: Announce

    @property
    def id(self) -> str:
        """The round's id is its folder's name."""
        return self.path.name

    def run(self, name: str, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of a stage: read back where it is done, else worked out and written, with the seconds it took."""
        path = self.path / f"{name}.json"
        done = path.exists()
        self.announce(name, done=done)
        if done:
            return read_json(path)
        began = time.monotonic()
        outcome = work()
        outcome["seconds"] = round(time.monotonic() - began, 2)
        write_json(path, outcome)
        return outcome


def open_round(folder: Path, *, inputs: Outcome, announce: Announce, fresh: bool = False) -> RoundFolder:
    """The unfinished round in `folder`, or a new one. `inputs` (settings, parent, seed) must be those it began with.

    Raises CheckpointError where an unfinished round was begun with other inputs, and `fresh` is not asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rounds = sorted(path for path in folder.iterdir() if (path / "round.json").exists())
    if rounds and not fresh and not (rounds[-1] / "decide.json").exists():
        last = rounds[-1]
        begun = read_json(last / "round.json")
        other = sorted(key for key in inputs if begun.get(key) != inputs[key])
        if other:
            raise CheckpointError(
                explain(
                    f"The unfinished round {last.name} was begun with another {' and '.join(other)}.",
                    allowed={key: begun.get(key) for key in other},
                    got={key: inputs[key] for key in other},
                    next="Go on with the old values, or start a new round with --new.",
                )
            )
        return RoundFolder(last, announce)
    path = folder / f"r{len(rounds) + 1:04d}"
    while path.exists():
        path = path.with_name(f"r{int(path.name[1:]) + 1:04d}")
    write_json(path / "round.json", inputs)
    return RoundFolder(path, announce)
