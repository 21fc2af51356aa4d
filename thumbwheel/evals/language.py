"""Is the language whole? Likelihood under the reference, length, repetition, variety and endings of both policies' answers.

Texts and arrays come in; nothing is generated or scored here. Intervals resample prompts, with every answer to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.config import EvalSettings
from thumbwheel.errors import DataError, explain
from thumbwheel.evals.intervals import Resampling
from thumbwheel.evals.judges import Floats, prompt_ids
from thumbwheel.formulas import variety
from thumbwheel.formulas.stats import Indices
from thumbwheel.formulas.variety import words as words
from thumbwheel.records import Figure, Prompt


@dataclass(frozen=True)
class Answers:
    """What one policy answered to n held-out prompts.

    | field          | shape | unit   | meaning                                                                          |
    | -------------- | ----- | ------ | -------------------------------------------------------------------------------- |
    | prompts, texts | (n,)  | -      | several answers to one prompt repeat the prompt                                  |
    | tokens         | (n,)  | tokens | sampled tokens of the answer, the end token among them                           |
    | finished       | (n,)  | -      | True where it ended by itself (end token, stop string), False where it was cut   |
    | reference_logp | (n,)  | nats   | summed log-probability of those tokens under the reference, at temperature 1     |
    | policy_logp    | (n,)  | nats   | the same under the policy itself, or None                                        |
    | entropy        | (n,)  | nats   | mean entropy per token of the policy's distribution, or None                     |
    | reward         | (n,)  | score  | a reward model's score, or None                                                  |
    """

    prompts: Sequence[Prompt]
    texts: Sequence[str]
    tokens: ArrayLike
    finished: ArrayLike
    reference_logp: ArrayLike | None
    policy_logp: ArrayLike | None = None
    entropy: ArrayLike | None = None
    reward: ArrayLike | None = None


def language_figures(new: Answers, *, parent: Answers, settings: EvalSettings, seed: int) -> tuple[Figure, ...]:
    """The changes that gate a release, then the figures of each policy; the parent's end in `_parent`.

    | figure                | unit           | meaning                                                                 |
    | --------------------- | -------------- | ----------------------------------------------------------------------- |
    | nats_per_token_change | nats per token | new minus parent's; under 0: less likely under the reference; gates     |
    | repetition_rise       | share          | new minus parent's; gates                                               |
    | length_ratio          | times          | mean tokens, new over parent's; gates                                   |
    | nats_per_token        | nats per token | Σ log-probability under the reference / Σ tokens                        |
    | length                | tokens         | mean                                                                    |
    | repetition            | share          | of a text's word 3-grams, those that occur more than twice in it; mean  |
    | looping               | share          | answers with such a 3-gram                                              |
    | empty, finished       | share          | answers of nothing but white space; answers that ended by themselves    |
    | entropy               | nats per token | mean over answers                                                       |
    | kl_per_response       | nats           | mean log π/π_ref of answers; unbiased where sampled at temperature 1    |
    | reward                | score          | mean                                                                    |
    | distinct_1, _2, _3    | share          | different n-grams of all; both policies cut to equal words, row by row  |

    An answer too short for a 3-gram repeats nothing. What was not given, or is not finite, has value None and says so.
    Raises DataError where the two did not answer the same prompts in the same order, or there are none.
    """
    names = _checked(new, parent)
    told, before = [words(text) for text in new.texts], [words(text) for text in parent.texts]
    ours, theirs = _ratios(new, told), _ratios(parent, before)
    sampling = Resampling(names, settings, seed)

    def difference(name: str, of: str) -> Figure:
        a, b = ours[of], theirs[of]
        return sampling.figure(name, lambda i: a.at(i) - b.at(i), unit=a.unit, note=a.unknown or b.unknown)

    a, b = ours["length"], theirs["length"]
    figures = [
        difference("nats_per_token_change", "nats_per_token"),
        difference("repetition_rise", "repetition"),
        sampling.figure("length_ratio", lambda i: a.at(i) / b.at(i) if b.at(i) else float("nan"), unit="times"),
    ]
    # Variety falls with the amount of text, so both are cut to equal words before they are compared.
    equal = [min(len(a), len(b)) for a, b in zip(told, before, strict=True)]
    for ratios, texts, suffix in ((ours, told, ""), (theirs, before, "_parent")):
        figures += [sampling.figure(name + suffix, r.at, unit=r.unit, note=r.unknown) for name, r in ratios.items()]
        figures += _variety([text[:k] for text, k in zip(texts, equal, strict=True)], suffix)
    return tuple(figures)


@dataclass(frozen=True)
class _Ratio:
    """Σ over / Σ under on the rows drawn: a mean where `under` is all ones. `unknown` says why it has no value."""

    over: Floats
    under: Floats
    unit: str
    unknown: str = ""

    def at(self, rows: Indices) -> float:
        total = self.under[rows].sum()
        return float(self.over[rows].sum() / total) if total and not self.unknown else float("nan")


def _ratios(answers: Answers, texts: Sequence[Sequence[str]]) -> dict[str, _Ratio]:
    """Every figure of one policy that is a ratio of sums over rows."""
    n = len(texts)
    one, tokens = np.ones(n), np.asarray(answers.tokens, np.float64)
    reference, no_reference = _given(answers.reference_logp, n, "log-probability under the reference")
    policy, no_policy = _given(answers.policy_logp, n, "log-probability under the policy itself")
    entropy, no_entropy = _given(answers.entropy, n, "entropy")
    reward, no_reward = _given(answers.reward, n, "reward")
    repeated = np.array([variety.repetition_share(text).value or 0.0 for text in texts])
    return {
        "nats_per_token": _Ratio(reference, tokens, "nats per token", no_reference),
        "length": _Ratio(tokens, one, "tokens"),
        "repetition": _Ratio(repeated, one, "share"),
        "looping": _Ratio((repeated > 0).astype(np.float64), one, "share"),
        "empty": _Ratio(np.array([float(not text.strip()) for text in answers.texts]), one, "share"),
        "finished": _Ratio(np.asarray(answers.finished, np.float64), one, "share"),
        "entropy": _Ratio(entropy, one, "nats per token", no_entropy),
        "kl_per_response": _Ratio(policy - reference, one, "nats", no_policy or no_reference),
        "reward": _Ratio(reward, one, "score", no_reward),
    }


def _given(values: ArrayLike | None, n: int, what: str) -> tuple[Floats, str]:
    """The array and no reason, or zeros and why it is unknown: a broken answer must not vanish from a mean."""
    if values is None:
        return np.zeros(n), f"no {what} was given"
    array = np.asarray(values, np.float64)
    broken = int((~np.isfinite(array)).sum())
    return (np.zeros(n), f"{broken} of {n} answers have no finite {what}") if broken else (array, "")


def _variety(texts: Sequence[Sequence[str]], suffix: str) -> list[Figure]:
    found = {f"distinct_{n}{suffix}": variety.distinct_n(texts, n=n) for n in (1, 2, 3)}
    return [
        Figure(name=name, value=one.value, n=len(texts), unit="share", note=one.reason or "")
        for name, one in found.items()
    ]


def _checked(new: Answers, parent: Answers) -> tuple[str, ...]:
    """The digest of each row's prompt. Raises DataError as `language_figures` says."""
    names = prompt_ids(new.prompts)
    if not names:
        raise DataError(
            "There is no answer to a held-out prompt to measure. Add episodes, or raise evals.holdout_share."
        )
    if names != prompt_ids(parent.prompts):
        raise DataError(
            explain(
                "The two policies did not answer the same prompts in the same order.",
                allowed="one answer of each policy a row",
                got=f"{len(names)} rows of the new policy, {len(parent.prompts)} of the parent",
            )
        )
    for who, answers in (("new", new), ("parent", parent)):
        for field in ("texts", "tokens", "finished", "reference_logp", "policy_logp", "entropy", "reward"):
            values = getattr(answers, field)
            if values is not None and np.shape(values) != (len(names),):
                raise DataError(
                    explain(
                        f"'{field}' of the {who} policy's answers has the wrong shape.",
                        allowed=f"one value a row, ({len(names)},)",
                        got=np.shape(values),
                    )
                )
        if np.any(np.asarray(answers.tokens) < 0):
            raise DataError(f"'tokens' of the {who} policy's answers has a negative count.")
    return names
