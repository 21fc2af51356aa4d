"""Versions of policies and reward models: candidate, live, retired or held; promotion and rollback.

Releases form a stack: a promotion puts a version on top, a rollback takes the top off. At most one version of a kind is
live, which the database itself enforces. Every function runs inside the caller's transaction.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from thumbwheel.errors import ConflictError, NotFound, RecordError, explain
from thumbwheel.stores.base import PolicyVersion
from thumbwheel.stores.lineage import require
from thumbwheel.stores.tables import micros, releases, reports, time_of, updates, versions

STATUSES: Final = ("candidate", "live", "retired", "held")


def version_of(row: Any) -> PolicyVersion:
    """The version of a table row."""
    return PolicyVersion(
        id=row.id,
        kind=row.kind,
        parent=row.parent,
        checkpoint=row.checkpoint,
        status=row.status,
        update_id=row.update_id,
        report_id=row.report_id,
        at=time_of(row.at_us),
    )


def add(connection: Connection, version: PolicyVersion) -> None:
    """Register a version; the same one again changes nothing, whatever its status and report have become since.

    Raises RecordError for an unknown status, NotFound for an unknown update or report, ConflictError for an id that
    stands for another version.
    """
    if version.status not in STATUSES:
        raise RecordError(
            explain("The status of a version is not known.", allowed=", ".join(STATUSES), got=version.status),
            field="status",
        )
    at_us = micros(version.at)
    row = connection.execute(select(versions).where(versions.c.id == version.id)).first()
    if row is not None:
        stored = version_of(row)
        same = ("kind", "parent", "checkpoint", "update_id", "at")
        different = [name for name in same if getattr(stored, name) != getattr(version, name)]
        if different:
            raise ConflictError(
                f"The version '{version.id}' is registered already with another {different[0]}. Choose another id."
            )
        return
    if version.update_id is not None:
        require(connection, updates, version.update_id, "update")
    if version.report_id is not None:
        require(connection, reports, version.report_id, "report")
    status = "candidate" if version.status == "live" else version.status
    connection.execute(
        insert(versions).values(
            id=version.id,
            kind=version.kind,
            parent=version.parent,
            checkpoint=version.checkpoint,
            status=status,
            update_id=version.update_id,
            report_id=version.report_id,
            at_us=at_us,
        )
    )
    if version.status == "live":
        promote(connection, version.id, now=version.at, report_id=None)


def one(connection: Connection, id: str) -> PolicyVersion:
    """The version of that id. Raises NotFound."""
    row = connection.execute(select(versions).where(versions.c.id == id)).first()
    if row is None:
        raise NotFound(f"There is no version '{id}'. `versions()` lists what there is.")
    return version_of(row)


def all_of(connection: Connection, kind: str) -> list[PolicyVersion]:
    """Versions of a kind, newest last."""
    rows = connection.execute(select(versions).where(versions.c.kind == kind).order_by(versions.c.seq))
    return [version_of(row) for row in rows]


def live(connection: Connection, kind: str) -> PolicyVersion | None:
    """The version now serving."""
    row = connection.execute(select(versions).where(versions.c.kind == kind, versions.c.status == "live")).first()
    return None if row is None else version_of(row)


def promote(connection: Connection, id: str, *, now: datetime, report_id: str | None) -> PolicyVersion:
    """Make a version live and retire the one before. A version that is live already stays so. Raises NotFound."""
    version = one(connection, id)
    _note_report(connection, id, report_id)
    if version.status != "live":
        _make_live(connection, version)
        connection.execute(insert(releases).values(kind=version.kind, version=id, at_us=micros(now)))
    return one(connection, id)


def hold(connection: Connection, id: str, *, report_id: str | None) -> PolicyVersion:
    """Mark a version as held back. Raises NotFound; ConflictError where it is the one now serving."""
    if one(connection, id).status == "live":
        raise ConflictError(
            f"The version '{id}' is live and cannot be held back. Roll back, or promote another one first."
        )
    _note_report(connection, id, report_id)
    connection.execute(update(versions).where(versions.c.id == id).values(status="held"))
    return one(connection, id)


def rollback(connection: Connection, kind: str, *, now: datetime) -> PolicyVersion:
    """Take back the newest release: the one before serves again. Raises NotFound where there is none before."""
    stack = connection.execute(
        select(releases)
        .where(releases.c.kind == kind, releases.c.undone_us.is_(None))
        .order_by(releases.c.seq.desc())
        .limit(2)
    ).all()
    if len(stack) < 2:
        raise NotFound(f"There is no {kind} version to roll back to: fewer than two releases stand.")
    present, before = stack
    connection.execute(update(releases).where(releases.c.seq == present.seq).values(undone_us=micros(now)))
    _make_live(connection, one(connection, before.version))
    return one(connection, before.version)


def _make_live(connection: Connection, version: PolicyVersion) -> None:
    is_live = (versions.c.kind == version.kind) & (versions.c.status == "live")
    connection.execute(update(versions).where(is_live).values(status="retired"))
    connection.execute(update(versions).where(versions.c.id == version.id).values(status="live"))


def _note_report(connection: Connection, id: str, report_id: str | None) -> None:
    if report_id is not None:
        require(connection, reports, report_id, "report")
        connection.execute(update(versions).where(versions.c.id == id).values(report_id=report_id))
