"""Accuracy, AUC, calibration, ranks and variety against counting by hand, and what must not change them."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas import accuracy, calibration, overoptimisation, ranks, variety

calm = settings(derandomize=True, deadline=None, max_examples=80)
scored = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=25)
judged = st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 0.3, 0.5, 1]), st.integers(-2, 2)), max_size=25)


@calm
@given(scored)
def test_auc_against_counting_pairs(rows: list[tuple[int, bool]]) -> None:
    """E1: ties half; blind to a rising change of the scores; 1 - AUC when the scores turn round."""
    positive, negative = [s for s, y in rows if y], [s for s, y in rows if not y]
    score, label = np.array([s for s, _ in rows], dtype=float), [y for _, y in rows]
    value = accuracy.auc(score, label).value
    if not positive or not negative:
        assert value is None
        return
    pairs = [(a > b) + (a == b) / 2 for a, b in itertools.product(positive, negative)]
    assert value == pytest.approx(sum(pairs) / len(pairs))
    assert accuracy.auc(np.exp(3 * score) + 5, label).value == pytest.approx(value)
    assert accuracy.auc(-score, label).value == pytest.approx(1 - value)


@calm
@given(judged)
def test_swapping_the_answers_changes_no_accuracy(rows: list[tuple[int, float, int]]) -> None:
    """E1: pair accuracy and its length-balanced form do not know which answer is called a."""
    gap, label, delta = (
        np.array(column, dtype=float) for column in (zip(*rows, strict=True) if rows else ([], [], []))
    )
    ours, swapped = accuracy.pair_accuracy(gap, label), accuracy.pair_accuracy(-gap, 1 - label)
    assert ours == swapped
    assert ours.correct + ours.wrong + ours.even + ours.ties == len(rows)
    assert accuracy.length_balanced_accuracy(gap, label, delta) == accuracy.length_balanced_accuracy(
        -gap, 1 - label, -delta
    )


@calm
@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1])), min_size=1, max_size=25))
def test_no_rule_of_length_alone_beats_half(rows: list[tuple[int, int]]) -> None:
    """R9: "longer is better" and "shorter is better" both get exactly ½ wherever both kinds of pair occur."""
    delta = np.array([d for d, _ in rows], dtype=float)
    label = np.array([y for _, y in rows], dtype=float)
    for rule in (delta, -delta):
        value = accuracy.length_balanced_accuracy(rule, label, delta).accuracy.value
        assert value == (0.5 if 0 < label.sum() < len(rows) else None)


@calm
@given(st.lists(st.tuples(st.sampled_from([0, 0.5, 1]), st.integers(-40, 40)), min_size=1, max_size=30))
def test_length_controlled_win_rate_turned_round(rows: list[tuple[float, int]]) -> None:
    """E2: theirs is 1 - ours; the unit of length does not matter; always finite."""
    outcome, delta = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    ours = accuracy.length_controlled_win_rate(outcome, delta).value
    theirs = accuracy.length_controlled_win_rate(1 - outcome, -delta).value
    if ours is None or theirs is None:
        assert ours is theirs
        return
    assert 0 <= ours <= 1
    assert theirs == pytest.approx(1 - ours, abs=1e-6)
    assert accuracy.length_controlled_win_rate(outcome, delta * 7).value == pytest.approx(ours, abs=1e-6)


def test_length_control_finds_the_rate_behind_the_length() -> None:
    """E2: outcomes drawn with a true logit of .4 plus 1.5 tanh(Δ/std), longer answers in the majority: .4 comes back."""
    rng = np.random.default_rng(0)
    delta = rng.normal(30, 50, size=20_000)
    won = rng.random(20_000) < 1 / (1 + np.exp(-(0.4 + 1.5 * np.tanh(delta / delta.std()))))
    assert won.mean() > 0.68
    assert accuracy.length_controlled_win_rate(won, delta).value == pytest.approx(1 / (1 + math.exp(-0.4)), abs=0.012)


@calm
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 0.5, 1])), min_size=1, max_size=40), st.integers(1, 12))
def test_calibration_error_knows_no_order(rows: list[tuple[float, float]], bins: int) -> None:
    """E1: in [0, 1], every row in one bin, one bin gives the plain bias."""
    p, y = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    kinds: tuple[Literal["equal_width", "equal_mass"], ...] = ("equal_width", "equal_mass")
    for binning in kinds:
        result = calibration.calibration(p, y, bins=bins, binning=binning)
        back = calibration.calibration(p[::-1], y[::-1], bins=bins, binning=binning)
        assert result.error.value == pytest.approx(back.error.value, abs=1e-9)
        assert sum(b.n for b in result.bins) == len(rows)
        assert len(result.bins) <= bins
        single = calibration.calibration(p, y, bins=1, binning=binning)
        assert single.error.value == pytest.approx(abs(p.mean() - y.mean()), abs=1e-9)


def test_equal_mass_bins_hold_equal_masses() -> None:
    """E1: 1000 distinct probabilities in 10 bins of 100."""
    p = np.random.default_rng(0).beta(5, 1, size=1000)
    result = calibration.calibration(p, np.ones(1000), bins=10, binning="equal_mass")
    assert [b.n for b in result.bins] == [100] * 10


def test_probabilities_outside_their_range_are_refused() -> None:
    """E1."""
    with pytest.raises(ValueError, match=r"'p' must be in \[0, 1\]"):
        calibration.brier([1.2], [1])
    with pytest.raises(ValueError, match="of one length"):
        calibration.log_loss([0.2, 0.3], [1])
    with pytest.raises(ValueError, match="At least one bin"):
        calibration.calibration([0.2], [1], bins=0, binning="equal_width")
    with pytest.raises(ValueError, match="'label' must be in"):
        accuracy.pair_accuracy([1.0], [2.0])
    with pytest.raises(ValueError, match="ridge must be in"):
        accuracy.length_controlled_win_rate([1.0], [2.0], ridge=0.0)
    with pytest.raises(ValueError, match="agreement must be in"):
        accuracy.noise_ceiling(81)


@calm
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_rank_correlations_against_scipy(rows: list[tuple[int, int]]) -> None:
    """E1: with ties on both sides."""
    peer = pytest.importorskip("scipy.stats")
    a, b = zip(*rows, strict=True)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert ranks.spearman(a, b).value is None
        assert ranks.kendall(a, b).value is None
        return
    assert ranks.spearman(a, b).value == pytest.approx(peer.spearmanr(a, b).statistic, abs=1e-12)
    assert ranks.kendall(a, b).value == pytest.approx(peer.kendalltau(a, b).statistic, abs=1e-12)
    assert ranks.midranks(a) == pytest.approx(peer.rankdata(a))


@calm
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1, max_size=7), st.integers(1, 7))
def test_best_of_n_against_trying_every_subset(rows: list[tuple[int, int]], n: int) -> None:
    """E3: ties within a subset count as a fair die would have them."""
    proxy, gold = zip(*rows, strict=True)
    value = overoptimisation.best_of_n_mean(proxy, gold, n=n).value
    if n > len(rows):
        assert value is None
        return
    picks = []
    for subset in itertools.combinations(rows, n):
        best = [g for p, g in subset if p == max(p for p, _ in subset)]
        picks.append(sum(best) / len(best))
    # Within one tied set the fair die favours no row, so the mean over subsets is that of the tied rows.
    assert value == pytest.approx(sum(picks) / len(picks), abs=1e-9)


def test_best_of_many_from_a_large_pool() -> None:
    """E3: no overflow where C(N, n) has thousands of digits: best of half of 20 000 by a perfect proxy."""
    gold = np.arange(20_000.0)
    value = overoptimisation.best_of_n_mean(gold, gold, n=10_000).value
    assert value == pytest.approx(10_000 / 10_001 * 20_001 - 1)  # the mean of a maximum without replacement


@calm
@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 4), st.integers(1, 3))
def test_repetition_against_counting(tokens: list[str], n: int, more_than: int) -> None:
    """P6: and distinct-n with it."""
    grams = ["".join(tokens[i : i + n]) for i in range(max(0, len(tokens) - n + 1))]
    share = variety.repetition_share(tokens, n=n, more_than=more_than).value
    distinct = variety.distinct_n([tokens], n=n).value
    if not grams:
        assert share is None
        assert distinct is None
        return
    assert share == pytest.approx(sum(grams.count(g) > more_than for g in grams) / len(grams))
    assert distinct == pytest.approx(len(set(grams)) / len(grams))


def test_variety_refuses_empty_ngrams() -> None:
    """P6."""
    with pytest.raises(ValueError, match="at least 1 token"):
        variety.distinct_n([["a"]], n=0)
    with pytest.raises(ValueError, match="more than 1 time"):
        variety.repetition_share(["a"], more_than=0)
