"""Erasing a person: their rows, their rows in snapshots, and the bytes in the file.

Order: rows (with what is left of each snapshot written beside it), then the old snapshot files, then the bytes in free
pages and in the log. A crash in between loses nothing: running it again completes the work.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sqlalchemy import URL, Connection, delete, insert, select, update

from thumbwheel.stores import lineage, snapshots
from thumbwheel.stores.base import Erasure
from thumbwheel.stores.engine import scrub
from thumbwheel.stores.tables import erased, feedback, micros
from thumbwheel.stores.tables import snapshots as snapshots_table
from thumbwheel.stores.writer import Writer


def erase(writer: Writer, url: URL, who: str, *, now: datetime) -> Erasure:
    """Remove everything `who` said. When this returns, the text is in no table, snapshot, log or free page of the store.

    Ids of the erased feedback stay in the lineage, so that what learned from it can still be found, and as tombstones:
    the same feedback sent again is refused. Ids must therefore name nobody. What other tools made of a snapshot (exports,
    checkpoints) is not the store's to change: `models` says what to retrain, `missing` which files were not found.
    """
    erasure = writer.call(lambda it: _erase_rows(it, who, now=now))
    writer.call(_remove_files)
    writer.outside_transaction(lambda it: scrub(it, url))
    return erasure


def must_retrain(connection: Connection) -> list[str]:
    """Ids of the updates that learned from feedback erased since, and of their descendants; oldest first."""
    ids = list(connection.scalars(select(erased.c.feedback_id)))
    return lineage.with_descendants(connection, lineage.learned(connection, ids))


def _erase_rows(connection: Connection, who: str, *, now: datetime) -> Erasure:
    ids = lineage.feedback_of_person(connection, who)
    models = lineage.with_descendants(connection, lineage.learned(connection, ids))
    hashes: list[str] = []
    missing: list[str] = []
    for hash in lineage.snapshots_with(connection, ids):
        row = connection.execute(select(snapshots_table).where(snapshots_table.c.hash == hash)).one()
        if row.erased_us is None:
            hashes.append(hash)
            if not Path(row.path).exists():
                missing.append(row.path)
            _replace(connection, row.hash, Path(row.path), set(ids), now=now)
    if ids:
        connection.execute(delete(feedback).where(feedback.c.who == who))
        connection.execute(insert(erased), [{"feedback_id": id, "at_us": micros(now)} for id in ids])
    return Erasure(who, feedback=len(ids), snapshots=tuple(hashes), models=tuple(models), missing=tuple(missing))


def _replace(connection: Connection, hash: str, path: Path, ids: set[str], *, now: datetime) -> None:
    """Write what is left of a snapshot beside it, and note the old one as erased."""
    rest = snapshots.without(path, ids) if path.exists() else None
    if rest is not None:
        lineage.add_snapshot(connection, rest.hash, str(rest.path), rest.feedback_ids, now=now)
    values = {"erased_us": micros(now), "replaced_by": None if rest is None else rest.hash}
    connection.execute(update(snapshots_table).where(snapshots_table.c.hash == hash).values(**values))


def _remove_files(connection: Connection) -> None:
    """Remove the files of erased snapshots; those of an erasure that was cut short, too."""
    for path in connection.scalars(select(snapshots_table.c.path).where(snapshots_table.c.erased_us.is_not(None))):
        snapshots.remove(Path(path))
