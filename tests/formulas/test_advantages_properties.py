"""What must hold of every advantage rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas.advantages import (
    advantage_rules,
    from_choice,
    from_ranking,
    group_counts,
    with_spread,
)

calm = settings(derandomize=True, deadline=None, max_examples=100)
reward = st.one_of(st.just(math.nan), st.floats(-100, 100), st.sampled_from([0.0, 1.0]))
groups = st.lists(st.lists(reward, min_size=2, max_size=6), min_size=1, max_size=5)
BY_GROUP = ["grpo", "dr_grpo", "rloo", "batch"]


def flat(batch: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and groups of a batch, its groups not in the order of their numbers."""
    rewards = np.asarray([r for group in batch for r in group])
    return rewards, np.asarray([7 * (len(batch) - i) for i, group in enumerate(batch) for _ in group])


@calm
@given(groups, st.sampled_from(sorted(advantage_rules)))
def test_finite_and_centred(batch: list[list[float]], rule: str) -> None:
    """P5: never NaN; what a group gains it loses (over the batch, for the rule without groups); missing gives 0."""
    rewards, group = flat(batch)
    advantage = advantage_rules.get(rule)(rewards, group)
    assert advantage.shape == rewards.shape
    assert advantage.dtype == np.float64
    assert np.isfinite(advantage).all()
    assert not advantage[np.isnan(rewards)].any()
    for name in np.unique(group) if rule != "reinforce_pp" else [None]:
        part = advantage if name is None else advantage[group == name]
        assert abs(part.sum()) <= 1e-9 * (1 + np.abs(part).sum() + 100)


@calm
@given(groups, st.sampled_from(sorted(advantage_rules)))
def test_a_better_answer_never_gets_less(batch: list[list[float]], rule: str) -> None:
    """P5: within a group the order of advantages is the order of rewards."""
    rewards, group = flat(batch)
    advantage = advantage_rules.get(rule)(rewards, group)
    for name in np.unique(group):
        here = (group == name) & ~np.isnan(rewards)
        order = np.argsort(rewards[here], kind="stable")
        assert (np.diff(advantage[here][order]) >= -1e-9).all()


@calm
@given(groups, st.sampled_from(BY_GROUP), st.randoms(use_true_random=False))
def test_neither_order_nor_names_nor_neighbours_matter(batch: list[list[float]], rule: str, random) -> None:  # type: ignore[no-untyped-def]
    """P5: rows shuffled, groups renamed; and for rules within groups, a group alone gives what it gives in the batch."""
    rewards, group = flat(batch)
    fn = advantage_rules.get(rule)
    advantage = fn(rewards, group)
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = fn(rewards[order], 1000 - group[order])
    assert shuffled.tolist() == pytest.approx(advantage[order].tolist(), rel=1e-9, abs=1e-9)
    if rule != "batch":
        first = group == group[0]
        assert fn(rewards[first], group[first]).tolist() == advantage[first].tolist()


@calm
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.integers(-3, 3))
def test_a_shift_of_all_rewards_changes_nothing(values: list[float], shift: int) -> None:
    """P5: for every rule; only differences are known."""
    rewards = np.round(np.asarray(values), 3)
    for rule in advantage_rules:
        fn = advantage_rules.get(rule)
        here, there = fn(rewards, [0] * len(values)), fn(rewards + shift, [0] * len(values))
        assert there.tolist() == pytest.approx(here.tolist(), abs=1e-7)


