"""What must hold of intervals and tests: they cover, they know clusters, they are the same with the same dice."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas import stats
from thumbwheel.formulas.figures import Floats

calm = settings(derandomize=True, deadline=None, max_examples=80)


def dice(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@calm
@given(st.integers(1, 400), st.data())
def test_wilson_is_symmetric_and_holds_its_value(n: int, data: st.DataObject) -> None:
    """E2: the interval of losses is that of wins turned round; a higher level is never narrower."""
    k = data.draw(st.integers(0, 2 * n)) / 2
    a, b, wide = stats.wilson(k, n), stats.wilson(n - k, n), stats.wilson(k, n, level=0.99)
    assert a.low is not None
    assert a.high is not None
    assert a.value is not None
    assert (a.low, a.high) == pytest.approx((1 - (b.high or 0), 1 - (b.low or 0)), abs=1e-9)
    assert 0 <= a.low <= a.value <= a.high <= 1
    assert (wide.low or 0) <= a.low
    assert (wide.high or 0) >= a.high


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (math.nan, 5)])
def test_wilson_refuses_impossible_counts(k: float, n: int) -> None:
    """E2."""
    with pytest.raises(ValueError, match="between 0 and n"):
        stats.wilson(k, n)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, math.nan])
def test_a_level_outside_zero_and_one_is_refused(level: float) -> None:
    """E2."""
    with pytest.raises(ValueError, match=r"For 95 % give 0\.95"):
        stats.wilson(1, 2, level=level)


@calm
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=30), st.data())
def test_win_rate_turned_round_is_the_loss_rate(outcome: list[float], data: st.DataObject) -> None:
    """E2: whatever the prompts, and in whatever order the rows come."""
    prompt = data.draw(st.lists(st.integers(0, 4), min_size=len(outcome), max_size=len(outcome)))
    ours = stats.win_rate(outcome, prompt=prompt)
    theirs = stats.win_rate([1 - y for y in outcome], prompt=prompt)
    back = stats.win_rate(outcome[::-1], prompt=prompt[::-1])
    if len(set(prompt)) < 2:
        assert ours.value is None
        return
    assert (ours.low, ours.high) == pytest.approx((1 - (theirs.high or 0), 1 - (theirs.low or 0)), abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx((back.low, back.high), abs=1e-9)


def test_prompts_widen_the_interval_only_where_they_matter() -> None:
    """E2: the same outcomes, alike within a prompt, say less than outcomes that are mixed within it."""
    prompt = np.repeat(np.arange(20), 4)
    alike, mixed = np.repeat([1.0, 0.0], 40), np.tile([1.0, 0.0], 40)
    without = stats.win_rate(alike)
    with_alike, with_mixed = stats.win_rate(alike, prompt=prompt), stats.win_rate(mixed, prompt=prompt)
    assert with_alike.low is not None
    assert without.low is not None
    assert with_alike.low < without.low - 0.05
    assert with_mixed.low == pytest.approx(without.low)


@pytest.mark.parametrize(("p", "answers"), [(0.5, 4), (0.7, 4), (0.9, 2)])
def test_win_rate_by_prompt_covers_the_truth(p: float, answers: int) -> None:
    """E2: outcomes that lean on their prompt: the 95 % interval holds the truth about 95 times in 100; ignoring prompts not."""
    rng, runs, prompts = dice(5), 400, 60
    prompt = np.repeat(np.arange(prompts), answers)
    covered = naive = 0
    for _ in range(runs):
        own = rng.beta(2 * p, 2 * (1 - p), size=prompts)
        outcome = (rng.random(prompt.size) < own[prompt]).astype(float)
        inside, plain = stats.win_rate(outcome, prompt=prompt), stats.win_rate(outcome)
        covered += (inside.low or 0) <= p <= (inside.high or 0)
        naive += (plain.low or 0) <= p <= (plain.high or 0)
    assert covered / runs >= 0.92
    assert naive < covered


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_is_the_same_with_the_same_dice(method: Literal["percentile", "bca"]) -> None:
    """E1: dice come in as an argument."""
    values = dice(1).normal(size=50)
    first, second = (
        stats.bootstrap(lambda i: float(values[i].mean()), 50, rng=dice(9), resamples=300, method=method) for _ in "ab"
    )
    assert first == second


def test_bootstrap_of_a_mean_has_the_known_width() -> None:
    """E1: 400 draws from a unit normal: about ± 1.96/20 = .098."""
    values = dice(3).normal(size=400)
    interval = stats.bootstrap(lambda i: float(values[i].mean()), 400, rng=dice(4), resamples=4000)
    assert interval.high is not None
    assert interval.low is not None
    assert (interval.high - interval.low) / 2 == pytest.approx(0.098 * values.std(), rel=0.08)
    assert interval.value == pytest.approx(values.mean())


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_against_scipy(method: Literal["percentile", "bca"]) -> None:
    """E1: another library's interval of a skewed statistic, within the noise of the dice."""
    peer = pytest.importorskip("scipy.stats")
    values = dice(2).exponential(size=60)
    theirs = peer.bootstrap(
        (values,), np.var, n_resamples=8000, method="BCa" if method == "bca" else method, rng=dice(0)
    ).confidence_interval
    ours = stats.bootstrap(lambda i: float(values[i].var()), 60, rng=dice(1), resamples=8000, method=method)
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.04 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.04 * width)


