"""The schema's version: checked on every opening (one small query), raised where it is behind.

Alembic is imported only where there is something to migrate, so that opening an up-to-date store stays fast.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, inspect, select, update

from thumbwheel.errors import StoreError, explain

VERSION_TABLE = "thumbwheel_schema"
REVISIONS = ("0001",)  # every schema this code knows, oldest first
HEAD = REVISIONS[-1]

_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32)))


def bring_up_to_date(read: Engine, write: Engine, where: str) -> None:
    """Migrate to `HEAD` where the schema is behind. Raises StoreError for a schema from a newer version of the code."""
    with read.connect() as connection:
        if _current(connection, where) == HEAD:
            return
    with write.begin() as connection:  # holds the write lock: of several processes that open, one migrates
        if _current(connection, where) != HEAD:
            _upgrade(connection)


def probe(connection: Connection) -> str:
    """The schema's version, after it was changed and changed back: a commit that has to reach the disk."""
    for value in (f"{HEAD}?", HEAD):  # one update to the same value would dirty no page
        connection.execute(update(_version).values(version_num=value))
    return HEAD


def _current(connection: Connection, where: str) -> str | None:
    """The schema's version, or `None` for an empty database."""
    tables = inspect(connection).get_table_names()
    version = connection.scalar(select(_version.c.version_num)) if VERSION_TABLE in tables else None
    if version is None and "steps" in tables:
        raise StoreError(
            f"'{where}' holds a table 'steps' that Thumbwheel did not make. Name another file or database for the store."
        )
    if version is not None and version not in REVISIONS:
        raise StoreError(
            explain(
                f"The store '{where}' was written by a newer Thumbwheel.",
                allowed=f"schema versions up to {HEAD}",
                got=version,
                next="Upgrade with: pip install --upgrade thumbwheel",
            )
        )
    return version


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "thumbwheel.stores:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
