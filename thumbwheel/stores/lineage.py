"""Lineage: feedback -> snapshot -> update -> report, and back from a person to the models that learned from them.

Every function runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy import update as change

from thumbwheel.errors import ConflictError, NotFound
from thumbwheel.records import Report, Update, canonical_json
from thumbwheel.stores.ingest import in_parts
from thumbwheel.stores.tables import (
    erased,
    feedback,
    micros,
    reports,
    snapshot_feedback,
    snapshots,
    update_feedback,
    updates,
    versions,
)


def require(connection: Connection, table: Table, id: str, noun: str) -> None:
    """Raises NotFound unless the table holds that id."""
    if connection.scalar(select(table.c.id).where(table.c.id == id)) is None:
        raise NotFound(f"There is no {noun} '{id}' in the store. Record the {noun} first.")


def add_snapshot(connection: Connection, hash: str, path: str, feedback_ids: Sequence[str], *, now: datetime) -> None:
    """Register a snapshot by its content. Again under another path: the file has moved, and the new path is kept.

    Raises ConflictError where it holds feedback that was erased in the meantime.
    """
    for part in in_parts(feedback_ids):
        gone = connection.scalar(select(erased.c.feedback_id).where(erased.c.feedback_id.in_(part)).limit(1))
        if gone is not None:
            raise ConflictError(
                f"The snapshot '{path}' holds the feedback '{gone}', which was erased on request in the meantime. "
                "Delete that file and write the snapshot again."
            )
    where = str(Path(path).resolve())
    if connection.scalar(select(snapshots.c.hash).where(snapshots.c.hash == hash)) is None:
        connection.execute(insert(snapshots).values(hash=hash, path=where, at_us=micros(now)))
    else:
        connection.execute(change(snapshots).where(snapshots.c.hash == hash).values(path=where))
    _link(connection, snapshot_feedback, "snapshot", hash, feedback_ids)


def add_update(connection: Connection, update: Update) -> None:
    """Register a weight change; the same one again changes nothing. Raises NotFound for an unknown snapshot; ConflictError."""
    if not _is_new(connection, updates, update.id, update.digest(), "update"):
        return
    if connection.scalar(select(snapshots.c.hash).where(snapshots.c.hash == update.snapshot)) is None:
        raise NotFound(
            f"The update '{update.id}' names the snapshot '{update.snapshot}', which the store does not know. "
            "Call record_snapshot first: without it nobody could say whose feedback the model learned from."
        )
    connection.execute(
        insert(updates).values(
            id=update.id,
            digest=update.digest(),
            parent=update.parent,
            snapshot=update.snapshot,
            record=canonical_json(update.model_dump(mode="json")),
        )
    )
    _link(connection, update_feedback, "update_id", update.id, update.feedback_ids)


def add_report(connection: Connection, report: Report) -> None:
    """Register a report; the same one again changes nothing. Raises ConflictError."""
    if _is_new(connection, reports, report.id, report.digest(), "report"):
        record = canonical_json(report.model_dump(mode="json"))
        values = {"id": report.id, "digest": report.digest(), "policy": report.policy, "record": record}
        connection.execute(insert(reports).values(**values))


def update_of(connection: Connection, id: str) -> Update | None:
    """The update of that id."""
    text = connection.scalar(select(updates.c.record).where(updates.c.id == id))
    return None if text is None else Update.model_validate_json(text)


def report_of(connection: Connection, id: str) -> Report | None:
    """The report of that id."""
    text = connection.scalar(select(reports.c.record).where(reports.c.id == id))
    return None if text is None else Report.model_validate_json(text)


def feedback_of_person(connection: Connection, who: str) -> list[str]:
    """Ids of everything a person said."""
    return list(connection.scalars(select(feedback.c.id).where(feedback.c.who == who).order_by(feedback.c.seq)))


def snapshots_with(connection: Connection, feedback_ids: Iterable[str]) -> list[str]:
    """Hashes of the snapshots that hold any of that feedback, oldest first; emptied ones included."""
    found: set[str] = set()
    for part in in_parts(feedback_ids):
        query = select(snapshot_feedback.c.snapshot).where(snapshot_feedback.c.feedback_id.in_(part))
        found.update(connection.scalars(query.distinct()))
    rows = [
        row
        for part in in_parts(found)
        for row in connection.execute(select(snapshots.c.hash, snapshots.c.at_us).where(snapshots.c.hash.in_(part)))
    ]
    return [row.hash for row in sorted(rows, key=lambda row: (row.at_us, row.hash))]


def learned(connection: Connection, feedback_ids: Iterable[str]) -> list[str]:
    """Ids of the updates whose data held any of that feedback, oldest first."""
    ids = list(feedback_ids)
    hashes = snapshots_with(connection, ids)
    found: dict[str, int] = {}
    for part in in_parts(hashes):
        found.update(_named(connection, updates.c.snapshot.in_(part)))
    for part in in_parts(ids):
        direct = select(update_feedback.c.update_id).where(update_feedback.c.feedback_id.in_(part))
        found.update(_named(connection, updates.c.id.in_(direct)))
    return sorted(found, key=found.__getitem__)


def with_descendants(connection: Connection, update_ids: Sequence[str]) -> list[str]:
    """The updates and every update that started from their weights, oldest first."""
    found: dict[str, int] = {}
    for part in in_parts(update_ids):
        found.update(_named(connection, updates.c.id.in_(part)))
    news = list(found)
    while news:
        names = list(news)  # a parent is named by its update or by the version that was registered for it
        for part in in_parts(news):
            names += connection.scalars(select(versions.c.id).where(versions.c.update_id.in_(part)))
        children: dict[str, int] = {}
        for part in in_parts(names):
            children.update(_named(connection, updates.c.parent.in_(part)))
        news = [id for id in children if id not in found]
        found.update(children)
    return sorted(found, key=found.__getitem__)


def _named(connection: Connection, condition: Any) -> dict[str, int]:
    return {row.id: row.seq for row in connection.execute(select(updates.c.id, updates.c.seq).where(condition))}


def _is_new(connection: Connection, table: Table, id: str, digest: str, noun: str) -> bool:
    stored = connection.scalar(select(table.c.digest).where(table.c.id == id))
    if stored is not None and stored != digest:
        raise ConflictError(f"The {noun} '{id}' is stored already with another content. Choose another id.")
    return stored is None


def _link(connection: Connection, table: Table, owner: str, id: str, feedback_ids: Sequence[str]) -> None:
    """Note which feedback a snapshot or an update holds; what is noted already is left alone."""
    known: set[str] = set()
    for part in in_parts(feedback_ids):
        query = select(table.c.feedback_id).where(table.c[owner] == id, table.c.feedback_id.in_(part))
        known.update(connection.scalars(query))
    rows = [{owner: id, "feedback_id": item} for item in dict.fromkeys(feedback_ids) if item not in known]
    if rows:
        connection.execute(insert(table), rows)
