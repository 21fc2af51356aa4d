"""One row as it stands in a file, before a format has looked at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawRow:
    """`line` counts from 1: the line a row begins on; in Parquet the row. `raw` is its text, as far as there is any.

    `value` is None where `problem` says why it could not be read. `broken`: rows after this one could not be
    read, to the end of the file or of its row group.
    """

    line: int
    raw: str
    value: dict[str, Any] | None
    problem: str | None = None
    broken: bool = False
