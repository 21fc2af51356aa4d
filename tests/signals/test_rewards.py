"""Rewards composed: the arithmetic, and scorers that fail in every way a scorer can."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.errors import SettingError, TrainingError
from thumbwheel.records import Message, Prompt
from thumbwheel.signals.rewards import Composed, CompositeReward, RewardTerm, Scorer, compose, lower_bound, per_answer

NAN = math.nan


def prompts_of(n: int) -> list[Prompt]:
    return [(Message(role="user", content=f"question {i}"),) for i in range(n)]


def fixed(*scores: Any) -> Scorer:
    """Scores by the number at the end of the text, so that they stay with their answer whatever the order."""
    return lambda prompts, texts: [scores[int(text.split()[-1])] for text in texts]


def texts_of(n: int) -> list[str]:
    return [f"answer {i}" for i in range(n)]


def composed(*terms: RewardTerm, n: int, share: float = 1.0, **options: Any) -> Composed:
    return compose(terms, prompts_of(n), texts_of(n), max_unscored_share=share, **options)


def test_human_reward_less_lambda_times_safety() -> None:
    """R6: R = R_human - λ R_safety with λ = 2; a column a term, as it came."""
    result = composed(
        RewardTerm("human", fixed(1.0, 0.5, -1.0)), RewardTerm("safety", fixed(0.0, 1.0, 0.25), weight=-2.0), n=3
    )
    assert result.total.tolist() == [1.0, -1.5, -1.5]
    assert result.total.dtype == np.float64
    assert result.columns["human"].tolist() == [1.0, 0.5, -1.0]
    assert result.columns["safety"].tolist() == [0.0, 1.0, 0.25]
    assert result.means() == {
        "human": pytest.approx(1 / 6),
        "safety": pytest.approx(1.25 / 3),
        "total": pytest.approx(-2 / 3),
    }
    assert result.line() == "3 answers, 3 with a reward"


def test_decays_multiply_and_never_help() -> None:
    """R6: × .3 and × .7 of a reward of 1 -> .21; of -1 -> -1.79 and not -.21; of 0 -> 0; no decay leaves all as it is."""
    terms = [
        RewardTerm("human", fixed(1.0, -1.0, 0.0, 2.0, 1.0)),
        RewardTerm("torque", fixed(0.3, 0.3, 0.3, 1.0, 0.0), role="multiply"),
        RewardTerm("repetition", fixed(0.7, 0.7, 0.7, 1.0, 1.0), role="multiply"),
    ]
    assert composed(*terms, n=5).total.tolist() == pytest.approx([0.21, -1.79, 0.0, 2.0, 0.0])


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1), st.floats(0, 1))
def test_a_stronger_decay_or_a_worse_answer_never_gets_more(a: float, b: float, d: float, e: float) -> None:
    """R6: the reward rises with the sum and with the factor, on both sides of 0."""
    low, high, weak, strong = min(a, b), max(a, b), max(d, e), min(d, e)
    result = composed(
        RewardTerm("human", fixed(low, high, high)), RewardTerm("d", fixed(weak, weak, strong), role="multiply"), n=3
    ).total
    assert result[0] <= result[1] + 1e-12
    assert result[2] <= result[1] + 1e-12


def raising_on_row_3(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """A checker that cannot read one answer."""
    if any(text == "answer 3" for text in texts):
        raise RuntimeError("cannot parse")
    return [float(text[-1]) for text in texts]


def raising_in_a_thread(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """The same, in a worker thread."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda text: raising_on_row_3([], [text])[0], texts))


@pytest.mark.parametrize("scorer", [raising_on_row_3, raising_in_a_thread])
def test_a_scorer_that_raises_on_one_answer_costs_one_answer(scorer: Scorer) -> None:
    """R6, pitfall: row 3 is unscored and counted, not 0; the others keep their scores."""
    result = composed(RewardTerm("checker", scorer), n=6, share=0.2)
    assert result.total.tolist() == pytest.approx([0, 1, 2, NAN, 4, 5], nan_ok=True)
    assert result.unscored == Counter({("checker", "RuntimeError: cannot parse"): 1})
    assert result.line() == "6 answers, 5 with a reward; unscored: checker: RuntimeError: cannot parse (1)"


def test_a_scorer_that_always_raises_ends_the_run_with_the_reason() -> None:
    """R6, pitfall: never all zeros; above the share that is allowed the run fails, and says why."""

    def broken(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        raise TimeoutError("no answer\nfrom the\tserver")

    with pytest.raises(
        TrainingError, match=r"Too many.*up to 0\.2.*1\.00.*TimeoutError: no answer from the server \(4\)"
    ):
        composed(RewardTerm("remote", broken), n=4, share=0.2)
    everything = composed(RewardTerm("remote", broken), n=4, share=1.0)
    assert np.isnan(everything.total).all()
    assert everything.means() == {"remote": None, "total": None}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no score"),
        (NAN, "NaN"),
        (np.float32("nan"), "NaN"),
        (math.inf, "infinite"),
        (-math.inf, "infinite"),
        (-1e200, "beyond 1e+100"),
        ("0.5", "no number but str"),
        ([0.5], "no number but list"),
        (np.array([0.5]), "no number but ndarray"),
        (1 + 2j, "no number but complex"),
        (10**400, "no number but int"),
    ],
)
def test_what_is_no_number_is_unscored(value: Any, reason: str) -> None:
    """R6, pitfall: a failed parse is not a score of 0."""
    result = composed(RewardTerm("term", fixed(1.0, value, 0.0)), n=3)
    assert result.total.tolist() == pytest.approx([1.0, NAN, 0.0], nan_ok=True)
    assert result.unscored == Counter({("term", reason): 1})


