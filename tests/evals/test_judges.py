"""Blindness: a judge never learns which policy stands on which side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from thumbwheel.errors import DataError, RegistryError, SettingError
from thumbwheel.evals.judges import Floats, RuleJudge, ScoreJudge, blind_votes, open_judge, sides
from thumbwheel.records import Message, Origin, Prompt


def prompts(n: int) -> list[Prompt]:
    return [(Message(role="user", content=f"question {i}"),) for i in range(n)]


def likes_b(prompt: Prompt, text: str) -> float:
    return float(text.count("b"))


class AlwaysA:
    name, origin = "always_a", "rule"

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats:
        return np.ones(len(a))


class Returning:
    name = "returning"
    origin: Origin = "model"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats:
        return np.asarray(self.answer)


def test_a_rule_votes_for_the_higher_score_whatever_the_side() -> None:
    """E2: fifty pairs in which the new answer has the letter; every seed gives the new answer every vote."""
    for seed in range(5):
        votes = blind_votes(RuleJudge("b", likes_b), prompts(50), ["b"] * 50, ["a"] * 50, seed=seed)
        assert votes.new_wins.tolist() == [1.0] * 50


def test_swapping_the_policies_mirrors_a_fair_judges_votes() -> None:
    """E2: new against parent and parent against new are one comparison."""
    new, parent = ["b" * (i % 4) for i in range(40)], ["b" * (i % 3) for i in range(40)]
    one = blind_votes(RuleJudge("b", likes_b), prompts(40), new, parent, seed=1)
    other = blind_votes(RuleJudge("b", likes_b), prompts(40), parent, new, seed=2)
    assert (one.new_wins + other.new_wins).tolist() == [1.0] * 40


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_half_of_the_new_answers_stand_on_each_side(n: int) -> None:
    """E2: balanced, so that a side bias cancels; reproducible; another seed shuffles otherwise."""
    for seed in range(10):
        assert abs(int(sides(n, seed=seed).sum()) * 2 - n) <= n % 2
        assert sides(n, seed=seed).tolist() == sides(n, seed=seed).tolist()
    assert len({tuple(sides(20, seed=seed).tolist()) for seed in range(10)}) == 10


def test_a_judge_that_always_says_a_gives_neither_policy_the_win() -> None:
    """E2: pure side bias ends at one half; asking both orders makes every single pair a tie."""
    once = blind_votes(AlwaysA(), prompts(60), ["x"] * 60, ["y"] * 60, seed=3)
    assert once.new_wins.mean() == 0.5
    assert once.a_wins().tolist() == [1.0] * 60
    twice = blind_votes(AlwaysA(), prompts(60), ["x"] * 60, ["y"] * 60, seed=3, both_orders=True)
    assert twice.new_wins.tolist() == [0.5] * 60


def test_the_judge_sees_texts_and_no_names() -> None:
    """E2: what reaches the judge is prompts and two lists of texts; both policies stand on both sides."""
    seen: dict[str, list[str]] = {}

    class Spy(AlwaysA):
        def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats:
            seen.update(a=list(a), b=list(b))
            return np.full(len(a), 0.5)

    blind_votes(Spy(), prompts(10), [f"new {i}" for i in range(10)], [f"old {i}" for i in range(10)], seed=0)
    assert sum(text.startswith("new") for text in seen["a"]) == 5
    assert sum(text.startswith("new") for text in seen["b"]) == 5
    assert all(a.split()[1] == b.split()[1] for a, b in zip(seen["a"], seen["b"], strict=True))


def test_the_same_answer_twice_is_a_tie_and_nobody_is_asked() -> None:
    """E2."""
    votes = blind_votes(AlwaysA(), prompts(3), ["same ", "x", "\nq"], ["same", "y", "q"], seed=0)
    assert votes.asked.tolist() == [False, True, False]
    assert votes.new_wins[0] == votes.new_wins[2] == 0.5
    assert votes.a_wins().tolist() == [1.0]
    assert blind_votes(AlwaysA(), prompts(1), ["z"], ["z"], seed=0).new_wins.tolist() == [0.5]


def test_a_rule_that_raises_leaves_that_row_without_a_vote() -> None:
    """Pitfall: a reward function that raises on one row is unscored and counted, not a 0."""

    def fragile(prompt: Prompt, text: str) -> float:
        return 1.0 / len(text)

    votes = blind_votes(RuleJudge("fragile", fragile), prompts(3), ["ab", "", "a"], ["a", "a", "ab"], seed=0)
    assert np.isnan(votes.new_wins).tolist() == [False, True, False]
    assert votes.new_wins[[0, 2]].tolist() == [0.0, 1.0]
    assert len(votes.failures) == 1
    assert "ZeroDivisionError" in votes.failures[0]


def test_scores_closer_than_the_margin_are_a_tie() -> None:
    """E2: gaps .2 and .6 against a margin of .5."""
    judge = ScoreJudge("length", lambda prompts, texts: np.array([len(t) / 5 for t in texts]), tie_margin=0.5)
    assert judge.prefer(prompts(2), ["aa", "aaaa"], ["a", "a"]).tolist() == [0.5, 1.0]


def test_a_score_that_is_not_finite_is_no_vote() -> None:
    """Unknown is not zero: NaN and infinities of a broken reward model."""
    judge = ScoreJudge("rm", lambda prompts, texts: np.array([float(t) for t in texts]))
    made = judge.prefer(prompts(5), ["1", "inf", "nan", "inf", "-inf"], ["0", "0", "0", "inf", "0"])
    assert made[0] == 1.0
    assert np.isnan(made[1:]).all()


@pytest.mark.parametrize("answer", [[0.5, 1.5, 0.0], [0.5, 0.5], [-0.1, 0.0, 0.0], 1.0])
def test_a_judge_out_of_range_is_refused(answer: object) -> None:
    """E2: a vote is a probability, one a row."""
    with pytest.raises(DataError, match="out of range"):
        blind_votes(Returning(answer), prompts(3), ["a"] * 3, ["b"] * 3, seed=0)


def test_probabilities_pass_through_and_turn_with_the_side() -> None:
    """E2: .7 for side A is .3 for a new answer on side B."""
    votes = blind_votes(Returning([0.7] * 4), prompts(4), ["a"] * 4, ["b"] * 4, seed=0)
    assert votes.new_wins == pytest.approx(np.where(votes.new_is_a, 0.7, 0.3))


def test_no_prompt_and_unequal_lengths_are_refused() -> None:
    """E2."""
    with pytest.raises(DataError, match="no held-out prompt"):
        blind_votes(AlwaysA(), [], [], [], seed=0)
    with pytest.raises(DataError, match="2 prompts, 1 new"):
        blind_votes(AlwaysA(), prompts(2), ["a"], ["a", "b"], seed=0)


def test_a_judge_that_breaks_is_named() -> None:
    """E2: the error says which judge and why."""

    def broken(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        raise RuntimeError("no weights")

    with pytest.raises(DataError, match=r"'rm' failed: RuntimeError: no weights"):
        blind_votes(ScoreJudge("rm", broken), prompts(1), ["a"], ["b"], seed=0)


def test_judges_by_name() -> None:
    """E2: a registered rule, module:attr as a rule or a judge, a reward model's scorer."""
    assert open_judge("shorter").prefer(prompts(1), ["a"], ["aa"]).tolist() == [1.0]
    assert open_judge("longer").prefer(prompts(1), ["a"], ["aa"]).tolist() == [0.0]
    assert open_judge(f"{__name__}:likes_b", origin="simulated").origin == "simulated"
    assert open_judge(f"{__name__}:AlwaysA").name == "always_a"
    judge = open_judge("reward_model", scorer=lambda prompts, texts: np.array([float(len(t)) for t in texts]))
    assert judge.prefer(prompts(1), ["aa"], ["a"]).tolist() == [1.0]
    with pytest.raises(SettingError, match="no reward model"):
        open_judge("reward_model")
    with pytest.raises(SettingError, match="write_ballots"):
        open_judge("people")
    with pytest.raises(RegistryError, match="Did you mean 'longer'"):
        open_judge("longr")
    with pytest.raises(SettingError, match="neither a rule nor a judge"):
        open_judge("math:pi")
