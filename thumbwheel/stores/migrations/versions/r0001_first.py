"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NAME = sa.String(200)
DIGEST = sa.String(64)


def upgrade() -> None:
    """From nothing to the first schema."""
    _records()
    _lineage()
    _versions()


def _records() -> None:
    op.create_table(
        "steps",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("episode_id", NAME, nullable=False),
        sa.Column("task_id", NAME, nullable=False),
        sa.Column("opens", sa.Boolean, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_steps"),
        sa.UniqueConstraint("id", name="uq_steps_id"),
    )
    op.create_index("ix_steps_episode_id", "steps", ["episode_id"])
    op.create_index("ix_steps_task_id", "steps", ["task_id"])
    _partial_index("ix_steps_opens", "steps", "seq", sa.column("opens", sa.Boolean).is_(True))
    op.create_table(
        "feedback",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("target_key", sa.String(210), nullable=False),
        sa.Column("who", NAME),
        sa.Column("received_us", sa.BigInteger, nullable=False),
        sa.Column("supersedes", NAME),
        sa.Column("retracts", sa.Boolean, nullable=False),
        sa.Column("waiting", sa.Boolean, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_feedback"),
        sa.UniqueConstraint("id", name="uq_feedback_id"),
    )
    op.create_index("ix_feedback_target_key", "feedback", ["target_key"])
    op.create_index("ix_feedback_who", "feedback", ["who"])
    _partial_index("ix_feedback_waiting", "feedback", "target_key", sa.column("waiting", sa.Boolean).is_(True))
    _partial_index("ix_feedback_supersedes", "feedback", "supersedes", sa.column("supersedes", NAME).is_not(None))


def _lineage() -> None:
    op.create_table(
        "erased",
        sa.Column("feedback_id", NAME, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("feedback_id", name="pk_erased"),
    )
    op.create_table(
        "snapshots",
        sa.Column("hash", NAME, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("erased_us", sa.BigInteger),
        sa.Column("replaced_by", NAME),
        sa.PrimaryKeyConstraint("hash", name="pk_snapshots"),
        sa.ForeignKeyConstraint(["replaced_by"], ["snapshots.hash"], name="fk_snapshots_replaced_by"),
    )
    op.create_table(
        "snapshot_feedback",
        sa.Column("snapshot", NAME, nullable=False),
        sa.Column("feedback_id", NAME, nullable=False),
        sa.PrimaryKeyConstraint("snapshot", "feedback_id", name="pk_snapshot_feedback"),
        sa.ForeignKeyConstraint(["snapshot"], ["snapshots.hash"], name="fk_snapshot_feedback_snapshot"),
    )
    op.create_index("ix_snapshot_feedback_feedback_id", "snapshot_feedback", ["feedback_id"])
    op.create_table(
        "updates",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("parent", NAME),
        sa.Column("snapshot", NAME, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_updates"),
        sa.UniqueConstraint("id", name="uq_updates_id"),
        sa.ForeignKeyConstraint(["snapshot"], ["snapshots.hash"], name="fk_updates_snapshot"),
    )
    op.create_index("ix_updates_parent", "updates", ["parent"])
    op.create_index("ix_updates_snapshot", "updates", ["snapshot"])
    op.create_table(
        "update_feedback",
        sa.Column("update_id", NAME, nullable=False),
        sa.Column("feedback_id", NAME, nullable=False),
        sa.PrimaryKeyConstraint("update_id", "feedback_id", name="pk_update_feedback"),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name="fk_update_feedback_update_id"),
    )
    op.create_index("ix_update_feedback_feedback_id", "update_feedback", ["feedback_id"])
    op.create_table(
        "reports",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("policy", NAME, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_reports"),
        sa.UniqueConstraint("id", name="uq_reports_id"),
    )
    op.create_index("ix_reports_policy", "reports", ["policy"])


def _versions() -> None:
    op.create_table(
        "versions",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("id", NAME, nullable=False),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("parent", NAME),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("update_id", NAME),
        sa.Column("report_id", NAME),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_versions"),
        sa.UniqueConstraint("id", name="uq_versions_id"),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name="fk_versions_update_id"),
        sa.ForeignKeyConstraint(["report_id"], ["reports.id"], name="fk_versions_report_id"),
    )
    is_live = sa.column("status", sa.String(20)) == sa.literal_column("'live'")
    _partial_index("uq_versions_live", "versions", "kind", is_live, unique=True)
    op.create_table(
        "releases",
        sa.Column("seq", SEQ, nullable=False),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("version", NAME, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("undone_us", sa.BigInteger),
        sa.PrimaryKeyConstraint("seq", name="pk_releases"),
        sa.ForeignKeyConstraint(["version"], ["versions.id"], name="fk_releases_version"),
    )
    op.create_index("ix_releases_kind", "releases", ["kind"])


def _partial_index(name: str, table: str, column: str, where: sa.ColumnElement[bool], *, unique: bool = False) -> None:
    op.create_index(name, table, [column], unique=unique, sqlite_where=where, postgresql_where=where)
