"""What became of every row that went in, with the reason where it went nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from thumbwheel.errors import DataError, SettingError, explain

T = TypeVar("T")


@dataclass(frozen=True)
class Account:
    """Rows in and what became of them; `read = kept + dropped + unscored`.

    | field | meaning |
    | --- | --- |
    | read | rows that went in |
    | kept | rows that reached the result (one row in may make several out, several may make one) |
    | dropped | rows refused, by reason |
    | unscored | rows that have nothing to say here: no verdict, no partner, another view's business |
    | ties | of the result, rows that are ties or neutral |
    | truncated | of the result, rows that were cut |
    | notes | further counts worth reading, such as why rows were unscored; no part of the sum |
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    ties: int = 0
    unscored: int = 0
    truncated: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def dropped_share(self) -> float:
        """Dropped over all that had something to say; 0 where nothing had."""
        meant = self.read - self.unscored
        return sum(self.dropped.values()) / meant if meant > 0 else 0.0

    def line(self) -> str:
        """One line for people.

        >>> Account(read=5, kept=3, dropped=Counter({"empty edit": 1}), unscored=1, ties=1).line()
        'rows in 5, kept 3, dropped 1 (empty edit 1), unscored 1, ties 1'
        """
        parts = [f"rows in {self.read}", f"kept {self.kept}", f"dropped {self.dropped.total()}{_reasons(self.dropped)}"]
        if self.unscored:
            parts.append(f"unscored {self.unscored}")
        if self.ties:
            parts.append(f"ties {self.ties}")
        if self.truncated:
            parts.append(f"truncated {self.truncated}")
        return ", ".join(parts) + (f"; noted{_reasons(self.notes)}" if self.notes else "")

    def check(self, max_dropped_share: float) -> None:
        """Raises DataError where more than this share was dropped, naming the reasons, the commonest first."""
        if not 0 <= max_dropped_share <= 1:
            raise SettingError(explain("'max_dropped_share' is out of range.", allowed="[0, 1]", got=max_dropped_share))
        if self.dropped_share > max_dropped_share:
            raise DataError(
                explain(
                    f"Too much was dropped: {self.dropped.total()} of {self.read - self.unscored} rows"
                    f" ({self.dropped_share:.0%}){_reasons(self.dropped)}.",
                    allowed=f"a share of at most {max_dropped_share:.0%}",
                    next="Look at what was dropped first; then mend the data, or raise 'max_dropped_share'.",
                )
            )

    def __add__(self, other: Account) -> Account:
        """Two accounts of different rows as one."""
        return Account(
            read=self.read + other.read,
            kept=self.kept + other.kept,
            dropped=self.dropped + other.dropped,
            ties=self.ties + other.ties,
            unscored=self.unscored + other.unscored,
            truncated=self.truncated + other.truncated,
            notes=self.notes + other.notes,
        )


@dataclass(frozen=True)
class Accounted(Generic[T]):
    """Rows, and the account of how they came about."""

    rows: list[T]
    account: Account


def _reasons(counts: Mapping[str, int]) -> str:
    """`" (reason n, reason n)"`, the commonest first; empty for no counts."""
    if not counts:
        return ""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return " (" + ", ".join(f"{reason} {n}" for reason, n in ordered) + ")"
