"""Accounts add up and say why."""

from __future__ import annotations

from collections import Counter

import pytest

from thumbwheel.errors import DataError, SettingError
from thumbwheel.signals.accounts import Account


def test_the_line_gives_every_count_with_its_reason() -> None:
    account = Account(read=10, kept=6, dropped=Counter({"empty edit": 1, "same": 2}), ties=1, unscored=1, truncated=2)
    assert account.line() == "rows in 10, kept 6, dropped 3 (same 2, empty edit 1), unscored 1, ties 1, truncated 2"


def test_an_empty_account_reads_well_and_passes_any_check() -> None:
    Account().check(0.0)
    assert Account().line() == "rows in 0, kept 0, dropped 0"


def test_a_check_fails_above_the_share_of_rows_that_had_something_to_say() -> None:
    """5 of 10 rows had nothing to say; 2 of the other 5 were dropped: 40 %."""
    account = Account(read=10, kept=3, dropped=Counter({"same": 2}), unscored=5)
    assert account.dropped_share == pytest.approx(0.4)
    account.check(0.4)
    with pytest.raises(DataError, match=r"2 of 5 rows \(40%\) \(same 2\).*at most 39%"):
        account.check(0.39)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="max_dropped_share"):
        Account().check(share)


def test_accounts_of_different_rows_add_up() -> None:
    one = Account(read=2, kept=1, dropped=Counter({"same": 1}), ties=1)
    two = Account(read=3, kept=1, dropped=Counter({"same": 1}), unscored=1, notes=Counter({"implicit": 1}))
    total = one + two
    assert (total.read, total.kept, total.dropped["same"], total.unscored, total.ties) == (5, 2, 2, 1, 1)
    assert total.notes["implicit"] == 1
