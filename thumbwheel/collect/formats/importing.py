"""Import a file into a store: in batches, each row once, bad rows to a reject file, every row accounted for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from thumbwheel.collect.formats.base import Made
from thumbwheel.collect.formats.reading import Good, Reading, Reject, read
from thumbwheel.collect.redact import Redactor
from thumbwheel.errors import DataError, StoreError, ThumbwheelError
from thumbwheel.records import Feedback, Origin, Role, Step

BATCH = 256
_RAW_KEPT = 1_000_000


class Written(Protocol):
    """What a store says it did with a write: ids it stored now. Ids it had before are no error."""

    @property
    def inserted(self) -> Collection[str]:
        """Ids that were new."""
        ...


@dataclass
class ImportResult:
    """What an import did. `read = imported + duplicate + rejected`, always.

    `format`, `why`, `container`: what the file was found to be. `reasons` counts rejects; `unused` counts, by column, rows
    whose value no record took up; `broken` is why the file could not be read to its end, or None; `redacted` counts
    personal details taken out. A row is a duplicate where each of its records was stored before.
    """

    format: str
    why: str
    container: str
    read: int = 0
    imported: int = 0
    duplicate: int = 0
    rejected: int = 0
    steps: int = 0
    feedback: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    rejects: Path | None = None
    broken: str | None = None

    def line(self) -> str:
        """What was found and done, for people."""
        parts = [
            f"detected: {self.format} in {self.container}, because {self.why}",
            f"read {self.read} = imported {self.imported} + duplicate {self.duplicate} + rejected {self.rejected}",
        ]
        if self.reasons:
            parts.append("rejected: " + ", ".join(f"{reason} {n}" for reason, n in self.reasons.most_common()))
        if self.rejects:
            parts.append(f"rejected rows are in {self.rejects}")
        if self.unused:
            parts.append("columns not used: " + ", ".join(sorted(self.unused)))
        if self.redacted:
            parts.append("redacted: " + ", ".join(f"{name} {n}" for name, n in sorted(self.redacted.items())))
        if self.broken:
            parts.append(f"the file could not be read to its end: {self.broken}")
        return "\n".join(parts)


def import_file(
    path: str | Path,
    add_steps: Callable[[Sequence[Step]], Written],
    add_feedback: Callable[[Sequence[Feedback]], Written],
    *,
    format: str | None = None,
    container: str | None = None,
    reject_path: str | Path | None = None,
    now: datetime,
    progress: Callable[[ImportResult, float], None] | None = None,
    redactor: Redactor | None = None,
    origin: Origin = "person",
    role: Role = "end_user",
    max_row_bytes: int = 64 << 20,
) -> ImportResult:
    """Import a file. Memory does not grow with the file.

    `add_steps` and `add_feedback` write durably and say which ids were new; ids known before must not raise (a store's
    `submit_steps(...).result()` does that). Steps go first, so feedback finds its target. Rejected rows go to
    `reject_path` as JSON lines of {line, reason, raw}; the file is there only where a row was rejected. `progress` is
    called after each batch with the result so far and the share of the file read.

    An error of the store passes through with a note; what was imported stays, and importing again goes on from there.
    Raises as `read`; DataError where `reject_path` is the file itself; StoreError where the reject file cannot be written.
    """
    path = Path(path)
    rejects = _Rejects(path, Path(reject_path) if reject_path is not None else None)
    with read(
        path, format=format, container=container, now=now, origin=origin, role=role, max_row_bytes=max_row_bytes
    ) as reading:
        result = ImportResult(reading.format.name, reading.why, reading.container)
        rejects.clear()
        try:
            _import(reading, add_steps, add_feedback, result, rejects, progress, redactor)
        except ThumbwheelError as error:
            error.add_note(
                f"{result.imported} rows of '{path}' were imported before this. "
                "Import the file again to go on: rows that are stored already count as duplicates."
            )
            raise
        finally:
            rejects.close()
        result.unused = reading.unused
    result.rejects = rejects.path if result.rejected else None
    result.redacted = redactor.counts if redactor is not None else Counter()
    return result


def _import(
    reading: Reading,
    add_steps: Callable[[Sequence[Step]], Written],
    add_feedback: Callable[[Sequence[Feedback]], Written],
    result: ImportResult,
    rejects: _Rejects,
    progress: Callable[[ImportResult, float], None] | None,
    redactor: Redactor | None,
) -> None:
    batch: dict[str, Made] = {}
    waiting = 0

    def flush() -> None:
        nonlocal waiting
        rows = [_redacted(made, redactor) for made in batch.values()]
        new = set(add_steps([step for made in rows for step in made.steps]).inserted) if rows else set()
        new |= set(add_feedback([item for made in rows for item in made.feedback]).inserted) if rows else set()
        for made in rows:
            steps, said = (sum(record.id in new for record in some) for some in (made.steps, made.feedback))
            result.steps += steps
            result.feedback += said
            result.imported += bool(steps or said)
            result.duplicate += not (steps or said)
        result.duplicate += waiting
        result.read = result.imported + result.duplicate + result.rejected
        waiting = 0
        batch.clear()
        if progress is not None:
            progress(result, reading.share_read)

    for row in reading:
        if isinstance(row, Good):
            if row.made.id in batch:
                waiting += 1
            batch.setdefault(row.made.id, row.made)
        else:
            rejects.add(row)
            result.rejected += 1
            result.reasons[row.reason] += 1
            result.broken = row.detail if row.broken else result.broken
        if len(batch) >= BATCH:
            flush()
    flush()


def _redacted(made: Made, redactor: Redactor | None) -> Made:
    """The row's records with personal details taken out; the ids stay those of the original content."""
    if redactor is None:
        return made
    steps = tuple(redactor.step(step) for step in made.steps)
    return Made(made.id, steps, tuple(redactor.feedback(item) for item in made.feedback))


class _Rejects:
    """The reject file, opened with the first reject."""

    def __init__(self, source: Path, path: Path | None) -> None:
        self.path = path
        self._file: IO[str] | None = None
        if path is not None and path.exists() and source.exists() and path.samefile(source):
            raise DataError("The reject file must be another file than the one imported.")

    def clear(self) -> None:
        """Remove what an earlier import left."""
        with suppress(FileNotFoundError):
            if self.path is not None:
                self.path.unlink()

    def add(self, reject: Reject) -> None:
        """Write one row. Raises StoreError."""
        if self.path is None:
            return
        raw = reject.raw if len(reject.raw) <= _RAW_KEPT else reject.raw[:_RAW_KEPT] + " …"
        try:
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(json.dumps({"line": reject.line, "reason": reject.detail, "raw": raw}) + "\n")
        except OSError as error:
            raise StoreError(f"The reject file '{self.path}' cannot be written: {error.strerror}.") from None

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
