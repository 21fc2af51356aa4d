"""Figures of a reward model, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from thumbwheel.config import EvalSettings
from thumbwheel.errors import DataError, SettingError
from thumbwheel.evals.reward import RewardCheck, ScoredPairs, reward_figures, score_pairs
from thumbwheel.records import Figure, Message, Preference, Prompt

SETTINGS = EvalSettings(bootstrap_samples=200)
# Score right, wrong, even, and a tie of the people's.
FOUR = ScoredPairs(gap=[2.0, -1.0, 0.0, 3.0], label=[1, 1, 1, 0.5], prompts=list("abcd"), length_gap=[5, 5, -5, 5])


def check(pairs: ScoredPairs, seed: int = 0) -> RewardCheck:
    return reward_figures(pairs, settings=SETTINGS, seed=seed)


def figures(pairs: ScoredPairs) -> dict[str, Figure]:
    return {figure.name: figure for figure in check(pairs).figures}


def test_ties_stand_apart_and_an_even_score_is_half() -> None:
    """E1: right, wrong and even are (1 + 0 + ½)/3; the tie is in no accuracy."""
    made = figures(FOUR)
    assert made["reward_accuracy"].value == 0.5
    assert made["reward_accuracy"].n == 3
    assert made["tie_labels"].value == 0.25
    assert made["longer_accuracy"].value == pytest.approx(2 / 3)
    assert made["reward_over_longer"].value == pytest.approx(0.5 - 2 / 3)


def test_probabilistic_scores() -> None:
    """E1: gaps ln 9 and -ln 4 at τ = 1 say .9 and .2; of labels (1, 0) Brier .025 and log loss .164252 (golden values)."""
    made = figures(ScoredPairs(gap=[math.log(9), -math.log(4)], label=[1, 0], prompts=["a", "b"]))
    assert made["reward_brier"].value == pytest.approx(0.025)
    assert made["reward_log_loss"].value == pytest.approx(0.164252, abs=1e-6)
    # Both ways round the bins hold .9 -> 1, .2 -> 0, .1 -> 0, .8 -> 1: mean of (.1, .2, .1, .2).
    assert made["reward_ece"].value == pytest.approx(0.15)


def test_temperature_scales_the_probability_and_no_order() -> None:
    """R1: a gap of 2 ln 9 at τ = 2 is the gap of ln 9 at τ = 1."""
    one = figures(ScoredPairs(gap=[2 * math.log(9)], label=[1], prompts=["a"], temperature=2.0))
    assert one["reward_brier"].value == pytest.approx(0.01)
    with pytest.raises(SettingError, match="temperature"):
        check(replace(FOUR, temperature=0.0))


def test_the_order_in_which_a_pair_is_listed_changes_nothing() -> None:
    """E1: preferences list the chosen answer first; mirroring any pair leaves every figure as it is."""
    rng = np.random.default_rng(0)
    gap, label = rng.normal(size=80), (rng.random(80) < 0.7).astype(float)
    lengths, turn = rng.normal(size=80), rng.random(80) < 0.5
    pairs = ScoredPairs(gap=gap, label=label, prompts=[f"p{i // 2}" for i in range(80)], length_gap=lengths)
    mirrored = replace(
        pairs,
        gap=np.where(turn, -gap, gap),
        label=np.where(turn, 1 - label, label),
        length_gap=np.where(turn, -lengths, lengths),
    )
    for a, b in zip(check(pairs).figures, check(mirrored).figures, strict=True):
        assert a.value == pytest.approx(b.value), a.name
        assert a.low == pytest.approx(b.low), a.name


def test_auc_needs_no_second_class() -> None:
    """E1: all labels 1 and gaps (2, 1, -0.5): of the 9 couples gᵢ + gⱼ > 0 fails once -> 8/9."""
    made = figures(ScoredPairs(gap=[2.0, 1.0, -0.5], label=[1, 1, 1], prompts=list("abc")))
    assert made["reward_auc"].value == pytest.approx(8 / 9)


def test_a_model_that_measures_length_is_unmasked() -> None:
    """R9: labels favour the longer answer in 15 of 20 pairs; a score equal to the length has accuracy .75, but .5 balanced."""
    lengths = [3] * 15 + [-3] * 5
    made = figures(ScoredPairs(gap=lengths, label=[1] * 20, prompts=[f"p{i}" for i in range(20)], length_gap=lengths))
    assert made["reward_accuracy"].value == made["longer_accuracy"].value == 0.75
    assert made["reward_accuracy_length_balanced"].value == 0.5
    assert made["reward_over_longer"].value == 0.0


def test_accuracy_at_equal_lengths() -> None:
    """R9: right on 15 of 20 pairs whose better answer is longer and 4 of 20 whose is shorter: σ(½(ln 3 - ln 4)) = .464102."""
    right = [1] * 15 + [-1] * 5 + [1] * 4 + [-1] * 16
    made = figures(
        ScoredPairs(gap=right, label=[1] * 40, prompts=[f"p{i}" for i in range(40)], length_gap=[7] * 20 + [-7] * 20)
    )
    assert made["reward_accuracy"].value == pytest.approx(19 / 40)
    assert made["reward_accuracy_length_balanced"].value == pytest.approx((0.75 + 0.2) / 2)
    assert made["reward_accuracy_length_controlled"].value == pytest.approx(0.464102, abs=1e-3)


def test_the_human_ceiling_from_repeated_votes() -> None:
    """E1: 63 of 100 couples of votes agree -> (1 + √.26)/2 = .754951; ties are no decided votes."""
    votes = [[1.0, 1.0]] * 63 + [[1.0, 0.0]] * 37 + [[0.5, 1.0]]
    made = figures(ScoredPairs(gap=[1.0] * 101, label=[1] * 101, prompts=[f"p{i}" for i in range(101)], votes=votes))
    assert made["human_agreement"].value == pytest.approx(0.63)
    assert made["human_ceiling"].value == pytest.approx(0.754951, abs=1e-6)
    assert made["human_agreement"].note == "100 pairs of votes"


def test_three_voters_are_three_couples() -> None:
    """E1: (1, 1, 0) agrees in one of three couples, (0, 0, 0) in three of three -> 4/6."""
    made = figures(replace(FOUR, votes=[[1, 1, 0], [0, 0, 0], [], [1]]))
    assert made["human_agreement"].value == pytest.approx(4 / 6)
    assert figures(replace(FOUR, votes=[[1], [], [0.5, 0.5], [1]]))["human_ceiling"].value is None


def test_people_who_disagree_more_than_coins_have_no_ceiling() -> None:
    """E1: undefined, not a number under one half."""
    made = figures(replace(FOUR, votes=[[1, 0]] * 4))
    assert made["human_agreement"].value == 0.0
    assert made["human_ceiling"].value is None


def test_slices_stand_beside_the_longer_answer() -> None:
    """E1: per slice, in the order of their labels."""
    pairs = ScoredPairs(
        gap=[1, 1, -1, 1],
        label=[1, 1, 1, 1],
        prompts=list("abcd"),
        length_gap=[1, -1, 1, 1],
        slices={"topic": ["sport", "sport", "art", "art"]},
    )
    art, sport = check(pairs).slices
    assert (art.name, art.label, art.accuracy.value, art.longer.value) == ("topic", "art", 0.5, 1.0)
    assert (sport.label, sport.accuracy.value, sport.longer.value, sport.accuracy.n) == ("sport", 1.0, 0.5, 2)


def test_pairs_of_one_prompt_are_one_witness() -> None:
    """E1: the same 100 pairs from ten prompts are less sure than from a hundred."""
    gap = [1.0] * 70 + [-1.0] * 30
    apart = figures(ScoredPairs(gap=gap, label=[1] * 100, prompts=[f"p{i}" for i in range(100)]))
    together = figures(ScoredPairs(gap=gap, label=[1] * 100, prompts=[f"p{i // 10}" for i in range(100)]))
    for name in ("reward_accuracy", "reward_accuracy_bootstrap", "reward_auc"):
        widths = [made[name].high - made[name].low for made in (together, apart)]  # type: ignore[operator]
        assert widths[0] > 2 * widths[1]


def test_pairs_without_a_score_are_counted_and_left_out() -> None:
    """Pitfall: NaN is unscored; over a fifth of them fails."""
    made = figures(ScoredPairs(gap=[1.0] * 9 + [math.nan], label=[1] * 10, prompts=[f"p{i}" for i in range(10)]))
    assert made["reward_accuracy"].value == 1.0
    assert made["reward_accuracy"].n == 9
    assert made["unscored"].value == 1
    with pytest.raises(DataError, match="no finite score to 2 of 4 pairs"):
        check(replace(FOUR, gap=[math.nan, math.inf, 1.0, 1.0]))


def test_nothing_but_ties() -> None:
    """E1: unknown with the reason; the report can still be written."""
    made = figures(ScoredPairs(gap=[1.0, -1.0], label=[0.5, 0.5], prompts=["a", "b"], length_gap=[1, 2]))
    for name in ("reward_accuracy", "longer_accuracy", "reward_auc", "reward_accuracy_length_controlled"):
        assert made[name].value is None, name
        assert made[name].note, name
    assert made["tie_labels"].value == 1.0


def test_a_constant_model_is_a_coin() -> None:
    """E1: every gap 0 -> accuracy .5, AUC .5, Brier .25, log loss ln 2."""
    made = figures(ScoredPairs(gap=[0.0] * 6, label=[1, 0, 1, 1, 0, 1], prompts=list("abcdef")))
    assert made["reward_accuracy"].value == 0.5
    assert made["reward_auc"].value == 0.5
    assert made["reward_brier"].value == 0.25
    assert made["reward_log_loss"].value == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"label": [1, 1, 1]}, "'label' does not fit"),
        ({"label": [1, 1, 1, 2]}, "label is out of range"),
        ({"label": [1, 1, 1, math.nan]}, "label is out of range"),
        ({"prompts": ["a"]}, "'prompts' does not fit"),
        ({"length_gap": [1.0]}, "'length_gap' does not fit"),
        ({"votes": [[1]]}, "'votes' does not fit"),
        ({"slices": {"topic": ["x"]}}, "topic"),
        ({"gap": [], "label": [], "prompts": [], "length_gap": []}, "no held-out pair"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, object], said: str) -> None:
    """E1."""
    with pytest.raises(DataError, match=said):
        check(replace(FOUR, **changed))  # type: ignore[arg-type]


def test_preferences_and_a_scorer() -> None:
    """E1: the chosen answer is a; a tie is one half; origins are a slice where there are several."""
    prompt: Prompt = (Message(role="user", content="hi"),)

    def pair(chosen: str, rejected: str, **more: object) -> Preference:
        return Preference.model_validate(
            {
                "prompt": prompt,
                "chosen": {"role": "assistant", "content": chosen},
                "rejected": {"role": "assistant", "content": rejected},
                **more,
            }
        )

    data = [pair("good", "bad"), pair("bad", "good", p=0.75, origin="simulated"), pair("good", "good!", tie=True)]
    pairs = score_pairs(data, lambda prompts, texts: np.array([float("good" in text) for text in texts]))
    assert np.asarray(pairs.gap).tolist() == [1.0, -1.0, 0.0]
    assert pairs.label == [1.0, 0.75, 0.5]
    assert pairs.length_gap == [1, -1, -1]
    assert len(set(pairs.prompts)) == 1
    made = check(pairs)
    assert [one.label for one in made.slices] == ["person", "simulated"]
    assert made.figures[0].value == 0.5
    assert check(pairs) == made
