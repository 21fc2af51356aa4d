"""One reward out of several terms: R = (Σ wₖ rₖ), less a share of its size for each rule an answer breaks.

    terms = [RewardTerm("human", score), RewardTerm("safety", unsafe, weight=-2.0),
             RewardTerm("repetition", repetition_decay(), role="multiply")]
    composed = compose(terms, prompts, texts, max_unscored_share=0.1)
    composed.total          # (R,), NaN where a term that is needed did not score
    composed.columns        # each term by name, as its scorer gave it
    print(composed.line())  # 64 answers, 62 with a reward; unscored: human: TimeoutError (2)

A scorer is somebody else's code: what it cannot score is unscored with the reason, never 0. R answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thumbwheel.errors import SettingError, TrainingError, explain
from thumbwheel.records import Prompt

Floats = NDArray[np.float64]
LARGEST = 1e100
"""Scores beyond this are a fault: the square of their deviation is no number."""
Scorer = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float | None] | NDArray[np.float64]]
"""(R prompts, R answers) -> R scores, in that order; None or NaN where an answer has none."""


@dataclass(frozen=True)
class RewardTerm:
    """One part of a reward.

    name      of its column in logs and reports
    scorer    (prompts, texts) -> scores in that order, None where it has none
    weight    w of an added term; negative for a cost: a safety term λ has -λ
    role      "add": w · score goes into the sum. "multiply": the score is a decay in [0, 1], see `compose`
    required  an answer without this score has no reward. False: it goes without the term, and is counted all the same
    """

    name: str
    scorer: Scorer
    weight: float = 1.0
    role: Literal["add", "multiply"] = "add"
    required: bool = True

    def __post_init__(self) -> None:
        if not self.name.strip() or self.role not in ("add", "multiply") or not math.isfinite(self.weight):
            raise SettingError(
                explain(
                    "A reward term is malformed.",
                    allowed="a name, a finite weight, and the role 'add' or 'multiply'",
                    got=(self.name, self.weight, self.role),
                )
            )
        if self.role == "multiply" and self.weight != 1.0:
            raise SettingError(
                f"The reward term '{self.name}' is a decay, which has no weight. Got: {self.weight}. Leave the weight out, and "
                "let its scorer return a smaller factor for a stronger decay."
            )


@dataclass(frozen=True, eq=False)
class Composed:
    """The rewards of R answers.

    total     (R,) float64, NaN where a required term has no score
    columns   name -> (R,), the scores as they came, before weights; NaN where unscored
    unscored  (term, reason) -> how many answers
    """

    total: Floats
    columns: dict[str, Floats]
    unscored: Counter[tuple[str, str]]

    def means(self) -> dict[str, float | None]:
        """Mean of each term, and of the reward as "total", over the answers that have it; None where none has."""
        return {name: _mean(column) for name, column in {**self.columns, "total": self.total}.items()}

    def line(self) -> str:
        """Answers in, with a reward, and why the others have none."""
        there = int(np.count_nonzero(~np.isnan(self.total)))
        said = f"{len(self.total)} answers, {there} with a reward"
        reasons = [f"{name}: {why} ({n})" for (name, why), n in self.unscored.most_common()]
        return f"{said}; unscored: {'; '.join(reasons)}" if reasons else said


def compose(
    terms: Sequence[RewardTerm],
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    *,
    max_unscored_share: float = 0.2,
    check_order: bool = False,
) -> Composed:
    """S = Σ wₖ rₖ over added terms,  d = Π dₖ over decays,  R = S - (1 - d) |S|

    A reward of 1 under a decay of .7 becomes .7, one of -1 becomes -1.3: a broken rule never helps, as plain d · S would
    help an answer whose reward is under 0.

    A scorer that raises is asked again, one answer at a time, so that one answer costs one answer. With `check_order` every
    scorer is asked twice more in other orders (once, at the start of a run), which finds one that mixes answers up.

    Raises SettingError for no added term or a name twice; TrainingError for a scorer that does not return one score an
    answer, or in another order, and where more than `max_unscored_share` of the answers have no reward.
    """
    if len(prompts) != len(texts):
        raise TrainingError(f"Every answer needs its prompt. Got {len(prompts)} prompts and {len(texts)} answers.")
    _check_terms(terms)
    unscored: Counter[tuple[str, str]] = Counter()
    columns: dict[str, Floats] = {}
    added, decay = np.zeros(len(texts)), np.ones(len(texts))
    missing = np.zeros(len(texts), dtype=np.bool_)
    for term in terms:
        column, reasons = _scored(term, prompts, texts)
        if check_order and len(texts) > 1:
            _check_order(term, prompts, texts, column)
        unscored.update((term.name, reason) for reason in reasons if reason is not None)
        columns[term.name] = column
        unknown = np.isnan(column)
        if term.required:
            missing |= unknown
        if term.role == "add":
            added += term.weight * np.where(unknown, 0.0, column)
        else:
            decay *= np.where(unknown, 1.0, column)
    total = np.where(missing, np.nan, added - (1 - decay) * np.abs(added))
    composed = Composed(total, columns, unscored)
    share = float(missing.mean()) if len(texts) else 0.0
    if share > max_unscored_share:
        raise TrainingError(
            explain(
                "Too many answers have no reward.",
                allowed=f"a share of up to {max_unscored_share:g}",
                got=f"{share:.2f} ({composed.line()})",
                next="Mend the scorer that is named, or raise max_unscored_share.",
            )
        )
    return composed


class CompositeReward:
    """`compose` with its terms at hand: reward(prompts, texts) -> Composed. The first batch of three or more checks the order."""

    def __init__(self, terms: Sequence[RewardTerm], *, max_unscored_share: float = 0.2) -> None:
        _check_terms(terms)
        self.terms, self.max_unscored_share = tuple(terms), max_unscored_share
        self.order_checked = False

    def __call__(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Composed:
        check = not self.order_checked and len(texts) > 2
        self.order_checked |= check
        return compose(self.terms, prompts, texts, max_unscored_share=self.max_unscored_share, check_order=check)


def per_answer(rule: Callable[[Prompt, str], float | None]) -> Scorer:
    """A scorer of all answers from a rule (prompt, text) -> score for one."""

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float | None]:
        return [rule(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]

    return score


def lower_bound(scorers: Sequence[Scorer], *, deviations: float) -> Scorer:
    """r = mean_k rₖ - c · std_k rₖ over the members of an ensemble (std with K - 1): what they do not agree on is worth less

    Source: Coste et al. 2023, "Reward model ensembles help mitigate overoptimization" (there with the variance). An answer
    that a member does not score is unscored. Raises SettingError for fewer than two members or a negative c.
    """
    if len(scorers) < 2 or not 0 <= deviations < math.inf:
        raise SettingError(
            explain(
                "A lower bound needs an ensemble.",
                allowed="two or more members, deviations in [0, inf)",
                got=f"{len(scorers)} members, deviations {deviations}",
            )
        )

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float | None]:
        members = [_returned("a member of the ensemble", scorer(prompts, texts), len(texts)) for scorer in scorers]
        rows = np.array([[math.nan if x is None else x for x in member] for member in members], dtype=np.float64)
        bound = rows.mean(axis=0) - deviations * rows.std(axis=0, ddof=1)
        return [None if math.isnan(x) else float(x) for x in bound]

    return score


class _WrongCount(TrainingError):
    """A scorer that does not return one score an answer. Asking it again, one answer at a time, would hide that."""


def _check_terms(terms: Sequence[RewardTerm]) -> None:
    names = [term.name for term in terms]
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice or not any(term.role == "add" for term in terms):
        raise SettingError(
            explain(
                "A reward needs at least one added term, and every term a name of its own.",
                got=", ".join(f"{term.name} ({term.role})" for term in terms) or "no term",
            )
        )


def _scored(term: RewardTerm, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[Floats, list[str | None]]:
    """Scores as (R,), NaN where there is none, and the reason for each."""
    if not texts:
        return np.zeros(0), []
    answered: list[Any]
    try:
        answered = _returned(term.name, term.scorer(prompts, texts), len(texts))
    except _WrongCount:
        raise
    except Exception as error:
        answered = [error] if len(texts) == 1 else [_alone(term, *row) for row in zip(prompts, texts, strict=True)]
    column = np.full(len(texts), np.nan)
    reasons: list[str | None] = []
    for i, score in enumerate(answered):
        value, reason = _number(score, decay=term.role == "multiply")
        column[i] = value
        reasons.append(reason)
    return column, reasons


def _alone(term: RewardTerm, prompt: Prompt, text: str) -> Any:
    try:
        return _returned(term.name, term.scorer([prompt], [text]), 1)[0]
    except _WrongCount:
        raise
    except Exception as error:
        return error


def _returned(name: str, scores: Any, count: int) -> list[Any]:
    """What a scorer returned, as a list of `count`."""
    whole = not isinstance(scores, str | bytes | Mapping) and hasattr(scores, "__iter__")
    listed = list(scores) if whole else None
    if listed is None or len(listed) != count:
        raise _WrongCount(
            explain(
                f"The scorer of '{name}' did not return one score an answer, so nobody can say which score is whose.",
                allowed=f"a sequence of {count} numbers or None, in the order of the answers",
                got=f"{len(listed)} scores" if listed is not None else type(scores).__name__,
                next="Return None for an answer that cannot be scored.",
            )
        )
    return listed


def _number(score: Any, *, decay: bool) -> tuple[float, str | None]:
    """The score as a finite float, or NaN and why not."""
    if isinstance(score, Exception):
        said = " ".join(str(score).split())[:80]
        return math.nan, f"{type(score).__name__}: {said}" if said else type(score).__name__
    if score is None:
        return math.nan, "no score"
    if isinstance(score, str | bytes) or getattr(score, "ndim", 0) != 0:
        return math.nan, f"no number but {type(score).__name__}"
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        return math.nan, f"no number but {type(score).__name__}"
    if not math.isfinite(value):
        return math.nan, "NaN" if math.isnan(value) else "infinite"
    if abs(value) > LARGEST:
        return math.nan, f"beyond {LARGEST:g}"
    if decay and not 0 <= value <= 1:
        return math.nan, f"a decay of {value:g}, not in [0, 1]"
    return value, None


def _check_order(term: RewardTerm, prompts: Sequence[Prompt], texts: Sequence[str], column: Floats) -> None:
    """Asked in another order, a scorer gives each answer the score it gave it before.

    Two orders, since a scorer that reverses its answers does so to reversed ones too. Of two answers none can tell.
    """
    for order in (np.arange(len(texts))[::-1], np.random.default_rng(0).permutation(len(texts))):
        again = np.empty_like(column)
        again[order] = _scored(term, [prompts[i] for i in order], [texts[i] for i in order])[0]
        if _same(again, column) or not _same(np.sort(again), np.sort(column)):
            continue  # as it should be; or other scores each time, which say nothing of the order
        raise TrainingError(
            explain(
                f"The scorer of '{term.name}' returns its scores in another order than it was given the answers.",
                got=f"the same answers, asked in another order, got {_some(again)} in place of {_some(column)}",
                next="Collect results by the place of their answer, not as they come in or sorted.",
            )
        )


def _same(a: Floats, b: Floats) -> bool:
    """Equal but for what rounding in a batch of other neighbours does: a thousandth of the spread."""
    spread = float(np.ptp(b[~np.isnan(b)])) if not np.isnan(b).all() else 0.0
    return bool(np.allclose(a, b, rtol=0.0, atol=1e-3 * spread, equal_nan=True))


def _some(column: Floats) -> str:
    return ", ".join(f"{x:.4g}" for x in column[:4]) + (", …" if len(column) > 4 else "")


def _mean(column: Floats) -> float | None:
    there = column[~np.isnan(column)]
    return float(there.mean()) if there.size else None
