"""Two engines on one database: one for reading, one whose transactions own the write lock from their first statement.

All that differs between SQLite and PostgreSQL is here: pragmas, and how the write lock is taken.
"""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError

from thumbwheel.errors import NotFound, SettingError, StoreError, explain
from thumbwheel.stores.failures import is_busy

READERS = 16  # reading connections kept; as many again under load
LOCK_WAIT_S = 30.0  # how long a write waits for another process
ADVISORY_LOCK = 0x7468756D  # "thum": PostgreSQL's writers queue on this number

_PRAGMAS = (
    "PRAGMA synchronous=FULL",  # a commit returns after the log is on disk
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",  # deleted text is overwritten with zeros
    "PRAGMA wal_autocheckpoint=10000",  # 40 MB: at 200 000 events the default (4 MB) writes four times the bytes an event
    "PRAGMA journal_size_limit=67108864",
)


def parsed(url: str) -> URL:
    """The URL with its driver filled in. Raises SettingError for what cannot be a store."""
    allowed = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        found = make_url(url)
    except ArgumentError:
        hint = f"For a file write 'sqlite:///{url}'." if url and "://" not in url else None
        raise SettingError(explain("The 'store.url' setting is no URL.", allowed=allowed, got=url, next=hint)) from None
    backend = found.get_backend_name()
    if backend == "sqlite":
        if found.database in (None, "", ":memory:") or "mode=memory" in url:
            raise SettingError(
                explain("A store must live in a file: memory survives no restart.", allowed=allowed, got=url)
            )
        return found.set(drivername="sqlite")
    if backend == "postgresql":
        return found.set(drivername="postgresql+psycopg")
    raise SettingError(
        explain("The 'store.url' setting names a database that is not supported.", allowed=allowed, got=url)
    )


def prepare_file(url: URL, *, create: bool) -> None:
    """For SQLite: the folder is there, and the file too unless it may be made. Raises NotFound or StoreError."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if path.is_dir():
        raise StoreError(f"The store '{path}' is a folder. Name a file inside it, such as '{path / 'thumbwheel.db'}'.")
    if not create and not path.exists():
        raise NotFound(f"There is no store '{path}'. Check the path, or open it with create=True to make a new one.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder '{path.parent}' of the store cannot be made: {error.strerror}.") from error


def reading(url: URL) -> Engine:
    """Engine whose transactions see one state of the database and cannot write."""
    engine = _engine(url, pool_size=READERS, max_overflow=READERS)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=ON"))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    else:
        event.listen(engine, "begin", _read_one_state)
    return engine


def writing(url: URL) -> Engine:
    """Engine whose transactions hold the database's write lock from their beginning: writers form one queue."""
    engine = _engine(url, pool_size=1, max_overflow=1)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=0"))
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA cache_size=-32000"))
        event.listen(engine, "begin", _begin_immediate)
    else:
        event.listen(engine, "begin", _lock_postgresql)
    return engine


def scrub(connection: Connection, url: URL) -> None:
    """Overwrite what deleted rows left behind in the files. The connection must be in autocommit.

    SQLite: pages that were merged or split may hold old copies of rows in their unused part; rewriting the file drops
    them, and an emptied log drops the log's copies. PostgreSQL: dead rows are removed. Raises StoreError where readers
    of another process keep the log from being emptied.
    """
    if url.get_backend_name() != "sqlite":
        connection.exec_driver_sql("VACUUM")
        return
    patiently(lambda: connection.exec_driver_sql("VACUUM"))
    deadline = time.monotonic() + LOCK_WAIT_S
    while connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]:
        if time.monotonic() > deadline:
            raise StoreError(
                f"The rows are deleted, but a reader of another process keeps their old copy in '{url.database}-wal'. "
                "End that reader and erase again."
            )
        time.sleep(0.02)


def _engine(url: URL, **pool: Any) -> Engine:
    try:
        return create_engine(url, **pool)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise StoreError(
            f"The database driver for '{url.get_backend_name()}' is not installed ({error}). "
            "Install it with: pip install 'thumbwheel[postgres]'"
        ) from error


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours (`begin` events), not the driver's
    connection.execute("PRAGMA busy_timeout=5000")
    patiently(lambda: connection.execute("PRAGMA journal_mode=WAL"))
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin_immediate(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return  # SQLAlchemy announces a beginning there too
    patiently(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))


def patiently(statement: Any) -> None:
    """Run it, again and again while another process holds the lock.

    Short random sleeps: SQLite's own back-off grows to 100 ms, which starves one of several busy processes.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            statement()
            return
        except (OperationalError, sqlite3.OperationalError) as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.004))


def _read_one_state(connection: Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


def _lock_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(LOCK_WAIT_S * 1000)}ms'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
