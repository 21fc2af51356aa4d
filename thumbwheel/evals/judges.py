"""Who says which of two answers is better, without knowing which policy wrote which.

    judge = open_judge("my_pkg.rules:score")                       # a rule, a reward model, or anything with `prefer`
    votes = blind_votes(judge, prompts, new_texts, parent_texts, seed=7)

A judge sees a side A and a side B; half of the new answers stand on each side, shuffled by seed. People vote through files:
see `thumbwheel.evals.ballots`, which gives the same `Votes`. NaN is "no vote", never a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from thumbwheel.errors import DataError, SettingError, ThumbwheelError, explain
from thumbwheel.records import Origin, Prompt, digest_of
from thumbwheel.registry import Registry

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Callable[[Prompt, str], float]
Scorer = Callable[[Sequence[Prompt], Sequence[str]], Floats]

rules: Registry[Rule] = Registry("judge rule")


class Judge(Protocol):
    """Says how likely side A is the better answer: 1.0, 0.5 (tie), 0.0, any probability between, or NaN for no vote.

    `name` and `origin` (person, simulated, rule, model) are printed in the report. `prefer` gets n prompts and the n
    texts of each side, and returns (n,).
    """

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> Origin: ...

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats: ...


@dataclass(frozen=True)
class ScoreJudge:
    """Prefers the answer with the higher score: a reward model that the new policy was not trained against.

    `score(prompts, texts) -> (n,)`; scores closer than or equal to `tie_margin` are a tie, a score that is not finite is no vote.
    """

    name: str
    score: Scorer
    origin: Origin = "model"
    tie_margin: float = 0.0

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats:
        scores = [np.asarray(self.score(prompts, side), np.float64) for side in (a, b)]
        left, right = (np.where(np.isfinite(score), score, np.nan) for score in scores)
        gap = left - right
        if gap.shape != (len(prompts),):
            raise DataError(
                explain(
                    f"The judge '{self.name}' returned scores of the wrong shape.",
                    allowed=f"one score an answer, shape ({len(prompts)},)",
                    got=gap.shape,
                )
            )
        return np.where(np.isnan(gap), np.nan, np.where(np.abs(gap) <= self.tie_margin, 0.5, (gap > 0).astype(float)))


@dataclass
class RuleJudge:
    """Prefers the answer that a scripted rule scores higher; an answer on which the rule raises has no vote.

    `failures` keeps one line for each answer on which it raised.
    """

    name: str
    rule: Rule
    origin: Origin = "rule"
    failures: list[str] = field(default_factory=list)

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Floats:
        return ScoreJudge(self.name, self._score).prefer(prompts, a, b)

    def _score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        scores = np.full(len(texts), np.nan)
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            # A rule is somebody else's code: one answer it cannot read must not end the evaluation, nor count as 0.
            try:
                scores[i] = float(self.rule(prompt, text))
            except Exception as error:
                self.failures.append(f"answer {i}: {type(error).__name__}: {error}")
        return scores


@rules.register("longer")
def longer(prompt: Prompt, text: str) -> float:
    """Characters: the baseline that any judge worth asking should differ from."""
    return float(len(text))


@rules.register("shorter")
def shorter(prompt: Prompt, text: str) -> float:
    """Fewer characters are better."""
    return -float(len(text))


def open_judge(name: str, *, scorer: Scorer | None = None, origin: Origin | None = None) -> Judge:
    """The judge that `evals.judge` names: "reward_model" (needs `scorer`), a registered rule, or "module:attr".

    "module:attr" may be a rule `(prompt, text) -> float`, or a judge (an object or class with `prefer`). `origin` overrides
    what the report says of a rule, "simulated" for a made-up user. Raises SettingError for "people", who vote through
    files, and for "reward_model" without a scorer; RegistryError for an unknown name.
    """
    if name == "reward_model":
        if scorer is None:
            raise SettingError(
                "The 'evals.judge' setting is 'reward_model', but this round has no reward model. "
                "Set reward.enabled=true, or name a rule as 'module:attr'."
            )
        return ScoreJudge(name, scorer, origin=origin or "model")
    if name == "people":
        raise SettingError(
            "The judge 'people' votes through files. Write them with thumbwheel.evals.ballots.write_ballots, "
            "read the votes back with read_votes."
        )
    thing = rules.get(name)
    if hasattr(thing, "prefer"):
        return cast(Judge, thing() if isinstance(thing, type) else thing)
    if not callable(thing):
        raise SettingError(
            explain(
                f"The judge '{name}' is neither a rule nor a judge.",
                allowed="a function (prompt, text) -> float, or an object with prefer(prompts, a, b)",
                got=type(thing).__name__,
            )
        )
    return RuleJudge(name, thing, origin=origin or "rule")


@dataclass(frozen=True)
class Votes:
    """One vote a row: how far the new answer was preferred to the parent's.

    | field     | shape | meaning                                                             |
    | --------- | ----- | ------------------------------------------------------------------- |
    | new_wins  | (n,)  | probability that the new answer is better; 0.5 tie; NaN no vote      |
    | new_is_a  | (n,)  | True where the new answer stood on side A                           |
    | asked     | (n,)  | False where both answers were the same text: a tie, nobody was asked |
    | prompts   | (n,)  | a digest of each prompt; rows of one prompt stay together in intervals |
    """

    judge: str
    origin: Origin
    new_wins: Floats
    new_is_a: Bools
    asked: Bools
    prompts: tuple[str, ...]
    failures: tuple[str, ...] = ()

    def a_wins(self) -> Floats:
        """(k,) preference for side A on the rows that were asked and voted on."""
        seen = self.asked & ~np.isnan(self.new_wins)
        return np.where(self.new_is_a, self.new_wins, 1 - self.new_wins)[seen]


def sides(n: int, *, seed: int) -> Bools:
    """(n,) True where the new answer stands on side A: half of the rows (odd n: one more, either way), shuffled by seed."""
    rng = np.random.default_rng(seed)
    half = (n + int(rng.integers(2))) // 2
    return rng.permutation(np.arange(n) < half)


def prompt_ids(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """A digest a prompt; equal conversations have equal digests."""
    return tuple(digest_of([message.model_dump(mode="json") for message in prompt]) for prompt in prompts)


def same_text(new: Sequence[str], parent: Sequence[str]) -> Bools:
    """(n,) True where the two answers are the same but for white space at the ends."""
    return np.array([a.strip() == b.strip() for a, b in zip(new, parent, strict=True)], dtype=bool)


def check_rows(prompts: Sequence[Prompt], new: Sequence[str], parent: Sequence[str]) -> None:
    """Raises DataError unless there is at least one prompt, and one answer of each policy a prompt."""
    if len(prompts) == 0:
        raise DataError("There is no held-out prompt to judge on. Add episodes, or raise evals.holdout_share.")
    if not len(prompts) == len(new) == len(parent):
        raise DataError(
            explain(
                "Prompts and answers do not line up.",
                allowed="one new and one parent's answer a prompt",
                got=f"{len(prompts)} prompts, {len(new)} new answers, {len(parent)} of the parent",
            )
        )


def blind_votes(
    judge: Judge,
    prompts: Sequence[Prompt],
    new: Sequence[str],
    parent: Sequence[str],
    *,
    seed: int,
    both_orders: bool = False,
) -> Votes:
    """Ask `judge` about each pair, sides shuffled by `seed`; it never learns which policy stands where.

    Pairs of the same text are ties and are not shown. `both_orders=True` asks a second time with the sides swapped and takes
    the mean, which cancels a side bias at twice the price (a good idea for a language model as judge).
    Raises DataError for no prompt, unequal lengths, or a judge that answers out of range.
    """
    check_rows(prompts, new, parent)
    new_is_a = sides(len(prompts), seed=seed)
    asked = ~same_text(new, parent)
    rows = np.flatnonzero(asked)
    new_wins = np.full(len(prompts), 0.5)
    if len(rows):
        first = _ask(judge, prompts, new, parent, rows, new_is_a)
        if both_orders:
            first = (first + _ask(judge, prompts, new, parent, rows, ~new_is_a)) / 2
        new_wins[rows] = first
    failures = tuple(getattr(judge, "failures", ()))
    return Votes(judge.name, judge.origin, new_wins, new_is_a, asked, prompt_ids(prompts), failures)


def _ask(
    judge: Judge,
    prompts: Sequence[Prompt],
    new: Sequence[str],
    parent: Sequence[str],
    rows: NDArray[np.intp],
    new_is_a: Bools,
) -> Floats:
    """(k,) preference for the new answer on `rows`, asked once with the sides as given."""
    a = [new[i] if new_is_a[i] else parent[i] for i in rows]
    b = [parent[i] if new_is_a[i] else new[i] for i in rows]
    try:
        answer = np.asarray(judge.prefer([prompts[i] for i in rows], a, b), np.float64)
    except ThumbwheelError:
        raise
    except Exception as error:
        raise DataError(f"The judge '{judge.name}' failed: {type(error).__name__}: {error}.") from error
    voted = answer[~np.isnan(answer)] if answer.shape == (len(rows),) else np.array([-1.0])
    if np.any((voted < 0) | (voted > 1)):
        raise DataError(
            explain(
                f"The judge '{judge.name}' answered out of range.",
                allowed=f"shape ({len(rows)},), each in [0, 1] for side A, or NaN for no vote",
                got=f"shape {answer.shape}"
                if answer.shape != (len(rows),)
                else voted[(voted < 0) | (voted > 1)][:5].tolist(),
            )
        )
    return np.where(new_is_a[rows], answer, 1 - answer)
