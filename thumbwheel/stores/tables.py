"""The tables, as one metadata object that the migrations must arrive at.

Each record is kept whole as canonical JSON (`record`) with its digest; beside it stand only the columns that are searched
or joined on. Times are integers: microseconds since 1970 in UTC, which sort alike on every database. `seq` is the order
of arrival. A feedback's `target_key` is the most specific thing its target names ("step:…", else "episode:…", else
"task:…"): joining by it needs no column that must be filled in later, so the order of arrival cannot matter.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from thumbwheel.errors import RecordError, explain

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Seq = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts by itself only in an INTEGER primary key
Name = String(200)
Digest = String(64)

steps = Table(
    "steps",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("id", Name, nullable=False, unique=True),
    Column("digest", Digest, nullable=False),
    Column("episode_id", Name, nullable=False, index=True),
    Column("task_id", Name, nullable=False, index=True),
    Column("opens", Boolean, nullable=False),  # the first step of its episode to arrive
    Column("at_us", BigInteger, nullable=False),
    Column("record", Text, nullable=False),
)
_opens = steps.c.opens.is_(True)
Index("ix_steps_opens", steps.c.seq, sqlite_where=_opens, postgresql_where=_opens)

feedback = Table(
    "feedback",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("id", Name, nullable=False, unique=True),
    Column("digest", Digest, nullable=False),
    Column("target_key", String(210), nullable=False, index=True),
    Column("who", Name, index=True),
    Column("received_us", BigInteger, nullable=False),
    Column("supersedes", Name),
    Column("retracts", Boolean, nullable=False),
    Column("waiting", Boolean, nullable=False),  # its target has not arrived
    Column("record", Text, nullable=False),  # without received_at, which is the store's
)
_waiting = feedback.c.waiting.is_(True)
_corrects = feedback.c.supersedes.is_not(None)
Index("ix_feedback_waiting", feedback.c.target_key, sqlite_where=_waiting, postgresql_where=_waiting)
Index("ix_feedback_supersedes", feedback.c.supersedes, sqlite_where=_corrects, postgresql_where=_corrects)

erased = Table(  # tombstones: what was erased may not come back by a replay
    "erased",
    metadata,
    Column("feedback_id", Name, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("hash", Name, primary_key=True),
    Column("path", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("erased_us", BigInteger),  # when a person's rows were taken out of it; the file is gone since
    Column("replaced_by", Name, ForeignKey("snapshots.hash")),  # what is left of it; null: nothing
)

snapshot_feedback = Table(
    "snapshot_feedback",
    metadata,
    Column("snapshot", Name, ForeignKey("snapshots.hash"), primary_key=True),
    Column("feedback_id", Name, primary_key=True, index=True),
)

updates = Table(
    "updates",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("id", Name, nullable=False, unique=True),
    Column("digest", Digest, nullable=False),
    Column("parent", Name, index=True),
    Column("snapshot", Name, ForeignKey("snapshots.hash"), nullable=False, index=True),
    Column("record", Text, nullable=False),
)

update_feedback = Table(
    "update_feedback",
    metadata,
    Column("update_id", Name, ForeignKey("updates.id"), primary_key=True),
    Column("feedback_id", Name, primary_key=True, index=True),
)

reports = Table(
    "reports",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("id", Name, nullable=False, unique=True),
    Column("digest", Digest, nullable=False),
    Column("policy", Name, nullable=False, index=True),
    Column("record", Text, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("id", Name, nullable=False, unique=True),
    Column("kind", Name, nullable=False),
    Column("parent", Name),
    Column("checkpoint", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("update_id", Name, ForeignKey("updates.id")),
    Column("report_id", Name, ForeignKey("reports.id")),
    Column("at_us", BigInteger, nullable=False),
)
_live = versions.c.status == "live"
Index("uq_versions_live", versions.c.kind, unique=True, sqlite_where=_live, postgresql_where=_live)

releases = Table(
    "releases",
    metadata,
    Column("seq", Seq, primary_key=True),
    Column("kind", Name, nullable=False, index=True),
    Column("version", Name, ForeignKey("versions.id"), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("undone_us", BigInteger),  # when a rollback took it back
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    """Microseconds since 1970 in UTC; exact. Raises RecordError for a time without zone."""
    if time.tzinfo is None:
        raise RecordError(explain("A time must carry a time zone.", allowed="datetime.now(UTC)", got=str(time)))
    return (time - _EPOCH) // timedelta(microseconds=1)


def hours_before(time: datetime, hours: float) -> int:
    """`micros` of so many hours before; what lies before all times a database can hold is the first of them."""
    if not math.isfinite(hours):
        raise RecordError(explain("A number of hours must be finite.", got=hours))
    return max(micros(time) - round(hours * 3.6e9), -(2**62))


def time_of(us: int) -> datetime:
    """The UTC time of `micros`."""
    return _EPOCH + timedelta(microseconds=us)
