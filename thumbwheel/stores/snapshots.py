"""Data set snapshots: immutable, content-addressed, memory-mapped Arrow files that keep the lineage of every row.

    snapshot = write(preferences, folder)       # folder/<hash>.arrow
    rows = read(snapshot.path)                  # a sequence; a row becomes a record when it is looked at

The hash is SHA-256 over the kind and each row's canonical JSON, in order. Order is content: it decides batches and
hold-outs, so the same rows in another order are another snapshot. File bytes are not hashed: another Arrow version may lay
the same rows out otherwise. Each row is kept as its JSON text, which comes back byte for byte (no schema is merged over
rows, so no null keys leak from one row into another), beside typed columns for reading without parsing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from thumbwheel.errors import DataError, NotFound, StoreError, explain
from thumbwheel.grouped import Grouped
from thumbwheel.records import (
    Demonstration,
    Labelled,
    Preference,
    ProcessLabelled,
    Record,
    Transition,
    canonical_json,
)
from thumbwheel.stores import files
from thumbwheel.stores.ingest import in_parts

KINDS: dict[str, type[Record]] = {
    "preference": Preference,
    "labelled": Labelled,
    "demonstration": Demonstration,
    "process_labelled": ProcessLabelled,
    "transition": Transition,
    "grouped": Grouped,
}
ROWS_PER_BATCH = 4096
FORMAT = b"1"

_COLUMNS = {  # fields that become typed columns, where the kind has them
    "task_id": pa.string(),
    "origin": pa.string(),
    "weight": pa.float64(),
    "p": pa.float64(),
    "margin": pa.float64(),
    "tie": pa.bool_(),
    "value": pa.float64(),
    "noise_rate": pa.float64(),
    "reward": pa.float64(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
    "episode_id": pa.string(),
    "index": pa.int64(),
}


@dataclass(frozen=True)
class Snapshot:
    """A file of `n` rows of one kind. `feedback_ids` are those in any row, each once, in order of appearance."""

    hash: str
    path: Path
    kind: str
    n: int
    feedback_ids: tuple[str, ...]


def write(records: Sequence[Record], folder: Path) -> Snapshot:
    """Write a snapshot into `folder`; the same rows again find their file there already.

    Raises DataError for no rows, rows of several kinds or of a kind that is no training view; StoreError where the file
    cannot be written (nothing is left behind).
    """
    kind = _kind_of(records)
    texts = [canonical_json(record.model_dump(mode="json")) for record in records]
    hash = _hash(kind, texts)
    path = folder / f"{hash}.arrow"
    found = tuple(dict.fromkeys(id for record in records for id in _feedback_ids(record)))
    snapshot = Snapshot(hash, path, kind, len(records), found)
    if not (path.exists() and _is_whole(path, hash)):
        _write(snapshot, records, texts)
    return snapshot


def read(path: str | Path) -> Rows:
    """The rows of a snapshot, mapped into memory. Raises NotFound; StoreError for a damaged file."""
    return Rows(Path(path))


def without(path: Path, feedback_ids: Collection[str]) -> Snapshot | None:
    """A new snapshot beside `path` of the rows that hold none of that feedback; `None` where no row is left."""
    rows = read(path)
    gone = set(feedback_ids)
    rest = [rows[i] for i in range(len(rows)) if gone.isdisjoint(rows.feedback_ids_of(i))]
    return write(rest, path.parent) if rest else None


def remove(path: Path) -> None:
    """Remove a snapshot's file, durably; one that is gone already is fine."""
    if path.exists():
        path.unlink()
        files.sync_folder(path.parent)


