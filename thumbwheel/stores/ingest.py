"""Steps and feedback into the tables: the same id twice is one row, another payload under it a conflict.

`prepare_*` turn records into rows (in the caller's thread); `apply` writes the rows of many callers in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import BindParameter, Column, Connection, Table, bindparam, insert, select, update

from thumbwheel.errors import RecordError
from thumbwheel.records import Feedback, Step, Target, canonical_json
from thumbwheel.stores.base import Receipt
from thumbwheel.stores.tables import erased, micros
from thumbwheel.stores.tables import feedback as feedback_table
from thumbwheel.stores.tables import steps as steps_table

T = TypeVar("T")
Row = dict[str, Any]
IN_LIST = 500  # values in one IN (…): far under every database's limit

# Statements are built once: building them anew costs more than running them.
_IDS: BindParameter[str] = bindparam("ids", expanding=True)
_INSERT = {table: insert(table) for table in (steps_table, feedback_table)}
_KNOWN = {table: select(table.c.id, table.c.digest).where(table.c.id.in_(_IDS)) for table in _INSERT}
_PRESENT = {
    column: select(column).where(column.in_(_IDS)).distinct()
    for column in (steps_table.c.id, steps_table.c.episode_id, steps_table.c.task_id, erased.c.feedback_id)
}
_END_WAITING = (
    update(feedback_table)
    .where(feedback_table.c.waiting.is_(True), feedback_table.c.target_key.in_(_IDS))
    .values(waiting=False)
)


@dataclass(frozen=True)
class Batch:
    """What one caller wants stored: rows of one table, in order."""

    table: Table
    rows: tuple[Row, ...]


@dataclass
class _Tally:
    inserted: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)

    def receipt(self) -> Receipt:
        return Receipt(tuple(self.inserted), tuple(self.duplicates), tuple(self.waiting), self.conflicts)


def prepare_steps(steps: Sequence[Step]) -> Batch:
    """Rows for `steps`. Raises RecordError for text that is no valid Unicode."""
    return Batch(steps_table, tuple(_step_row(step) for step in steps))


def prepare_feedback(feedback: Sequence[Feedback], *, now: datetime) -> Batch:
    """Rows for `feedback`, received `now`. Raises RecordError for text that is no valid Unicode or a time without zone."""
    received_us = micros(now)
    return Batch(feedback_table, tuple(_feedback_row(item, received_us) for item in feedback))


def target_key(target: Target) -> str:
    """The most specific thing the target names."""
    if target.step_id is not None:
        return f"step:{target.step_id}"
    if target.episode_id is not None:
        return f"episode:{target.episode_id}"
    return f"task:{target.task_id}"


def in_parts(values: Iterable[T], size: int = IN_LIST) -> Iterator[list[T]]:
    """`values` in lists of at most `size`."""
    source = iter(values)
    while part := list(islice(source, size)):
        yield part


def record_text(record: Step | Feedback) -> tuple[str, str]:
    """(canonical JSON, its SHA-256), which is the record's own digest; without the store's time stamp."""
    left_out = {"received_at"} if isinstance(record, Feedback) else None
    text = canonical_json(record.model_dump(mode="json", exclude=left_out))
    try:
        return text, hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError as error:
        raise RecordError(f"The record '{record.id}' holds a lone surrogate, which is no valid Unicode.") from error


def _step_row(step: Step) -> Row:
    text, digest = record_text(step)
    return {
        "id": step.id,
        "digest": digest,
        "episode_id": step.episode_id,
        "task_id": step.task_id,
        "opens": False,
        "at_us": micros(step.at),
        "record": text,
    }


def _feedback_row(item: Feedback, received_us: int) -> Row:
    text, digest = record_text(item)
    return {
        "id": item.id,
        "digest": digest,
        "target_key": target_key(item.target),
        "who": item.who,
        "received_us": received_us,
        "supersedes": item.supersedes,
        "retracts": item.retracts,
        "waiting": True,
        "record": text,
    }


def apply(connection: Connection, batches: Sequence[Batch]) -> list[Receipt]:
    """Write all batches; one receipt each. The transaction must hold the write lock: nobody writes in between."""
    tallies = [_Tally() for _ in batches]
    new_steps = _new_rows(connection, steps_table, batches, tallies)
    new_feedback = _new_rows(connection, feedback_table, batches, tallies)
    if new_steps:
        _mark_openings(connection, new_steps)
        connection.execute(_INSERT[steps_table], new_steps)
    if new_feedback:
        _mark_waiting(connection, new_feedback)
        connection.execute(_INSERT[feedback_table], new_feedback)
    if new_steps:
        _end_waiting(connection, new_steps)
    still_waiting = {row["id"] for row in new_feedback if row["waiting"]}
    for batch, tally in zip(batches, tallies, strict=True):
        if batch.table is feedback_table:
            tally.waiting = [id for id in tally.inserted if id in still_waiting]
    return [tally.receipt() for tally in tallies]


def _new_rows(connection: Connection, table: Table, batches: Sequence[Batch], tallies: Sequence[_Tally]) -> list[Row]:
    """Sort every row of one table into new, duplicate or conflict; the new ones, in order."""
    ids = {row["id"] for batch in batches if batch.table is table for row in batch.rows}
    known: dict[str, str] = {}
    for part in in_parts(ids):
        known.update({row.id: row.digest for row in connection.execute(_KNOWN[table], {"ids": part})})
    gone = _present(connection, erased.c.feedback_id, ids.difference(known)) if table is feedback_table else set()
    fresh: list[Row] = []
    for batch, tally in zip(batches, tallies, strict=True):
        for row in batch.rows if batch.table is table else ():
            id = row["id"]
            if id in gone:
                tally.conflicts[id] = f"The feedback '{id}' was erased on request and is not taken in again."
            elif id not in known:
                known[id] = row["digest"]
                fresh.append(dict(row))
                tally.inserted.append(id)
            elif known[id] == row["digest"] or _same_when_reread(connection, table, row):
                tally.duplicates.append(id)
            else:
                tally.conflicts[id] = _conflict(table, id)
    return fresh


def _conflict(table: Table, id: str) -> str:
    noun, more = ("step", "") if table is steps_table else ("feedback", " with 'supersedes'")
    return (
        f"The {noun} '{id}' is stored already with another content; the stored one is kept. "
        f"Send a correction under a new id{more}."
    )


def _same_when_reread(connection: Connection, table: Table, row: Row) -> bool:
    """Whether a stored record equals the new one when read by this version of the code.

    A later version may add a field with a default: the same payload then has another digest than the stored text.
    """
    stored = connection.scalar(select(table.c.record).where(table.c.id == row["id"]))
    if stored is None:
        return False
    model = Step if table is steps_table else Feedback
    digest: str = row["digest"]
    return record_text(model.model_validate_json(stored))[1] == digest


def _mark_openings(connection: Connection, rows: list[Row]) -> None:
    """`opens` is true on the first step of an episode to arrive."""
    known = _present(connection, steps_table.c.episode_id, {row["episode_id"] for row in rows})
    for row in rows:
        row["opens"] = row["episode_id"] not in known
        known.add(row["episode_id"])


def _mark_waiting(connection: Connection, rows: list[Row]) -> None:
    """`waiting` is false where the target is there already (steps of this transaction included)."""
    columns = {"step": steps_table.c.id, "episode": steps_table.c.episode_id, "task": steps_table.c.task_id}
    wanted: dict[str, set[str]] = {}
    for row in rows:
        kind, _, id = row["target_key"].partition(":")
        wanted.setdefault(kind, set()).add(id)
    present = {kind: _present(connection, columns[kind], ids) for kind, ids in wanted.items()}
    for row in rows:
        kind, _, id = row["target_key"].partition(":")
        row["waiting"] = id not in present[kind]


def _end_waiting(connection: Connection, rows: list[Row]) -> None:
    """Feedback that waited for one of these steps, its episode or its task waits no longer."""
    keys: dict[str, None] = {}
    for row in rows:
        keys |= {f"step:{row['id']}": None, f"episode:{row['episode_id']}": None, f"task:{row['task_id']}": None}
    for part in in_parts(keys):
        connection.execute(_END_WAITING, {"ids": part})


def _present(connection: Connection, column: Column[str], ids: set[str]) -> set[str]:
    """Those of `ids` that stand in the column."""
    found: set[str] = set()
    for part in in_parts(ids):
        found.update(connection.scalars(_PRESENT[column], {"ids": part}))
    return found
