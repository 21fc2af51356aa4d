"""Win rate: ties count half, prompts are the witnesses, and little evidence gives a wide interval."""

from __future__ import annotations

import numpy as np
import pytest

from thumbwheel.config import EvalSettings, GateSettings
from thumbwheel.errors import DataError
from thumbwheel.evals.gates import gates
from thumbwheel.evals.judges import Votes, blind_votes, open_judge
from thumbwheel.evals.policy import check_held_out, win_rate
from thumbwheel.records import Figure, Message, Prompt

SETTINGS = EvalSettings(bootstrap_samples=500)


def votes(new_wins: list[float], *, prompts: list[str] | None = None, new_is_a: list[bool] | None = None) -> Votes:
    n = len(new_wins)
    return Votes(
        "rule",
        "rule",
        np.array(new_wins, dtype=float),
        np.array([i % 2 == 0 for i in range(n)] if new_is_a is None else new_is_a, dtype=bool),
        np.ones(n, dtype=bool),
        tuple(prompts or [f"p{i}" for i in range(n)]),
        ("row 0: it broke",),
    )


def figures(*args: object, **more: object) -> dict[str, Figure]:
    made = win_rate(votes(*args, **more), settings=SETTINGS, seed=0)  # type: ignore[arg-type]
    return {figure.name: figure for figure in made}


def test_ties_count_half_and_the_interval_is_wilsons() -> None:
    """E2: by hand, 15 wins, 10 ties, 15 losses -> .5 from .351995 to .648005."""
    made = figures([1.0] * 15 + [0.5] * 10 + [0.0] * 15)
    rate = made["win_rate"]
    assert rate.value == 0.5
    assert (rate.low, rate.high) == pytest.approx((0.351995, 0.648005), abs=1e-6)
    assert rate.n == 40
    assert [made[name].value for name in ("win_share", "tie_share", "loss_share")] == [0.375, 0.25, 0.375]


def test_thirty_seven_of_fifty_four() -> None:
    """E2: p = 37/54; 54 prompts are 53 free ones, so Wilson at n = 53: .551284 to .794056, by hand."""
    rate = figures([1.0] * 37 + [0.0] * 17)["win_rate"]
    assert rate.value == pytest.approx(0.685185, abs=1e-6)
    assert (rate.low, rate.high) == pytest.approx((0.551284, 0.794056), abs=1e-6)


def test_the_bootstrap_is_printed_beside_it() -> None:
    """E2: for 400 fair coins both intervals are about 1.96 · .5/20 = .049 to each side."""
    made = figures([1.0, 0.0] * 200)
    boot = made["win_rate_bootstrap"]
    assert boot.value == 0.5
    assert boot.low == pytest.approx(0.451, abs=0.01)
    assert boot.high == pytest.approx(0.549, abs=0.01)
    assert made["win_rate"].low == pytest.approx(0.451, abs=0.005)


def test_ten_answers_to_a_prompt_are_not_ten_witnesses() -> None:
    """E2: the same votes are less sure when they come from a tenth of the prompts, and both intervals say so."""
    outcome = [1.0] * 140 + [0.0] * 60
    apart = figures(outcome)
    together = figures(outcome, prompts=[f"p{i // 10}" for i in range(200)])
    for name in ("win_rate", "win_rate_bootstrap"):
        wide, narrow = together[name], apart[name]
        assert wide.value == narrow.value == 0.7
        assert wide.high - wide.low > 2.5 * (narrow.high - narrow.low)  # type: ignore[operator]


def test_one_prompt_is_one_witness_and_says_so() -> None:
    """E2: a sure win on one prompt, sampled once or five times: Wilson at n = 1 is .206549 to 1, and no promotion."""
    for outcome in ([1.0], [1.0] * 5):
        rate = figures(outcome, prompts=["p"] * len(outcome))["win_rate"]
        assert rate.value == 1.0
        assert (rate.low, rate.high) == pytest.approx((0.206549, 1.0), abs=1e-6)
        assert "one prompt only" in rate.note
        (gate, *_) = gates([rate], GateSettings())
        assert not gate.passed


def test_all_wins_still_have_a_lower_end() -> None:
    """E2: twenty of twenty is .838874 to 1, never 1 to 1."""
    rate = figures([1.0] * 20)["win_rate"]
    assert (rate.low, rate.high) == pytest.approx((0.838874, 1.0), abs=1e-6)


def test_rows_without_a_vote_are_counted_and_in_no_rate() -> None:
    """Pitfall: unscored is excluded and counted; above a set share the evaluation fails and gives the first reason."""
    made = figures([1.0, np.nan] + [1.0, 0.0] * 4 + [0.0])
    assert made["win_rate"].value == 0.5
    assert made["win_rate"].n == 10
    assert made["unvoted"].value == 1
    with pytest.raises(DataError, match=r"no vote on 1 of 2 rows.*row 0: it broke"):
        figures([1.0, np.nan])
    with pytest.raises(DataError, match="no vote on 3 of 3"):
        win_rate(votes([np.nan] * 3), settings=SETTINGS, seed=0, max_unvoted_share=1.0)


def test_no_row_is_an_error() -> None:
    """E2."""
    with pytest.raises(DataError, match="no vote to count"):
        figures([])


def test_a_judge_that_leans_to_one_side_is_reported() -> None:
    """Q6: always A gives no policy the win and is named; a fair judge is not."""
    leaning = figures([1.0, 0.0] * 20)  # the new answer stands on A in every even row, and wins exactly there
    assert leaning["win_rate"].value == 0.5
    assert leaning["side_a_share"].value == 1.0
    assert "leans to one side" in leaning["side_a_share"].note
    fair = figures([1.0] * 40)
    assert fair["side_a_share"].value == 0.5
    assert fair["side_a_share"].note == ""


def test_the_same_seed_gives_the_same_figures() -> None:
    """Reproducible from a seed; another seed moves the bootstrap only."""
    outcome = [1.0] * 25 + [0.0] * 14
    one, same = figures(outcome), figures(outcome)
    other = {f.name: f for f in win_rate(votes(outcome), settings=SETTINGS, seed=1)}
    assert one == same
    assert [name for name in one if one[name] != other[name]] == ["win_rate_bootstrap"]


def test_a_judge_to_a_figure_and_back_again() -> None:
    """E2: the shorter answer wins 30 of 40; swapping the policies gives 10 of 40, whatever the seeds."""
    prompts: list[Prompt] = [(Message(role="user", content=str(i)),) for i in range(40)]
    new, parent = ["a"] * 30 + ["aaa"] * 10, ["aa"] * 40
    for a, b, expected in ((new, parent, 0.75), (parent, new, 0.25)):
        for seed in (0, 1):
            made = win_rate(blind_votes(open_judge("shorter"), prompts, a, b, seed=seed), settings=SETTINGS, seed=seed)
            assert made[0].value == expected
            assert made[0].note == "judge: shorter (rule)"


def test_prompts_that_were_trained_on_are_refused() -> None:
    """E2: held out means held out by text."""
    one: Prompt = (Message(role="user", content="one"),)
    two: Prompt = (Message(role="user", content="two"),)
    check_held_out([one], [two])
    with pytest.raises(DataError, match="1 of 2 held-out prompts were also trained on"):
        check_held_out([one, two], [two])
