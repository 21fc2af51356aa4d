"""L3: what of the reward model's pairs is about answers of the policy now serving, and weights that make it enough."""

from __future__ import annotations

import pytest
from made_episodes import answer, episode, said, user

from thumbwheel.config import FeedbackSettings, RewardSettings
from thumbwheel.errors import SettingError
from thumbwheel.records import Preference
from thumbwheel.signals.fresh import Freshness, freshened, freshness, prompts_to_sample
from thumbwheel.signals.pairs import preferences


def pair(version: str | None, weight: float = 1.0) -> Preference:
    return Preference(prompt=(user("q"),), chosen=user("a"), rejected=user("b"), weight=weight, policy_version=version)


def test_the_version_of_a_pair_is_that_of_both_answers() -> None:
    """L3: None where they are of two versions or it is unknown; an edit is of the version whose answer was edited."""

    def of(*versions: str | None) -> str | None:
        one, other = (
            answer(id, id, attempt=n, policy_version=v) for n, (id, v) in enumerate(zip("ab", versions, strict=True))
        )
        choice = said("f", "choice", {"chosen": "a"}, shown=("a", "b"))
        return preferences([episode(one, other, feedback=[choice])], FeedbackSettings()).rows[0].policy_version

    assert of("v1", "v1") == "v1"
    assert of("v1", "v2") is None
    assert of(None, None) is None
    edit = said("f", "edit", {"text": "better"}, step="a")
    (row,) = preferences([episode(answer("a", "x", policy_version="v3"), feedback=[edit])], FeedbackSettings()).rows
    assert row.policy_version == "v3"
    assert "policy_version" not in pair(None).model_dump(mode="json")  # snapshots of older rows keep their hash


def test_the_share_is_told_by_weight() -> None:
    """2 of 4 pairs, and 3 of 8 of the weight."""
    found = freshness([pair("v2"), pair("v1", 4.0), pair(None), pair("v2", 2.0)], "v2")
    assert found == Freshness(rows=4, fresh=2, weight=8.0, fresh_weight=3.0)
    assert found.line("v2") == "2 of 4 pairs (38% of the weight) are answers of v2"
    assert freshness([], "v2").share == 0.0


@pytest.mark.parametrize(("rows", "fresh", "share", "each", "needed"), [
    (70, 0, 0.3, 3, 10),   # 30 of 100 pairs
    (100, 30, 0.3, 3, 0),  # enough
    (100, 90, 0.3, 3, 0),  # more than enough
    (10, 0, 0.3, 3, 2),    # 3/2.1 = 1.43
    (100, 20, 0.5, 1, 60), # 80 of 160
    (0, 0, 0.3, 3, 0),
    (100, 0, 0.0, 3, 0),
])  # fmt: skip
def test_how_many_prompts_make_it_enough(rows: int, fresh: int, share: float, each: int, needed: int) -> None:
    """L3, by hand: ⌈(s N - F) / ((1 - s) k)⌉."""
    assert prompts_to_sample(Freshness(rows, fresh, rows, fresh), share=share, pairs_per_prompt=each) == needed


def test_weights_hold_the_share_and_their_sum() -> None:
    """L3, by hand: one fresh pair of ten is worth 3, the others 7/9 each: 30 %, and 10 in all."""
    rows = [pair("v2"), *[pair("v1")] * 9]
    found = freshened(rows, "v2", share=0.3, cap=4.0)
    assert [row.weight for row in found] == pytest.approx([3.0] + [7 / 9] * 9)
    assert sum(row.weight for row in found) == pytest.approx(10.0)
    assert freshness(found, "v2").share == pytest.approx(0.3)


def test_no_pair_counts_more_than_the_cap() -> None:
    """L3, bounded: 2 and 8/9, so 20 %."""
    found = freshened([pair("v2"), *[pair("v1")] * 9], "v2", share=0.3, cap=2.0)
    assert [row.weight for row in found] == pytest.approx([2.0] + [8 / 9] * 9)
    assert freshness(found, "v2").share == pytest.approx(0.2)


def test_weights_that_differ_keep_their_ratio() -> None:
    """Fresh 1 and 3 of 40: 12 of 40 wanted, so times 3; the others 36 -> 28, so times 7/9."""
    found = freshened([pair("v2", 1.0), pair("v2", 3.0), pair(None, 36.0)], "v2", share=0.3, cap=4.0)
    assert [row.weight for row in found] == pytest.approx([3.0, 9.0, 28.0])


@pytest.mark.parametrize("versions", [["v1"] * 3, ["v2"] * 3, ["v2", "v1"], []])
def test_none_fresh_all_fresh_or_enough_stays_as_it_is(versions: list[str]) -> None:
    rows = [pair(version) for version in versions]
    assert freshened(rows, "v2", share=0.3, cap=4.0) == rows


def test_share_and_cap_out_of_range_are_told() -> None:
    with pytest.raises(SettingError, match="fresh_share"):
        freshened([pair("v2")], "v2", share=1.0, cap=4.0)
    with pytest.raises(SettingError, match="fresh_weight_cap"):
        freshened([pair("v2")], "v2", share=0.3, cap=0.5)
    with pytest.raises(SettingError, match="makes no pair"):
        prompts_to_sample(Freshness(1, 0, 1, 0), share=0.3, pairs_per_prompt=0)


def test_the_default_is_three_tenths() -> None:
    """L3."""
    assert RewardSettings().fresh_share == 0.3
