"""Agreement and aggregation at published values and values worked out by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from thumbwheel.formulas.accuracy import noise_ceiling
from thumbwheel.formulas.agreement import (
    Level,
    cohen_kappa,
    fleiss_kappa,
    krippendorff_alpha,
    majority,
    raw_agreement,
)
from thumbwheel.formulas.gold_control import ALARM, cusum_step, plain_shortfall
from thumbwheel.formulas.strengths import bradley_terry_strengths

NO = None
# Krippendorff 2011, section C: four coders, twelve units.
TEXTBOOK = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, NO, NO, NO),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NO, 3),
    (NO, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NO),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NO),
)


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849), ("ratio", 0.797)]
)
def test_krippendorff_textbook(level: Level, alpha: float) -> None:
    """Q4."""
    assert krippendorff_alpha(TEXTBOOK, level=level).value == pytest.approx(alpha, abs=5e-4)


def test_krippendorff_names_and_nan_as_missing() -> None:
    """Q4: nominal α knows names, and NaN is a missing rating as None is."""
    named = [[NO if v is NO else f"label {v}" for v in row] for row in TEXTBOOK]
    assert krippendorff_alpha(named, level="nominal").value == pytest.approx(0.743, abs=5e-4)
    holes = [[math.nan if v is NO else v for v in row] for row in TEXTBOOK]
    assert krippendorff_alpha(holes, level="interval").value == pytest.approx(0.849, abs=5e-4)


def test_one_dissent_in_23_units_is_chance() -> None:
    """Q4: D_o = 2/46, D_e = 90/(46·45): α = 1 - 2·45/90 = 0."""
    assert krippendorff_alpha([["a"] * 23, ["a"] * 22 + ["b"]], level="nominal").value == pytest.approx(0.0, abs=1e-12)


def test_three_raters_with_gaps_agree_fully() -> None:
    """Q4."""
    assert krippendorff_alpha([[1, 1, 2], [1, 1, NO], [NO, 1, 2]], level="nominal").value == 1.0


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval", "ratio"])
@pytest.mark.parametrize(
    ("ratings", "reason"),
    [
        ([[1, 1, 1], [1, 1, 1]], "all ratings are equal"),
        ([[0, 0], [0, 0]], "all ratings are equal"),
        ([[1, 2, 3]], "no unit has two ratings"),
        ([[1, NO], [NO, 2]], "no unit has two ratings"),
        ([], "no unit has two ratings"),
    ],
)
def test_undefined_alpha_says_why(ratings: list[list[Any]], reason: str, level: Level) -> None:
    """Q4: constant data and a lone coder are undefined, not 0, not 1 and no exception."""
    figure = krippendorff_alpha(ratings, level=level)
    assert figure.value is None
    assert figure.reason is not None
    assert reason in figure.reason


def test_krippendorff_refuses_what_it_cannot_measure() -> None:
    """Q4."""
    with pytest.raises(ValueError, match="must be numbers"):
        krippendorff_alpha([["a", "b"], ["a", "b"]], level="ordinal")
    with pytest.raises(ValueError, match="0 or more"):
        krippendorff_alpha([[-1, 2], [1, 2]], level="ratio")
    with pytest.raises(ValueError, match="one entry per unit"):
        krippendorff_alpha([[1, 2], [1]], level="nominal")


def test_cohen_kappa() -> None:
    """Q4: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: p_o = .7, p_e = .5·.6 + .5·.4 = .5, κ = .4."""
    first = ["yes"] * 25 + ["no"] * 25 + [NO]
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15 + ["yes"]
    assert cohen_kappa(first, second).value == pytest.approx(0.4)
    assert cohen_kappa(["a", "b"], ["b", "a"]).value == -1.0
    assert (
        cohen_kappa(["a", "a"], ["a", "a"]).reason == "all ratings are equal, so agreement cannot be told from chance"
    )
    assert cohen_kappa(["a", NO], [NO, "a"]).reason == "no unit has ratings of both"


def test_fleiss_kappa_of_ten_patients() -> None:
    """Q4: the ten subjects, fourteen raters and five categories that textbooks print: P̄ .378, P_e .213, κ .210."""
    counts = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    assert fleiss_kappa(counts).value == pytest.approx(0.210, abs=5e-4)


def test_fleiss_kappa_does_not_rescale_unequal_counts() -> None:
    """Q4: a 1-1 split contributes 0, whatever other units have: P̄ = (0 + 1)/2, P_e = (3/4)² + (1/4)², κ = -⅓.

    With three raters on the second unit: P̄ = ½, P_e = (4/5)² + (1/5)² = .68, κ = -.5625.
    """
    assert fleiss_kappa([[1, 1], [2, 0]]).value == pytest.approx(-1 / 3)
    assert fleiss_kappa([[1, 1], [3, 0]]).value == pytest.approx(-0.5625)
    assert fleiss_kappa([[1, 1], [3, 0], [1, 0]]).value == pytest.approx(-0.5625)
    assert fleiss_kappa([[2, 0], [3, 0]]).reason == "all ratings are equal, so agreement cannot be told from chance"
    assert fleiss_kappa([[1, 0], [0, 1]]).reason == "no unit has two raters"


def test_raw_agreement() -> None:
    """Q4: unit 1 agrees, unit 2 does not, unit 3 has one rating; three raters (a, a, b) have one of three pairs."""
    assert raw_agreement([[1, 1, 2], [1, 2, NO]]).value == 0.5
    assert raw_agreement([["a"], ["a"], ["b"]]).value == pytest.approx(1 / 3)
    assert raw_agreement([["a"]]).reason == "no unit has two ratings"


def test_bradley_terry_strengths() -> None:
    """Q4: run until it stands still; two iterations would still be off in the second digit."""
    result = bradley_terry_strengths([[0, 9, 8], [1, 0, 7], [2, 3, 0]])
    assert result.values == pytest.approx((0.737, 0.163, 0.100), abs=5e-4)
    assert result.iterations >= 20
    stopped = bradley_terry_strengths([[0, 9, 8], [1, 0, 7], [2, 3, 0]], max_iterations=2)
    assert stopped.values is None
    assert stopped.reason is not None
    assert "still moving" in stopped.reason


def test_two_items_have_the_odds_of_their_wins() -> None:
    """Q4: 3 wins to 1 -> .75 and .25; a tie is half a win each."""
    assert bradley_terry_strengths([[0, 3], [1, 0]]).values == pytest.approx((0.75, 0.25))
    assert bradley_terry_strengths([[0, 2.5], [0.5, 0]]).values == pytest.approx((5 / 6, 1 / 6))


@pytest.mark.parametrize("wins", [[[0, 5], [0, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0], [0, 0]]])
def test_strengths_that_no_data_pins_down(wins: list[list[float]]) -> None:
    """Q4: never lost, never met."""
    result = bradley_terry_strengths(wins)
    assert result.values is None
    assert result.reason is not None
    assert "never lost" in result.reason


def test_majority_keeps_ties() -> None:
    """Q4: two raters who disagree are a tie in either order, not always A; it is sent to a third."""
    assert majority(["A", "B", "A"]).value == "A"
    for votes in (["A", "B"], ["B", "A"]):
        tie = majority(votes)
        assert tie.value is None
        assert tie.tied
        assert set(tie.leaders) == {"A", "B"}
    assert majority(["A", "B", "B", "A", "C", NO]).leaders == ("A", "B")
    nobody = majority([NO, math.nan])
    assert (nobody.value, nobody.tied, nobody.n) == (None, False, 0)


@pytest.mark.parametrize(
    ("agreement", "ceiling"), [(0.63, 0.755), (0.73, 0.839), (0.81, 0.894), (0.5, 0.5), (1.0, 1.0)]
)
def test_noise_ceiling(agreement: float, ceiling: float) -> None:
    """E1."""
    assert noise_ceiling(agreement).value == pytest.approx(ceiling, abs=5e-4)


def test_noise_ceiling_under_chance_is_undefined() -> None:
    """E1."""
    assert noise_ceiling(0.49).reason == "raters agree less often than coins would"


def test_cusum_steps() -> None:
    """Q5: ln(.26/.11) = .860201 up, ln(.74/.89) = -.184571 down, never under 0."""
    assert cusum_step(0.0, wrong=True, accuracy=0.89) == pytest.approx(0.860201, abs=1e-6)
    assert cusum_step(1.0, wrong=False, accuracy=0.89) == pytest.approx(0.815429, abs=1e-6)
    assert cusum_step(0.1, wrong=False, accuracy=0.89) == 0.0
    with pytest.raises(ValueError, match="accuracy must be in"):
        cusum_step(0.0, wrong=True, accuracy=0.1)


@pytest.mark.parametrize(("true_accuracy", "golds", "runs"), [(0.89, 656, 1500), (0.74, 34, 3000), (0.63, 18, 3000)])
def test_cusum_run_lengths(true_accuracy: float, golds: int, runs: int) -> None:
    """Q5: about 656 golds between false alarms at .89; 34 to find .74, 18 to find .63 (mean of many runs, ± 8 %)."""
    dice = random.Random(7)
    total = 0
    for _ in range(runs):
        state = 0.0
        while state <= ALARM:
            state = cusum_step(state, wrong=dice.random() >= true_accuracy, accuracy=0.89)
            total += 1
    assert total / runs == pytest.approx(golds, rel=0.08)


def test_the_plain_rule_over_ten_golds() -> None:
    """Q5: 8.8 % false alarms a look at .89, and a real fall to .74 is found half of the time."""
    stopped = [k for k in range(11) if plain_shortfall(k, 10, accuracy=0.89)]
    assert stopped == list(range(8))
    for hundredths in range(20, 100, 5):  # exactly 15 points off is not over 15 points off
        assert not plain_shortfall(hundredths - 15, 100, accuracy=hundredths / 100)

    def chance(p: float) -> float:
        return sum(math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in stopped)

    assert chance(0.89) == pytest.approx(0.088, abs=5e-4)
    assert chance(0.74) == pytest.approx(0.5, abs=0.01)