@pytest.mark.parametrize("value", [True, 1, np.int64(1), np.float32(1), np.array(1.0)])
def test_what_is_a_number_in_other_clothes_is_a_score(value: Any) -> None:
    """R6: a checker may say True."""
    assert composed(RewardTerm("term", fixed(value)), n=1).total.tolist() == [1.0]


@pytest.mark.parametrize(
    ("returned", "got"),
    [([1.0], "1 scores"), ([1.0] * 4, "4 scores"), ([], "0 scores"), (1.0, "float"), (None, "NoneType"),
     ("abc", "str"), ({0: 1.0, 1: 1.0, 2: 1.0}, "dict")],
)  # fmt: skip
def test_the_wrong_count_is_an_error(returned: Any, got: str) -> None:
    """R6, bad input: nobody can say which score is whose, so nothing is guessed."""
    with pytest.raises(TrainingError, match=f"'term' did not return one score an answer.*sequence of 3.*{got}"):
        composed(RewardTerm("term", lambda prompts, texts: returned), n=3)


def test_generators_arrays_and_tensors_are_sequences() -> None:
    """R6."""
    import torch

    forms: list[Callable[[Sequence[str]], Any]] = [
        lambda t: (float(x[-1]) for x in t),
        lambda t: np.arange(len(t), dtype=np.float32),
        lambda t: torch.arange(len(t), dtype=torch.bfloat16),
    ]
    for form in forms:
        result = composed(RewardTerm("term", lambda prompts, texts, form=form: form(texts)), n=3)
        assert result.total.tolist() == [0.0, 1.0, 2.0]


