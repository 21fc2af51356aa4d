"""What went wrong with the bytes at rest, in words that say what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from thumbwheel.errors import StoreError

FULL = (
    "The disk that holds the store {where} is full (or the file reached its size limit); nothing of this write was kept. "
    "Free some space and send it again: the store goes on by itself."
)
LOCKED = (
    "The store {where} is locked by another process, which held it for too long; nothing of this write was kept. "
    "Find the process that holds a transaction open (a database shell, a copy in progress), end it, and try again."
)
DAMAGED = (
    "The store {where} is damaged or is no Thumbwheel store: {said}. "
    "Keep a copy of the file, then restore a backup, or salvage what can be read with `sqlite3 FILE .recover`."
)
READ_ONLY = "The store {where} cannot be written: {said}. Make the file and its folder writable for this user."
UNREACHABLE = "The store {where} cannot be opened: {said}. Check that the address is right and that it may be read."
IO = (
    "Reading or writing the store {where} failed: {said}. Check the disk (space, quota, size limits, health), "
    "then send it again."
)
OTHER = "The store {where} refused the statement: {said}. Nothing of this write was kept."


class Rule(NamedTuple):
    """SQLite error names and PostgreSQL states that start with one of `codes` are told as `text`."""

    codes: tuple[str, ...]
    text: str


# SQLite: https://www.sqlite.org/rescode.html; PostgreSQL: appendix A, "Error Codes".
RULES = (
    Rule(("SQLITE_FULL", "53100"), FULL),
    Rule(("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "40P01", "57014"), LOCKED),
    Rule(("SQLITE_CORRUPT", "SQLITE_NOTADB", "XX001", "XX002"), DAMAGED),
    Rule(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH", "25006", "42501"), READ_ONLY),
    Rule(("SQLITE_CANTOPEN", "08", "3D000", "28"), UNREACHABLE),
    Rule(("SQLITE_IOERR",), IO),
)


def code_of(error: BaseException) -> str:
    """SQLite's error name, PostgreSQL's state, or an empty string."""
    original = getattr(error, "orig", None) or error
    return str(getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None) or "")


def is_busy(error: BaseException) -> bool:
    """Another connection holds the lock; waiting helps."""
    return code_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "40P01"))


def told(error: BaseException, where: str) -> StoreError:
    """The StoreError that tells a database error to a person."""
    code = code_of(error)
    text = next((rule.text for rule in RULES if code.startswith(rule.codes)), None)
    if text is None:
        text = LOCKED if isinstance(error, PoolTimeout) else OTHER
    said = str(getattr(error, "orig", None) or error)
    return StoreError(text.format(where=f"'{where}'", said=said))


@contextmanager
def told_as_store_error(where: str) -> Iterator[None]:
    """Database errors inside come out as StoreError."""
    try:
        yield
    except (DBAPIError, SQLAlchemyError) as error:
        raise told(error, where) from error
