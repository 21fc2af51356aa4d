"""Advantages at values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thumbwheel.formulas.advantages import (
    GroupCounts,
    advantage_rules,
    from_choice,
    from_ranking,
    group_counts,
    with_spread,
)

NAN = math.nan
ONE_GOOD = [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("grpo", [1.499997, -0.499999, -0.499999, -0.499999]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -0.333333, -0.333333, -0.333333]),
        # one group is the whole batch, so the two agree
        ("reinforce_pp", [1.499997, -0.499999, -0.499999, -0.499999]),
        ("batch", [1.499997, -0.499999, -0.499999, -0.499999]),
    ],
)
def test_one_good_answer_among_four(rule: str, expected: list[float]) -> None:
    """P5: mean .25, unbiased deviation .5; the others' mean is 0 for the good one and 1/3 for the rest."""
    assert advantage_rules.get(rule)(ONE_GOOD, [3] * 4).tolist() == pytest.approx(expected, abs=1e-6)


def test_rewards_that_differ_in_the_sixth_digit() -> None:
    """P5: 5e-6 / (7.07107e-6 + 1e-6)."""
    assert advantage_rules.get("grpo")([1.00000, 1.00001], [0, 0]).tolist() == pytest.approx(
        [-0.619497, 0.619497], abs=1e-6
    )


@pytest.mark.parametrize("rule", list(advantage_rules))
@pytest.mark.parametrize(("value", "n"), [(0.3, 6), (1.9, 32), (-7.7, 7), (1e-30, 5), (1e30, 9)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_rewards_give_exactly_zero(rule: str, value: float, n: int, dtype: type) -> None:
    """P5: rounding is no advantage."""
    assert advantage_rules.get(rule)(np.full(n, value, dtype), np.zeros(n, int)).tolist() == [0.0] * n


@pytest.mark.parametrize("rule", list(advantage_rules))
def test_an_equal_group_beside_another_stays_at_zero(rule: str) -> None:
    """P5: six times .3 in float32, beside a group that is not equal: exact zeros, but for the rule that has no groups."""
    rewards = np.concatenate([np.full(6, 0.3, np.float32), np.asarray([0.0, 0.6], np.float32)])
    advantage = advantage_rules.get(rule)(rewards, [0] * 6 + [1] * 2)
    assert advantage[7] > 0 > advantage[6]
    if rule != "reinforce_pp":
        assert advantage[:6].tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("grpo", [1.154699, 0.0, -0.577349, -0.577349]),  # over (1, 0, 0): 2/3 / (.577350 + 1e-6)
        ("dr_grpo", [2 / 3, 0.0, -1 / 3, -1 / 3]),
        ("rloo", [1.0, 0.0, -0.5, -0.5]),
        ("reinforce_pp", [1.154699, 0.0, -0.577349, -0.577349]),
        ("batch", [1.154699, 0.0, -0.577349, -0.577349]),
    ],
)
def test_a_missing_reward_is_in_no_baseline(rule: str, expected: list[float]) -> None:
    """P5: rewards (1, None, 0, 0)."""
    assert advantage_rules.get(rule)([1.0, NAN, 0.0, 0.0], [0] * 4).tolist() == pytest.approx(expected, abs=1e-6)


def test_groups_are_compared_within_and_scaled_over_the_batch() -> None:
    """P5: (1, 0) and (3, 3): centred ±½ and 0, deviation √(.5/3) = .408248. Without groups: mean 1.75, deviation 1.5."""
    rewards, group = [1.0, 3.0, 0.0, 3.0], [0, 8, 0, 8]
    assert advantage_rules.get("batch")(rewards, group).tolist() == pytest.approx(
        [1.224742, 0.0, -1.224742, 0.0], abs=1e-5
    )
    assert advantage_rules.get("reinforce_pp")(rewards, group).tolist() == pytest.approx(
        [-0.5, 0.833333, -1.166667, 0.833333], abs=1e-5
    )


def test_one_to_nine() -> None:
    """R7: unbiased ±1.460593 … 0."""
    assert advantage_rules.get("reinforce_pp")(range(1, 10), range(9)).tolist() == pytest.approx(
        [-1.460593, -1.095445, -0.730297, -0.365148, 0.0, 0.365148, 0.730297, 1.095445, 1.460593], abs=2e-6
    )


def test_groups_that_teach_nothing_are_counted_by_end() -> None:
    """P5: all right, all wrong twice, mixed, and one with a missing reward whose other is alone."""
    rewards = [1, 1, 0, 0, 0, 0, 1, 0, NAN, 0]
    group = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert group_counts(rewards, group) == GroupCounts(too_easy=1, too_hard=2, flat=3, missing=1, groups=5)
    assert with_spread(rewards, group).tolist() == [False] * 6 + [True] * 2 + [False] * 2


def test_which_end_needs_a_scale() -> None:
    """P5: a batch that is all .5 lies at no end; between 0 and 1 it lies in the middle; from .5 on it is right."""
    rewards, group = [0.5] * 4, [0, 0, 1, 1]
    flat = GroupCounts(too_easy=0, too_hard=0, flat=2, missing=0, groups=2)
    assert group_counts(rewards, group) == flat
    assert group_counts(rewards, group, best=1.0, worst=0.0) == flat
    assert group_counts(rewards, group, best=0.5, worst=0.0).too_easy == 2
    assert group_counts(rewards, group, best=1.0, worst=0.5).too_hard == 2


def test_a_persons_pick() -> None:
    """P5: the third of four; RLOO makes 1 and -1/3 of it. Nothing picked is no reward, and no advantage."""
    picked = from_choice(2, 4)
    assert picked.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert advantage_rules.get("rloo")(picked, [0] * 4).tolist() == pytest.approx([-1 / 3, -1 / 3, 1.0, -1 / 3])
    nothing = from_choice(None, 3)
    assert np.isnan(nothing).all()
    assert advantage_rules.get("grpo")(nothing, [0] * 3).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("order", "n", "expected"),
    [
        ([[0], [2], [1]], 3, [1.0, 0.0, 0.5]),
        ([[2], [0, 1]], 3, [0.25, 0.25, 1.0]),
        ([[0, 1, 2]], 3, [0.5, 0.5, 0.5]),
        ([[1], [0]], 4, [0.0, 1.0, NAN, NAN]),
        ([[3]], 4, [NAN] * 4),
        ([], 2, [NAN, NAN]),
    ],
)
def test_a_persons_ranking(order: list[list[int]], n: int, expected: list[float]) -> None:
    """P5: the share of the others that it beat, a tie counting half; what was not ranked has no reward."""
    assert from_ranking(order, n).tolist() == pytest.approx(expected, nan_ok=True)
