"""Intervals, tests, accuracy, calibration, ranks and variety at published values and values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thumbwheel.formulas import accuracy, calibration, ranks, stats, variety


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(k: int, n: int, low: float, high: float) -> None:
    """E2: the four rows of Newcombe 1998, table I, method 3."""
    interval = stats.wilson(k, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert interval.value == pytest.approx(k / n)


def test_wilson_without_observations_is_undefined() -> None:
    """E2."""
    interval = stats.wilson(0, 0)
    assert (interval.value, interval.low, interval.high) == (None, None, None)
    assert interval.reason == "there are no observations"


def test_win_rate_counts_ties_half() -> None:
    """E2: 15 wins, 10 ties, 15 losses -> .5 ± .148005, as for 20 of 40."""
    interval = stats.win_rate([1.0] * 15 + [0.5] * 10 + [0.0] * 15)
    assert interval.value == 0.5
    assert (interval.low, interval.high) == pytest.approx((0.351995, 0.648005), abs=1e-6)


def test_win_rate_knows_its_prompts() -> None:
    """E2: four answers a prompt, always alike, are one observation a prompt: 6 of 10, at n' = 9 for the unbiased variance.

    v = 10/9 · Σ (4 (y - .6))² / 40² = 10/9 · 2.4/100, so n' = .24/v = 9, and Wilson's interval is .570085 ± .269609.
    """
    outcome = np.repeat([1.0] * 6 + [0.0] * 4, 4)
    prompts = np.repeat([f"prompt {i}" for i in range(10)], 4)
    interval = stats.win_rate(outcome, prompt=prompts)
    assert (interval.value, interval.n) == (pytest.approx(0.6), 40)
    assert (interval.low, interval.high) == pytest.approx((0.300476, 0.839694), abs=2e-6)


def test_all_won_is_as_sure_as_there_are_prompts() -> None:
    """E2: 20 prompts won 5 times each: 1, from 1 - .1611 as for 0 of 20."""
    interval = stats.win_rate([1.0] * 100, prompt=np.repeat(np.arange(20), 5))
    assert (interval.low, interval.high) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)


def test_win_rate_on_one_prompt_is_undefined() -> None:
    """E2."""
    assert stats.win_rate([1.0, 0.0], prompt=[3, 3]).reason == "all comparisons are on one prompt"
    assert stats.win_rate([]).reason == "there are no comparisons"


def test_sign_test() -> None:
    """E2: 1 against 7 -> 2 (1 + 8)/256; 5 against 5 -> 1; 0 against 10 -> 2/1024."""
    assert stats.sign_test(1, 7) == pytest.approx(0.0703125)
    assert stats.sign_test(7, 1) == pytest.approx(0.0703125)
    assert stats.sign_test(5, 5) == 1.0
    assert stats.sign_test(0, 10) == pytest.approx(2 / 1024)
    assert stats.sign_test(0, 0) == 1.0


def test_mcnemar_looks_at_disagreements_only() -> None:
    """E4: A alone right once, B alone seven times, 12 rows alike."""
    a = [1] + [0] * 7 + [1] * 6 + [0] * 6
    b = [0] + [1] * 7 + [1] * 6 + [0] * 6
    assert stats.mcnemar(a, b) == pytest.approx(0.0703125)


def test_effective_sample_size() -> None:
    """O2: weights (2, 0, 2) -> 2.0; equal weights -> n."""
    assert stats.effective_sample_size([2, 0, 2]).value == pytest.approx(2.0)
    assert stats.effective_sample_size([3.0] * 7).value == pytest.approx(7.0)
    assert stats.effective_sample_size([1e-300, 1e-300]).value == pytest.approx(2.0)
    assert stats.effective_sample_size([0.0, 0.0]).reason == "no weight is above 0"


def test_auc() -> None:
    """E1: 3 of 4 pairs in order -> .75; a tie between the classes counts half; one class is undefined."""
    assert accuracy.auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value == pytest.approx(0.75)
    assert accuracy.auc([1, 1, 1, 1], [0, 1, 0, 1]).value == pytest.approx(0.5)
    assert accuracy.auc([1, 2, 2, 3], [0, 0, 1, 1]).value == pytest.approx(3.5 / 4)
    undefined = accuracy.auc([1, 2], [1, 1])
    assert undefined.value is None
    assert undefined.reason == "both classes are needed; got 2 positive and 0 negative"


def test_pair_accuracy_shows_ties_apart() -> None:
    """E1: correct 1, wrong 1, one pair the score cannot tell (a coin's half), one that people could not."""
    result = accuracy.pair_accuracy([2, -1, 0, 3], [1, 1, 1, 0.5])
    assert (result.correct, result.wrong, result.even, result.ties) == (1, 1, 1, 1)
    assert result.accuracy.value == pytest.approx(0.5)
    assert result.accuracy.n == 3
    assert accuracy.pair_accuracy([1.0], [0.5]).accuracy.value is None


def test_a_share_of_votes_is_a_label() -> None:
    """E1: two of three votes for a, one of three, all for b."""
    result = accuracy.pair_accuracy([1, 1, -2], [2 / 3, 1 / 3, 0])
    assert (result.correct, result.wrong) == (2, 1)


def test_picking_the_longer_answer_is_worth_half() -> None:
    """E1, R9: with 9 of 10 better answers longer, that rule has accuracy .9 and a length-balanced .5."""
    label = np.array([1.0] * 9 + [0.0])
    delta = np.array([30.0] * 10)
    assert accuracy.pair_accuracy(delta, label).accuracy.value == pytest.approx(0.9)
    balanced = accuracy.length_balanced_accuracy(delta, label, delta)
    assert balanced.accuracy.value == pytest.approx(0.5)
    assert balanced.longer_is_better.accuracy.n == 9
    assert balanced.shorter_is_better.accuracy.value == 0.0


def test_length_balanced_accuracy_by_hand() -> None:
    """E1, R9: longer side 2 of 4, shorter side 1 of 1, one pair of equal length, one tie: (.5 + 1)/2."""
    gap = [1, 1, -1, -1, 1, 1, 1]
    label = [1, 1, 1, 1, 1, 1, 0.5]
    delta = [5, 9, 5, 1, -2, 0, 4]
    balanced = accuracy.length_balanced_accuracy(gap, label, delta)
    assert balanced.accuracy.value == pytest.approx(0.75)
    assert balanced.same_length == 1
    lopsided = accuracy.length_balanced_accuracy([1.0], [1.0], [3.0])
    assert lopsided.accuracy.value is None
    assert lopsided.accuracy.reason == "no pair whose better answer is the shorter"


def test_length_controlled_win_rate() -> None:
    """E2: 15 of 20 longer and 4 of 20 shorter answers won: logits ln 3 and -ln 4, halfway σ(-.143841) = .464102.

    With twice as many longer ones the raw rate moves (34/60 = .567) and the controlled one does not.
    """
    won = np.array([1.0] * 15 + [0.0] * 5 + [1.0] * 4 + [0.0] * 16)
    delta = np.array([40.0] * 20 + [-40.0] * 20)
    assert accuracy.length_controlled_win_rate(won, delta, ridge=1e-9).value == pytest.approx(0.464102, abs=1e-6)
    more = accuracy.length_controlled_win_rate(np.append(won, won[:20]), np.append(delta, delta[:20]), ridge=1e-9)
    assert more.value == pytest.approx(0.464102, abs=1e-6)


def test_length_controlled_win_rate_at_the_edges() -> None:
    """E2: length decides all -> .5; length is all alike -> the plain rate, or undefined where one side is always longer."""
    by_length = accuracy.length_controlled_win_rate([1.0] * 10 + [0.0] * 10, [7.0] * 10 + [-7.0] * 10)
    assert by_length.value == pytest.approx(0.5, abs=1e-9)
    assert accuracy.length_controlled_win_rate([1, 1, 0], [0, 0, 0]).value == pytest.approx(2 / 3)
    assert accuracy.length_controlled_win_rate([1, 1, 1], [1, 2, 3]).value == 1.0
    assert accuracy.length_controlled_win_rate([1, 1, 0], [5, 5, 5]).value is None
    thirds = [1e9 / 7] * 7  # whose standard deviation is rounding noise, not 0
    assert accuracy.length_controlled_win_rate([1, 1, 0, 0, 0, 1, 1], thirds).value is None
    strong = accuracy.length_controlled_win_rate([1, 1, 1, 0], [9, 9, 9, -9], ridge=1e9).value
    assert strong == pytest.approx(0.75, abs=1e-6)  # with length held to no effect, the plain rate
    assert accuracy.length_controlled_win_rate([], []).reason == "there are no comparisons"


def test_brier_and_log_loss() -> None:
    """E1: p (.9, .2) against (1, 0): (.01 + .04)/2 and -(ln .9 + ln .8)/2 = .164252; ½ always: .25 and ln 2."""
    assert calibration.brier([0.9, 0.2], [1, 0]).value == pytest.approx(0.025)
    assert calibration.log_loss([0.9, 0.2], [1, 0]).value == pytest.approx(0.164252, abs=1e-6)
    assert calibration.brier([0.5, 0.5], [1, 0]).value == pytest.approx(0.25)
    assert calibration.log_loss([0.5, 0.5], [1, 0]).value == pytest.approx(math.log(2))
    assert calibration.log_loss([0.0], [1]).value == pytest.approx(27.631021, abs=1e-6)
    assert calibration.brier([], []).reason == "there are no rows"


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_calibration_error(binning: str) -> None:
    """E1: p (.1, .1, .9, .9), y (0, 1, 1, 1): ½ |.1 - .5| + ½ |.9 - 1| = .25."""
    result = calibration.calibration([0.1, 0.1, 0.9, 0.9], [0, 1, 1, 1], bins=2, binning=binning)  # type: ignore[arg-type]
    assert result.error.value == pytest.approx(0.25)
    assert [(b.n, b.stated, b.observed) for b in result.bins] == [
        (2, pytest.approx(0.1), 0.5),
        (2, pytest.approx(0.9), 1.0),
    ]


def test_the_two_binnings_differ() -> None:
    """E1: p (.1, .2, .3, .9), two bins: widths hold 3 and 1, masses 2 and 2; p = 1 is in the last bin."""
    p, y = [0.1, 0.2, 0.3, 1.0], [0, 0, 1, 1]
    widths = calibration.calibration(p, y, bins=2, binning="equal_width")
    masses = calibration.calibration(p, y, bins=2, binning="equal_mass")
    assert [b.n for b in widths.bins] == [3, 1]
    assert [b.n for b in masses.bins] == [2, 2]
    assert widths.error.value == pytest.approx(0.75 * abs(0.2 - 1 / 3))
    assert masses.error.value == pytest.approx(0.5 * 0.15 + 0.5 * 0.35)


def test_equal_probabilities_share_a_bin() -> None:
    """E1: with every p alike the order of the rows must not matter: |.7 - .5| in one bin."""
    result = calibration.calibration([0.7] * 10, [0, 1] * 5, bins=5, binning="equal_mass")
    assert len(result.bins) == 1
    assert result.error.value == pytest.approx(0.2)


def test_midranks_and_rank_correlations() -> None:
    """E1: Σd² = 2 over four rows: 1 - 12/60 = .8; five of six pairs in order, one not: 4/6; with a tie 2/√(2·3)."""
    assert ranks.midranks([10, 20, 20, 5]).tolist() == [2.0, 3.5, 3.5, 1.0]
    assert ranks.spearman([1, 2, 3, 4], [1, 3, 2, 4]).value == pytest.approx(0.8)
    assert ranks.kendall([1, 2, 3, 4], [1, 3, 2, 4]).value == pytest.approx(4 / 6)
    assert ranks.kendall([1, 1, 2], [1, 2, 3]).value == pytest.approx(0.816497, abs=1e-6)
    assert ranks.spearman([1, 1, 2], [1, 2, 3]).value == pytest.approx(math.sqrt(3) / 2)
    assert ranks.spearman([1, 1], [1, 2]).reason == "one side is constant"
    assert ranks.kendall([1], [1]).reason == "fewer than two rows"


def test_variety() -> None:
    """E2, P6: "a b a b" has bigrams ab, ba, ab; "a b c" thrice has 7 trigrams, of which abc comes three times."""
    assert variety.distinct_n([["a", "b", "a", "b"]], n=2).value == pytest.approx(2 / 3)
    assert variety.distinct_n([[1, 2], [1, 2], [3]], n=1).value == pytest.approx(3 / 5)
    assert variety.distinct_n([["a"]], n=2).reason == "no text has 2 tokens"
    assert variety.repetition_share(("a b c " * 3).split()).value == pytest.approx(3 / 7)
    assert variety.repetition_share(["a", "b", "c", "a", "b", "c", "x"]).value == 0.0
    assert variety.repetition_share(["no"] * 10).value == 1.0
    assert variety.repetition_share(["a", "b"]).value is None


def test_entropy() -> None:
    """E2: ln 2; certain 0; (.5, .3, .2) -> 1.029653."""
    assert variety.entropy_nats([0.5, 0.5]) == pytest.approx(math.log(2))
    assert variety.entropy_nats([1.0, 0.0]) == 0.0
    assert variety.entropy_nats([0.5, 0.3, 0.2]) == pytest.approx(1.029653, abs=1e-6)
    with pytest.raises(ValueError, match="sum to 1"):
        variety.entropy_nats([3, 4])
