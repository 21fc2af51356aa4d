"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class FakeClock:
    """Called, it gives the time: `create_app(store, settings, clock=FakeClock())`."""

    def __init__(self, start: datetime = NOON) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0) -> datetime:
        """Move on (or back, below 0) and give the new time."""
        self.now += timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return self.now