def as_they_come(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Results in the order the workers finish: the last one first."""
    turn = {text: threading.Event() for text in texts}

    def work(place: int, text: str) -> float:
        if place + 1 < len(texts):
            turn[texts[place + 1]].wait(5)
        turn[text].set()
        return float(text[-1])

    with ThreadPoolExecutor(len(texts)) as pool:
        jobs = [pool.submit(work, place, text) for place, text in enumerate(texts)]
        return [job.result() for job in as_completed(jobs)]


def by_halves(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """The second half first."""
    middle = len(texts) // 2
    return [float(text[-1]) for text in [*texts[middle:], *texts[:middle]]]


def one_off(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Each answer gets its neighbour's score."""
    return [float(texts[i - 1][-1]) for i in range(len(texts))]


def sorted_by_length(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Scores of the answers sorted, and not put back."""
    return [float(text[-1]) for text in sorted(texts, reverse=True)]


@pytest.mark.parametrize("scorer", [as_they_come, sorted_by_length, by_halves, one_off])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_the_wrong_order_is_found(scorer: Scorer, n: int) -> None:
    """R6, bad input: the same scores in another order, when the answers come in another order."""
    with pytest.raises(TrainingError, match="another order than it was given"):
        composed(RewardTerm("term", scorer), n=n, check_order=True)


def test_right_order_constant_and_random_scorers_pass_the_check() -> None:
    """R6: rounding in another batch, equal scores and dice are no proof of a wrong order."""
    dice = np.random.default_rng(1)
    for scorer in (
        fixed(1.0, 5.0, 2.0, None),
        fixed(0.5, 0.5, 0.5, 0.5),
        fixed(None, None, None, None),
        lambda p, t: [float(x[-1]) + 1e-5 * (t[0][-1] == x[-1]) for x in t],
        lambda p, t: dice.normal(size=len(t)),
    ):
        assert composed(RewardTerm("term", scorer), n=4, check_order=True).total.shape == (4,)


def test_a_close_race_in_the_wrong_order_is_found_too() -> None:
    """R6: scores that differ in the fourth digit are still told apart."""
    with pytest.raises(TrainingError, match="another order"):
        composed(RewardTerm("term", lambda p, t: [0.5 + 1e-4 * i for i in range(len(t))]), n=4, check_order=True)


def test_a_term_that_is_not_required_is_counted_and_gone_without() -> None:
    """R6: the optional term and the optional decay leave the reward of an answer they cannot score as it is."""
    terms = [
        RewardTerm("human", fixed(1.0, 2.0, None)),
        RewardTerm("style", fixed(0.5, None, 0.5), required=False),
        RewardTerm("rule", fixed(None, 0.5, 1.0), role="multiply", required=False),
    ]
    result = composed(*terms, n=3)
    assert result.total.tolist() == pytest.approx([1.5, 1.0, NAN], nan_ok=True)
    assert result.unscored.total() == 3


@pytest.mark.parametrize("factor", [-0.1, 1.2])
def test_a_decay_outside_its_range_is_unscored(factor: float) -> None:
    """R6: a factor over 1 would be a bonus."""
    result = composed(RewardTerm("human", fixed(1.0)), RewardTerm("d", fixed(factor), role="multiply"), n=1)
    assert np.isnan(result.total).all()
    assert next(iter(result.unscored)) == ("d", f"a decay of {factor:g}, not in [0, 1]")


def test_no_answers_are_no_error() -> None:
    """R6: an empty batch asks nobody."""

    def never(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        raise AssertionError

    result = composed(RewardTerm("human", never), n=0, share=0.0, check_order=True)
    assert result.total.shape == (0,)
    assert result.line() == "0 answers, 0 with a reward"


def test_an_interrupt_is_no_missing_score() -> None:
    """R6: Ctrl-C in a slow scorer ends the run and is not swallowed as an unscored answer."""

    def interrupted(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        composed(RewardTerm("human", interrupted), n=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RewardTerm(" ", fixed()), "malformed"),
        (lambda: RewardTerm("x", fixed(), weight=NAN), "malformed"),
        (lambda: RewardTerm("x", fixed(), role="divide"), "malformed"),  # type: ignore[arg-type]
        (lambda: RewardTerm("x", fixed(), weight=2.0, role="multiply"), "no weight"),
        (lambda: composed(n=2), "at least one added term"),
        (lambda: composed(RewardTerm("d", fixed(1, 1), role="multiply"), n=2), "at least one added term"),
        (lambda: composed(RewardTerm("a", fixed(1, 1)), RewardTerm("a", fixed(1, 1)), n=2), "name of its own"),
        (lambda: lower_bound([fixed(1)], deviations=1.0), "ensemble"),
        (lambda: lower_bound([fixed(1), fixed(1)], deviations=-1.0), "ensemble"),
    ],
)
def test_terms_that_cannot_be_meant_are_refused(make: Callable[[], Any], says: str) -> None:
    """R6, R8."""
    with pytest.raises(SettingError, match=says):
        make()


def test_prompts_and_answers_must_line_up() -> None:
    """R6."""
    with pytest.raises(TrainingError, match="2 prompts and 3 answers"):
        compose([RewardTerm("a", fixed(1, 1, 1))], prompts_of(2), texts_of(3))


def test_a_rule_sees_each_answer_with_its_own_prompt() -> None:
    """R6."""
    rule = per_answer(lambda prompt, text: float(prompt[0].content[-1] == text[-1]))
    assert composed(RewardTerm("rule", rule), n=4).total.tolist() == [1.0] * 4


def test_lower_bound_of_an_ensemble() -> None:
    """R8: members (1, 1, 4) -> mean 2, deviation √3: with c = .5 1.133975; agreeing members lose nothing; c = 0 is the mean."""
    members = [fixed(1.0, 2.0, 1.0), fixed(1.0, 2.0, None), fixed(4.0, 2.0, 1.0)]
    result = composed(RewardTerm("ensemble", lower_bound(members, deviations=0.5)), n=3)
    assert result.total.tolist() == pytest.approx([2 - 0.5 * math.sqrt(3), 2.0, NAN], nan_ok=True)
    assert result.total[0] == pytest.approx(1.133975, abs=1e-6)
    assert composed(RewardTerm("mean", lower_bound(members, deviations=0.0)), n=2).total.tolist() == [2.0, 2.0]
    with pytest.raises(TrainingError, match="one score an answer"):
        composed(RewardTerm("e", lower_bound([fixed(1, 1), lambda p, t: [1.0]], deviations=1.0)), n=2)


def test_a_member_that_raises_on_one_answer_costs_one_answer() -> None:
    """R8: the ensemble is asked again answer by answer, as any scorer is."""
    result = composed(RewardTerm("e", lower_bound([raising_on_row_3, fixed(*range(6))], deviations=1.0)), n=6)
    assert result.total.tolist() == pytest.approx([0, 1, 2, NAN, 4, 5], nan_ok=True)


def test_a_reward_checks_the_order_once() -> None:
    """R6: at the first batch that can tell; after that every answer is scored once."""
    asked: list[int] = []

    def count(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        asked.append(len(texts))
        return [float(text[-1]) for text in texts]

    reward = CompositeReward([RewardTerm("count", count)], max_unscored_share=0.0)
    for n in (2, 4, 4):
        assert reward(prompts_of(n), texts_of(n)).total.tolist() == [0.0, 1.0, 2.0, 3.0][:n]
    assert asked == [2, 4, 4, 4, 4]
    with pytest.raises(TrainingError, match="another order"):
        CompositeReward([RewardTerm("count", one_off)])(prompts_of(4), texts_of(4))
    with pytest.raises(TrainingError, match="Too many"):
        CompositeReward([RewardTerm("x", fixed(1, 1, None))], max_unscored_share=0.3)(prompts_of(3), texts_of(3))
    with pytest.raises(SettingError, match="added term"):
        CompositeReward([])
