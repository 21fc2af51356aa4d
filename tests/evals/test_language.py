"""Language figures, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thumbwheel.config import EvalSettings
from thumbwheel.errors import DataError
from thumbwheel.evals.language import Answers, language_figures, words
from thumbwheel.records import Figure, Message, Prompt

SETTINGS = EvalSettings(bootstrap_samples=200)
LOOP = "a b c a b c a b c"  # 7 word 3-grams, "a b c" three times


def prompts(n: int) -> list[Prompt]:
    return [(Message(role="user", content=f"question {i}"),) for i in range(n)]


def answers(texts: list[str], **changed: object) -> Answers:
    n = len(texts)
    values: dict[str, object] = {
        "prompts": prompts(n),
        "texts": texts,
        "tokens": [10] * n,
        "finished": [True] * n,
        "reference_logp": [-10.0] * n,
    }
    return Answers(**{**values, **changed})  # type: ignore[arg-type]


def figures(new: Answers, parent: Answers, seed: int = 0) -> dict[str, Figure]:
    return {figure.name: figure for figure in language_figures(new, parent=parent, settings=SETTINGS, seed=seed)}


def test_nats_per_token_are_sums_over_sums() -> None:
    """E2: (-10 - 30) / (10 + 10) = -2 against (-10 - 10) / (10 + 5) = -4/3, not the mean of -1 and -2: a fall of 2/3."""
    made = figures(
        answers(["x", "y"], reference_logp=[-10.0, -30.0]),
        answers(["x", "y"], reference_logp=[-10.0, -10.0], tokens=[10, 5]),
    )
    assert made["nats_per_token"].value == -2.0
    assert made["nats_per_token_parent"].value == pytest.approx(-4 / 3)
    assert made["nats_per_token_change"].value == pytest.approx(-2 / 3)
    assert made["length_ratio"].value == pytest.approx(20 / 15)


def test_repetition_and_looping() -> None:
    """P6: one of two answers is a loop of 3/7; the parent has none."""
    made = figures(answers([LOOP, "plain words here"]), answers(["one two three four", "plain words here"]))
    assert made["repetition"].value == pytest.approx(3 / 14)
    assert made["repetition_parent"].value == 0.0
    assert made["repetition_rise"].value == pytest.approx(3 / 14)
    assert made["looping"].value == 0.5


@pytest.mark.parametrize("text", ["!" * 30, "哈" * 30, "ha ha ha ha ha ha ha ha", "ok " * 20, "ha\n" * 9])
def test_degenerate_text_is_seen_in_any_script(text: str) -> None:
    """P6: one sign over and over is repetition, in words, characters or marks."""
    assert figures(answers([text]), answers(["fine"]))["repetition"].value == 1.0


def test_a_table_or_a_list_is_not_a_loop() -> None:
    """P6: rules of a table are marks, not words."""
    table = "| name | age |\n|---|---|\n| Ann | 31 |\n| Bo | 27 |\n| Cy | 64 |\n"
    assert figures(answers([table]), answers(["fine"]))["repetition"].value == 0.0


def test_words() -> None:
    """E2: case is no difference; Chinese, Japanese and Korean characters are words; accents stay."""
    assert words("The the, THE!") == ["the", "the", "the"]
    assert words("我爱你 ok") == ["我", "爱", "你", "ok"]
    assert words("Café déjà vu") == ["café", "déjà", "vu"]
    assert words("مرحبا بكم في البيت") == ["مرحبا", "بكم", "في", "البيت"]
    assert words("hi!") == ["h", "i", "!"]
    assert words(" \n") == []


def test_empty_and_unfinished_answers_are_shares() -> None:
    """E2: two of four empty, three of four finished."""
    made = figures(answers(["", " \n", "a", "b"], finished=[True, True, True, False]), answers(["x"] * 4))
    assert made["empty"].value == 0.5
    assert made["finished"].value == 0.75
    assert made["empty_parent"].value == 0.0


def test_variety_is_compared_at_equal_words() -> None:
    """E2: of the new answer only its first four words count: a b a b -> 2/4; the parent's four -> 4/4."""
    made = figures(answers(["a b a b a b a b"]), answers(["one two three four"]))
    assert made["distinct_1"].value == 0.5
    assert made["distinct_2"].value == pytest.approx(2 / 3)
    assert made["distinct_1_parent"].value == 1.0


