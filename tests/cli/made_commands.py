"""What the tests of the command line share: a command's type, and files of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Run = Callable[..., "Said"]

PAIRS = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"It is {n + 2}, I think"} for n in range(24)]


@dataclass(frozen=True)
class Said:
    """What one command said."""

    status: int
    out: str
    err: str


def lines(path: Path, *rows: Any) -> Path:
    """A file of JSON lines; text is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def rows_in(path: Path) -> list[Any]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
