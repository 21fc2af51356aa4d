"""Best of n and the over-optimisation curves at values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thumbwheel.formulas import overoptimisation as over


@pytest.mark.parametrize(
    ("n", "kl"), [(1, 0.0), (2, 0.193147), (4, 0.636294), (16, 1.835089), (64, 3.174508), (256, 4.549084)]
)
def test_kl_of_best_of_n(n: int, kl: float) -> None:
    """E3."""
    assert over.best_of_n_kl(n) == pytest.approx(kl, abs=1e-6)


def test_best_of_n_mean() -> None:
    """E3: N = 4, n = 2, gold in proxy order (1, 0, 2, -1): (0·1 + 1·0 + 2·2 - 3·1)/6 = 1/6, in whatever order they come."""
    assert over.best_of_n_mean([1, 2, 3, 4], [1, 0, 2, -1], n=2).value == pytest.approx(1 / 6)
    assert over.best_of_n_mean([4, 1, 3, 2], [-1, 1, 2, 0], n=2).value == pytest.approx(1 / 6)


def test_best_of_one_is_the_mean_and_best_of_all_the_last() -> None:
    """E3."""
    assert over.best_of_n_mean([1, 2, 3, 4], [1, 0, 2, -1], n=1).value == pytest.approx(0.5)
    assert over.best_of_n_mean([1, 2, 3, 4], [1, 0, 2, -1], n=4).value == pytest.approx(-1.0)
    assert over.best_of_n_mean([1.0], [3.0], n=1).value == 3.0


def test_equal_proxies_share_their_gold() -> None:
    """E3: proxies (1, 2, 2), gold (0, 4, 6): best of 2 is one of the upper two always, 5 on average."""
    assert over.best_of_n_mean([1, 2, 2], [0, 4, 6], n=2).value == pytest.approx(5.0)
    assert over.best_of_n_mean([7, 7, 7], [0, 4, 5], n=2).value == pytest.approx(3.0)


def test_best_of_more_than_there_are_is_undefined() -> None:
    """E3."""
    assert over.best_of_n_mean([1, 2], [1, 2], n=3).reason == "best of 3 needs 3 answers; there are 2"
    with pytest.raises(ValueError, match="at least 1"):
        over.best_of_n_mean([1, 2], [1, 2], n=0)
    with pytest.raises(ValueError, match="at least 1"):
        over.best_of_n_kl(0)


def test_best_of_n_curve_and_peak() -> None:
    """E3: d(α - βd), α = 1, β = .1: 2.5 at the peak d = 5, less on both sides, 0 at 10."""
    assert over.best_of_n_peak(alpha=1.0, beta=0.1).value == pytest.approx(5.0)
    curve = over.best_of_n_gold([0, 4.9, 5, 5.1, 10], alpha=1.0, beta=0.1)
    assert curve == pytest.approx([0.0, 2.499, 2.5, 2.499, 0.0])


def test_rl_curve_and_peak() -> None:
    """E3: d(α - β ln d), α = 1, β = ½: 1 at d = 1, e/2 at the peak d = e, 0 at 0."""
    assert over.rl_peak(alpha=1.0, beta=0.5).value == pytest.approx(math.e)
    curve = over.rl_gold([0, 1, math.e - 0.1, math.e, math.e + 0.1], alpha=1.0, beta=0.5)
    assert curve[:2] == pytest.approx([0.0, 1.0])
    assert curve[3] == pytest.approx(math.e / 2)
    assert max(curve[2], curve[4]) < curve[3]


def test_no_peak_says_why() -> None:
    """E3."""
    assert over.best_of_n_peak(alpha=1.0, beta=0.0).value is None
    assert over.best_of_n_peak(alpha=0.0, beta=1.0).value is None
    assert over.rl_peak(alpha=1.0, beta=-1.0).value is None
    assert over.rl_peak(alpha=1.0, beta=0.0).value is None
    with pytest.raises(ValueError, match="cannot be negative"):
        over.rl_gold(np.array([-0.1]), alpha=1.0, beta=1.0)
