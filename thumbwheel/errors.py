"""Every error Thumbwheel raises on purpose.

    ThumbwheelError
    ├── SettingError      a setting is unknown, out of range, or contradicts another
    ├── RegistryError     a name is not registered and is no importable "module:attr"
    ├── RecordError       a record (feedback, step, row of a file) is malformed
    ├── ConflictError     the same id came again with another payload
    ├── NotFound          an id, a file or a version does not exist
    ├── StoreError        bytes at rest: disk full, locked, corrupt, wrong schema version
    │   └── Undelivered   the client's records reached no store; they can be sent again as they are
    ├── CheckpointError   a checkpoint is missing, cut short, or of other data or settings
    ├── ModelError        a model or tokenizer cannot be loaded, or does not fit the request
    ├── DataError         the data cannot carry what was asked (too few, all alike, too many bad rows)
    └── TrainingError     an update went wrong (not finite, out of memory, no trained token)

A message says what, what is allowed, what was got, and what to do next; `explain` builds it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self


class ThumbwheelError(Exception):
    """Root of the tree. `field` names the offending field where there is one.

    Errors built by `of` keep their parts beside the message, so that a server can pass them on one by one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.what = message
        self.allowed: str | None = None
        self.got: object = None
        self.next: str | None = None

    @classmethod
    def of(
        cls,
        what: str,
        *,
        field: str | None = None,
        allowed: object = None,
        got: object = None,
        next: str | None = None,
    ) -> Self:
        """The error whose message `explain` builds from these parts."""
        error = cls(explain(what, allowed=allowed, got=got, next=next), field=field)
        error.what, error.got, error.next = what, got, next
        error.allowed = None if allowed is None else str(allowed)
        return error


class SettingError(ThumbwheelError):
    """A setting is unknown, out of range, or contradicts another."""


class RegistryError(ThumbwheelError):
    """A name is not registered and is no importable "module:attr"."""


class RecordError(ThumbwheelError):
    """A record is malformed; `field` names the field."""


class ConflictError(ThumbwheelError):
    """The same id came again with another payload."""


class NotFound(ThumbwheelError):
    """An id, a file or a version does not exist."""


class StoreError(ThumbwheelError):
    """Bytes at rest failed: disk full, locked, corrupt, wrong schema version."""


class Undelivered(StoreError):
    """The server did not answer, or could not store. `records` are safe to send again: their ids are the same."""

    records: tuple[object, ...] = ()


class CheckpointError(ThumbwheelError):
    """A checkpoint is missing, cut short, or belongs to other data or settings."""


class ModelError(ThumbwheelError):
    """A model or tokenizer cannot be loaded, or does not fit the request."""


class DataError(ThumbwheelError):
    """The data cannot carry what was asked."""


class TrainingError(ThumbwheelError):
    """An update went wrong."""


def explain(what: str, *, allowed: object = None, got: object = None, next: str | None = None) -> str:
    """One message in the house's order: what, allowed, got, next.

    >>> explain("The 'beta' setting is out of range.", allowed="a float in (0, inf)", got=-0.1)
    "The 'beta' setting is out of range. Allowed: a float in (0, inf). Got: -0.1."
    """
    parts = [what]
    if allowed is not None:
        parts.append(f"Allowed: {allowed}.")
    if got is not None:
        shown = got if isinstance(got, str) and got.strip() else repr(got)
        parts.append(f"Got: {shown if len(shown) <= 200 else shown[:197] + '...'}.")
    if next:
        parts.append(next)
    return " ".join(parts)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"`, or an empty string where nothing known is close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
