"""One row of a file: typed access to its columns, which notes the columns that were used."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from thumbwheel.collect.formats.messages import is_messages
from thumbwheel.errors import RecordError

Value = Any  # JSON as parsed; from Parquet also dates, times and decimals

_TRUE = frozenset({"true", "yes", "1", "1.0", "up", "good", "desirable", "liked"})
_FALSE = frozenset({"false", "no", "0", "0.0", "-1", "-1.0", "down", "bad", "undesirable", "disliked"})
_EPOCH_MILLISECONDS_FROM = 1e11  # seconds would be the year 5138


class Row:
    """A row's columns by name.

    `tabular`: from CSV or Parquet, where nested values and numbers may come as text. `used` is what was asked for and
    found; the rest is reported as not used.
    """

    def __init__(self, data: Mapping[str, Value], *, tabular: bool = False) -> None:
        self.data = data
        self.tabular = tabular
        self.used: set[str] = set()

    def has(self, *names: str) -> bool:
        """True where every one of these columns is there and not null."""
        return all(self.data.get(name) is not None for name in names)

    def first(self, *names: str) -> Value:
        """The first of these columns that is there and not null (in CSV: not empty); None where none is."""
        for name in names:
            value = self.data.get(name)
            if value is not None and not (self.tabular and value == ""):
                self.used.add(name)
                return value
        return None

    def text(self, *names: str) -> str:
        """The first of these columns, which must be text (it may be empty). Raises RecordError."""
        for name in names:
            value = self.data.get(name)
            if value is not None:
                self.used.add(name)
                if not isinstance(value, str):
                    raise RecordError.of(f"The column '{name}' is not text.", field=name, allowed="text", got=value)
                return value
        raise missing(*names)

    def optional_text(self, *names: str) -> str | None:
        """As `text`; None where no such column is there, or it is empty."""
        return (self.text(*names) or None) if any(self.data.get(name) is not None for name in names) else None

    def nested(self, *names: str) -> Value:
        """The first of these columns, JSON that stands in it as text decoded."""
        value = self.first(*names)
        return self._decoded(value)

    def peek(self, name: str) -> Value:
        """As `nested`, without counting as used: for telling formats apart."""
        return self._decoded(self.data.get(name))

    def listed(self, *names: str) -> list[Value]:
        """The first of these columns, which must be a list. Raises RecordError."""
        value = self.nested(*names)
        if value is None:
            raise missing(*names)
        if not isinstance(value, list):
            raise RecordError.of(f"The column '{names[0]}' is not a list.", field=names[0], allowed="a list", got=value)
        return value

    def _decoded(self, value: Value) -> Value:
        """Text that holds JSON: in CSV and Parquet any list or object, elsewhere a list of messages and nothing less."""
        if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
            return value
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return decoded if self.tabular or is_messages(decoded) else value


def missing(*names: str) -> RecordError:
    """The error for a column that is absent or null."""
    others = f" (nor {', '.join(repr(name) for name in names[1:])})" if len(names) > 1 else ""
    return RecordError.of(f"The column '{names[0]}' is missing or null{others}.", field=names[0])


def as_bool(value: Value, name: str) -> bool:
    """True or False out of the usual ways to write it (true, 1, yes, up, good, …; -1 is False). Raises RecordError."""
    word = str(value).strip().lower()
    if isinstance(value, bool | int | float | str):
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise RecordError.of(f"The column '{name}' is not true or false.", field=name, allowed="true or false", got=value)


def as_number(value: Value, name: str) -> float:
    """A finite number, also written as text. Raises RecordError."""
    try:
        number = float("nan") if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RecordError.of(f"The column '{name}' is not a finite number.", field=name, got=value)
    return number


def as_time(value: Value, name: str) -> datetime:
    """A UTC time out of ISO 8601 text (no zone means UTC), a date, or seconds or milliseconds since 1970.

    Raises RecordError.
    """
    try:
        if isinstance(value, datetime):
            return _utc(value)
        if isinstance(value, str) and not _looks_like_a_number(value):
            return _utc(datetime.fromisoformat(value.strip()))
        number = as_number(value, name)
        return datetime.fromtimestamp(number / 1000 if abs(number) >= _EPOCH_MILLISECONDS_FROM else number, tz=UTC)
    except (ValueError, OverflowError, OSError, RecordError):
        raise RecordError.of(
            f"The column '{name}' is no time.",
            field=name,
            allowed="ISO 8601 such as 2026-01-31T12:00:00Z, or seconds since 1970",
            got=str(value),
        ) from None


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _looks_like_a_number(text: str) -> bool:
    return text.strip().lstrip("+-").replace(".", "", 1).isdigit() and len(text.strip()) > 8