def test_bca_of_a_symmetric_count_is_the_percentile_interval() -> None:
    """E1: 20 heads in 40: no skew and, with resamples equal to the value counted half, no bias; 1/40 is one step."""
    coins = np.array([0.0, 1.0] * 20)
    percentile, bca = (
        stats.bootstrap(lambda i: float(coins[i].mean()), 40, rng=dice(6), resamples=4000, method=method)  # type: ignore[arg-type]
        for method in ("percentile", "bca")
    )
    assert bca.low == pytest.approx(percentile.low, abs=0.013)
    assert bca.high == pytest.approx(percentile.high, abs=0.013)
    assert (bca.low, bca.high) == pytest.approx((0.35, 0.65), abs=0.013)


def test_clusters_are_drawn_whole() -> None:
    """E1, E2: every resample holds each drawn cluster's rows, all of them, as often as it was drawn, however they lie."""
    cluster = np.array(["b", "a", "c", "a", "b", "b"])
    seen: list[dict[str, int]] = []

    def statistic(index: stats.Indices) -> float:
        labels, counts = np.unique(cluster[index], return_counts=True)
        whole = {"a": 2, "b": 3, "c": 1}
        for label, count in zip(labels, counts, strict=True):
            assert count % whole[label] == 0
            rows = index[cluster[index] == label]
            assert len(set(np.bincount(rows, minlength=6)[cluster == label])) == 1
        seen.append({label: int(count) // whole[label] for label, count in zip(labels, counts, strict=True)})
        return float(index.size)

    stats.bootstrap(statistic, 6, rng=dice(0), resamples=200, cluster=cluster)
    assert all(sum(times.values()) == 3 for times in seen)
    assert len({tuple(sorted(times.items())) for times in seen}) == 10  # 3 clusters, 3 draws: 10 multisets


def test_clustered_rows_give_the_interval_of_their_means() -> None:
    """E2: rows repeated within a prompt carry no news."""
    means = dice(8).normal(size=40)
    repeated = np.repeat(means, 5)
    alone = stats.bootstrap(lambda i: float(means[i].mean()), 40, rng=dice(2), resamples=1000)
    together = stats.bootstrap(
        lambda i: float(repeated[i].mean()), 200, rng=dice(2), resamples=1000, cluster=np.repeat(np.arange(40), 5)
    )
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))


def test_bootstrap_says_why_it_is_undefined() -> None:
    """E1."""

    def needs_both(index: stats.Indices) -> float:
        labels: Floats = np.array([1.0, 0.0, 0.0, 0.0])[index]
        return math.nan if labels.min() == labels.max() else 0.5

    assert stats.bootstrap(needs_both, 0, rng=dice(0)).reason == "there are no rows"
    assert stats.bootstrap(lambda i: math.nan, 4, rng=dice(0)).reason == "the statistic is undefined on these rows"
    assert stats.bootstrap(lambda i: 1.0, 4, rng=dice(0), cluster=["x"] * 4).reason == "there is one cluster only"
    reason = stats.bootstrap(needs_both, 4, rng=dice(0)).reason
    assert reason is not None
    assert "of the resamples" in reason  # (3/4)⁴ = 32 % of them have no positive
    with pytest.raises(ValueError, match="At least 1 resample"):
        stats.bootstrap(lambda i: 1.0, 4, rng=dice(0), resamples=0)
    with pytest.raises(ValueError, match="one label of its cluster"):
        stats.bootstrap(lambda i: 1.0, 4, rng=dice(0), cluster=[1, 2])


def test_a_constant_has_an_interval_without_width() -> None:
    """E1: for both methods."""
    for method in ("percentile", "bca"):
        interval = stats.bootstrap(lambda i: 0.75, 10, rng=dice(0), resamples=50, method=method)  # type: ignore[arg-type]
        assert (interval.low, interval.value, interval.high) == (0.75, 0.75, 0.75)


@calm
@given(st.integers(0, 60), st.integers(0, 60))
def test_sign_test_against_exact_fractions(wins: int, losses: int) -> None:
    """E2."""
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    assert stats.sign_test(wins, losses) == pytest.approx(min(1.0, 2 * tail / 2**n), rel=1e-9)


def test_sign_test_of_many_comparisons() -> None:
    """E2: 50 000 against 51 000: z = (1000 - 1)/√101 000 = 3.1434 with the half-step correction, p = .00167; no overflow."""
    assert stats.sign_test(50_000, 51_000) == pytest.approx(0.00167, rel=0.005)


@calm
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_effective_sample_size_is_between_one_and_n(weights: list[float], scale: float) -> None:
    """O2."""
    value = stats.effective_sample_size(weights).value
    if value is None:
        assert not any(weights)
        return
    assert 1 - 1e-9 <= value <= len(weights) + 1e-9
    assert stats.effective_sample_size([w * scale for w in weights]).value == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("call", [stats.win_rate, stats.effective_sample_size])
def test_an_unknown_value_is_refused_and_not_counted_as_zero(call: object) -> None:
    """E2."""
    with pytest.raises(ValueError, match=r"1 NaN.*Leave rows"):
        call([1.0, math.nan])  # type: ignore[operator]


def test_unequal_lengths_are_refused() -> None:
    """E4."""
    with pytest.raises(ValueError, match="of one length"):
        stats.mcnemar([1, 0], [1])
    with pytest.raises(ValueError, match="one axis"):
        stats.win_rate([[1.0, 0.0]])
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        stats.win_rate([2.0])
    with pytest.raises(ValueError, match="0 or more"):
        stats.sign_test(-1, 2)
    with pytest.raises(ValueError, match="0 or more"):
        stats.effective_sample_size([-1.0, 2.0])