@calm
@given(groups, st.integers(0, 4), st.sampled_from(BY_GROUP))
def test_a_missing_reward_is_as_if_the_answer_were_not_there(batch: list[list[float]], where: int, rule: str) -> None:
    """P5: an answer without reward joined to a group of two or more scored ones leaves their advantages as they are."""
    full = [[r for r in group if not math.isnan(r)] for group in batch]
    full = [group for group in full if len(group) > 1]
    if not full:
        return
    rewards, group = flat(full)
    with_missing = [[*g, math.nan] if i == where % len(full) else g for i, g in enumerate(full)]
    more, more_group = flat(with_missing)
    fn = advantage_rules.get(rule)
    scored = ~np.isnan(more)
    assert fn(more, more_group)[scored].tolist() == pytest.approx(fn(rewards, group).tolist(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("rule", BY_GROUP)
def test_a_group_of_one_is_refused(rule: str) -> None:
    """P5: a raw reward is no advantage; the error names the group and the way out."""
    with pytest.raises(ValueError, match=r"at least 2 answers.*group 9.*reinforce_pp"):
        advantage_rules.get(rule)([1.0, 0.0, 1.0], [3, 3, 9])
    assert advantage_rules.get("reinforce_pp")([1.0, 0.0], [0, 1]).tolist() == pytest.approx([0.707106, -0.707106])


@pytest.mark.parametrize("rule", list(advantage_rules))
def test_one_scored_answer_alone_has_no_advantage(rule: str) -> None:
    """P5: three of four crashed; the one that is left has nothing to be compared with."""
    assert advantage_rules.get(rule)([math.nan, 5.0, math.nan, math.nan], [0] * 4).tolist() == [0.0] * 4
    assert advantage_rules.get(rule)([math.nan] * 4, [0] * 4).tolist() == [0.0] * 4
    assert advantage_rules.get(rule)([], []).tolist() == []


def test_one_success_two_failures_five_crashes() -> None:
    """P5: of eight, the baseline comes from three."""
    rewards = [1.0, 0.0, 0.0, *[math.nan] * 5]
    assert advantage_rules.get("dr_grpo")(rewards, [0] * 8).tolist() == pytest.approx(
        [2 / 3, -1 / 3, -1 / 3] + [0.0] * 5
    )
    assert group_counts(rewards, [0] * 8).missing == 5


@pytest.mark.parametrize(
    ("rewards", "group", "says"),
    [
        ([1.0, math.inf], [0, 0], "finite"),
        ([1.0, -math.inf], [0, 0], "finite"),
        ([math.nan, -1e200, 1.0], [0, 0, 0], r"finite.*-1e\+200"),
        ([1.0, 2.0], [0], r"\(R,\)"),
        ([1.0, 2.0], [0.0, 0.0], "whole numbers"),
        ([[1.0, 2.0]], [[0, 0]], r"\(R,\)"),
    ],
)
def test_what_is_no_batch_of_rewards_is_refused(rewards: list[float], group: list[int], says: str) -> None:
    """P5."""
    for rule in advantage_rules:
        with pytest.raises(ValueError, match=says):
            advantage_rules.get(rule)(rewards, group)
    with pytest.raises(ValueError, match=says):
        group_counts(rewards, group)


@calm
@given(groups)
def test_counts_agree_with_advantages(batch: list[list[float]]) -> None:
    """P5: flat groups are those that teach nothing although two or more answers have a reward."""
    rewards, group = flat(batch)
    counts, advantage, spread = (
        group_counts(rewards, group),
        advantage_rules.get("rloo")(rewards, group),
        with_spread(rewards, group),
    )
    silent = [
        name
        for name in np.unique(group)
        if not advantage[group == name].any() and np.count_nonzero(~np.isnan(rewards[group == name])) > 1
    ]
    assert counts.flat == len(silent)
    assert counts.too_easy + counts.too_hard <= counts.flat
    assert counts.groups == len(batch)
    assert counts.missing == np.count_nonzero(np.isnan(rewards))
    assert {name for name in np.unique(group) if spread[group == name].any()} == {
        name for name in np.unique(group) if advantage[group == name].any()
    }


@calm
@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_ranking_sums_to_half_of_its_answers(order: list[int], tied: list[bool]) -> None:
    """P5: n answers share n/2, ties or not; better places get more, one place gets the same."""
    places: list[list[int]] = [[order[0]]]
    for answer, beside in zip(order[1:], tied, strict=True):
        if beside:
            places[-1].append(answer)
        else:
            places.append([answer])
    rewards = from_ranking(places, 6)
    assert rewards.sum() == pytest.approx(3.0)
    assert ((rewards >= 0) & (rewards <= 1)).all()
    by_place = [{float(rewards[answer]) for answer in place} for place in places]
    assert all(len(values) == 1 for values in by_place)
    line = [values.pop() for values in by_place]
    assert line == sorted(line, reverse=True)
    assert len(set(line)) == len(line)


@pytest.mark.parametrize("order", [[[0], [0]], [[3]], [[-1], [0]], [[0, 0]]])
def test_a_ranking_of_what_was_not_shown_is_refused(order: list[list[int]]) -> None:
    """P5."""
    with pytest.raises(ValueError, match="at most once"):
        from_ranking(order, 3)


@pytest.mark.parametrize("picked", [3, -1])
def test_a_pick_that_was_not_on_offer_is_refused(picked: int) -> None:
    """P5: Python would take -1 for the last."""
    with pytest.raises(ValueError, match="0 to 2"):
        from_choice(picked, 3)