class Rows(Sequence[Record]):
    """Rows of a snapshot file. Opening reads the file's index only; `rows[i]` parses that row alone."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NotFound(
                f"There is no snapshot '{path}'. Look for it in the store's 'snapshots' folder, or write it again."
            )
        self.path = path
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            meta = reader.schema.metadata or {}
            self.kind: str = meta[b"thumbwheel.kind"].decode()
            self.hash: str = meta[b"thumbwheel.hash"].decode()
            self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            self._record = KINDS[self.kind]
        except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from error
        self._ends: list[int] = list(accumulate(batch.num_rows for batch in self._batches))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._record.model_validate_json(self.text(index))

    def __iter__(self) -> Iterator[Record]:
        for text in self._texts():
            yield self._record.model_validate_json(text)

    def text(self, index: int) -> str:
        """The canonical JSON of a row, as it was written."""
        return str(self._cell("record", index))

    def feedback_ids_of(self, index: int) -> tuple[str, ...]:
        """Ids of the feedback that a row came from."""
        return tuple(self._cell("feedback_ids", index))

    def feedback_ids(self) -> tuple[str, ...]:
        """Ids of the feedback in any row, each once, in order of appearance."""
        lists = (batch.column("feedback_ids").flatten().to_pylist() for batch in self._batches)
        return tuple(dict.fromkeys(id for ids in lists for id in ids))

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """A typed column, shape (n,). Unknown numbers are NaN, unknown names `None`. Raises NotFound."""
        columns: list[str] = self._batches[0].schema.names
        if name not in columns:
            raise NotFound(explain(f"A '{self.kind}' snapshot has no column '{name}'.", allowed=", ".join(columns)))
        return np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in self._batches])

    def verify(self) -> None:
        """Read every row and compare with the hash. Raises StoreError for a damaged file."""
        try:
            found = _hash(self.kind, self._texts())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(self.path, str(error)) from error
        if found != self.hash:
            raise _damaged(self.path, f"its rows hash to {found[:12]}…, not to {self.hash[:12]}…")

    def _texts(self) -> Iterator[str]:
        for batch in self._batches:
            column = batch.column("record")
            for i in range(batch.num_rows):
                yield column[i].as_py()

    def _cell(self, column: str, index: int) -> Any:
        n = len(self)
        at = index + n if index < 0 else index
        if not 0 <= at < n:
            raise IndexError(f"row {index} of a snapshot of {n} rows")
        batch = bisect_right(self._ends, at)
        start = self._ends[batch - 1] if batch else 0
        return self._batches[batch].column(column)[at - start].as_py()


def _kind_of(records: Sequence[Record]) -> str:
    if not records:
        raise DataError("A snapshot needs at least one row; none was given. Look at the account of what was dropped.")
    types = {type(record) for record in records}
    kind = next((name for name, type_ in KINDS.items() if types == {type_}), None)
    if kind is None:
        got = ", ".join(sorted(type_.__name__ for type_ in types))
        raise DataError(explain("A snapshot holds rows of one kind.", allowed=", ".join(KINDS), got=got))
    return kind


def _feedback_ids(record: Record) -> tuple[str, ...]:
    ids: tuple[str, ...] = getattr(record, "feedback_ids", ())
    return ids


def _hash(kind: str, texts: Iterable[str]) -> str:
    """SHA-256 over the kind and the rows, one a line: canonical JSON holds no raw line break, so lines are unambiguous."""
    digest = hashlib.sha256(kind.encode())
    for text in texts:
        digest.update(b"\n")
        digest.update(text.encode())
    return digest.hexdigest()


def _schema(kind: str, hash: str) -> pa.Schema:
    typed = [(name, type_) for name, type_ in _COLUMNS.items() if name in KINDS[kind].model_fields]
    fields = [("record", pa.large_string()), ("feedback_ids", pa.list_(pa.string())), *typed]
    about = {b"thumbwheel.format": FORMAT, b"thumbwheel.kind": kind.encode(), b"thumbwheel.hash": hash.encode()}
    return pa.schema(fields, metadata=about)


def _write(snapshot: Snapshot, records: Sequence[Record], texts: Sequence[str]) -> None:
    schema = _schema(snapshot.kind, snapshot.hash)
    partial = files.beside(snapshot.path)
    try:
        snapshot.path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as out:
            for places in in_parts(range(len(records)), ROWS_PER_BATCH):
                columns = {
                    name: [getattr(records[i], name) for i in places] for name in schema.names if name in _COLUMNS
                }
                columns["record"] = [texts[i] for i in places]
                columns["feedback_ids"] = [list(_feedback_ids(records[i])) for i in places]
                out.write_batch(pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema))
        partial.chmod(0o444)
        files.sync_file(partial)
        files.put_in_place(partial, snapshot.path)
    except OSError as error:
        raise StoreError(f"The snapshot '{snapshot.path}' cannot be written: {files.why(error)}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _is_whole(path: Path, hash: str) -> bool:
    try:
        rows = read(path)
        rows.verify()
    except StoreError:
        return False
    return rows.hash == hash


def _damaged(path: Path, said: str) -> StoreError:
    return StoreError(
        f"The snapshot '{path}' is damaged or is no snapshot: {said}. "
        "Delete the file and gather the data again: the store still has what it was made of."
    )
