"""Small files for the tests of formats, and a store that only remembers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.collect.formats import Good, ImportResult, Reject, import_file, read
from thumbwheel.collect.formats.base import Made
from thumbwheel.collect.join import join
from thumbwheel.records import Episode, Feedback, Step

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Receipt:
    inserted: tuple[str, ...]


@dataclass
class Memory:
    """Keeps each id once, as a store does: what comes again under a known id is no insert."""

    steps: dict[str, Step] = field(default_factory=dict)
    feedback: dict[str, Feedback] = field(default_factory=dict)
    largest: int = 0

    def add_steps(self, steps: Sequence[Step]) -> Receipt:
        return self._add(self.steps, steps)

    def add_feedback(self, feedback: Sequence[Feedback]) -> Receipt:
        assert all(item.target.step_id is None or item.target.step_id in self.steps for item in feedback)
        return self._add(self.feedback, feedback)

    def _add(self, table: dict[str, Any], records: Sequence[Any]) -> Receipt:
        self.largest = max(self.largest, len(records))
        new = {record.id: record for record in records if record.id not in table}
        table.update(new)
        return Receipt(tuple(new))

    def episodes(self) -> list[Episode]:
        joined = join(self.steps.values(), self.feedback.values())
        assert not joined.waiting
        return joined.episodes


def jsonl(path: Path, *rows: Any) -> Path:
    """JSON lines; a row that is text already stands as it is."""
    text = "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return path


def load(path: Path, **more: Any) -> tuple[Memory, ImportResult]:
    memory = Memory()
    result = import_file(path, memory.add_steps, memory.add_feedback, now=NOW, **more)
    assert result.read == result.imported + result.duplicate + result.rejected
    assert result.rejected == result.reasons.total()
    return memory, result


def rows_of(path: Path, **more: Any) -> tuple[list[Made], list[Reject]]:
    """What a file gives: good rows, and rejects."""
    with read(path, now=NOW, **more) as reading:
        found = list(reading)
    return [row.made for row in found if isinstance(row, Good)], [row for row in found if isinstance(row, Reject)]