def test_kl_entropy_and_reward_are_means_where_given() -> None:
    """E2: log π/π_ref of (-8 + 10) and (-4 + 10) -> 4 nats; entropy (1, 3) -> 2; what was not given is unknown."""
    made = figures(
        answers(["x", "y"], policy_logp=[-8.0, -4.0], entropy=[1.0, 3.0], reward=[0.5, -1.5]), answers(["x", "y"])
    )
    assert made["kl_per_response"].value == 4.0
    assert made["entropy"].value == 2.0
    assert made["reward"].value == -0.5
    for name in ("kl_per_response_parent", "entropy_parent", "reward_parent"):
        assert made[name].value is None
        assert "was given" in made[name].note


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_one_broken_answer_makes_the_figure_unknown(broken: float) -> None:
    """Unknown is not zero: a NaN from a broken model must not vanish from a mean."""
    made = figures(answers(["x", "y"], reference_logp=[-10.0, broken]), answers(["x", "y"]))
    assert made["nats_per_token_change"].value is None
    assert "1 of 2 answers have no finite log-probability" in made["nats_per_token_change"].note
    assert made["length"].value == 10.0


def test_no_tokens_at_all() -> None:
    """Edge: nothing sampled has no rate a token, and no ratio over the parent's nothing."""
    nothing = {"tokens": [0, 0], "reference_logp": [0.0, 0.0]}
    made = figures(answers(["", ""], **nothing), answers(["x", "y"]))
    assert made["nats_per_token_change"].value is None
    assert made["length_ratio"].value == 0.0
    assert figures(answers(["x", "y"]), answers(["", ""], **nothing))["length_ratio"].value is None


def test_one_prompt_has_values_and_no_interval() -> None:
    """E2: said in the note."""
    change = figures(answers(["x"]), answers(["x"]))["nats_per_token_change"]
    assert (change.value, change.low, change.high) == (0.0, None, None)
    assert "one prompt only" in change.note


def test_intervals_hold_the_value_and_come_from_the_seed() -> None:
    """E2: reproducible; 60 answers with changes of 0 and -1 nat a token -> about -.5 ± 1.96 · .5/√60 = .127."""
    rng = np.random.default_rng(0)
    logp = -10.0 - 10.0 * rng.permutation([0.0, 1.0] * 30)
    new, parent = answers(["x y z"] * 60, reference_logp=logp), answers(["x y z"] * 60)
    made = figures(new, parent)["nats_per_token_change"]
    assert made.value == pytest.approx(-0.5)
    assert made.low == pytest.approx(-0.627, abs=0.03)
    assert made.high == pytest.approx(-0.373, abs=0.03)
    assert figures(new, parent) == figures(new, parent)
    assert figures(new, parent, seed=1) != figures(new, parent)


def test_what_does_not_line_up_is_refused() -> None:
    """E2: other prompts, another order, a wrong length, a negative count, nothing at all."""
    with pytest.raises(DataError, match="same prompts in the same order"):
        figures(answers(["x", "y"]), answers(["x"]))
    with pytest.raises(DataError, match="same prompts in the same order"):
        figures(answers(["x", "y"]), answers(["x", "y"], prompts=prompts(2)[::-1]))
    with pytest.raises(DataError, match=r"'tokens' of the new .* wrong shape"):
        figures(answers(["x", "y"], tokens=[1]), answers(["x", "y"]))
    with pytest.raises(DataError, match=r"'reward' of the parent .* wrong shape"):
        figures(answers(["x"]), answers(["x"], reward=1.0))
    with pytest.raises(DataError, match="negative"):
        figures(answers(["x"], tokens=[-1]), answers(["x"]))
    with pytest.raises(DataError, match="no answer"):
        figures(answers([]), answers([]))
