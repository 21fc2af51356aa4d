"""From scored answers to lessons: what the policy, its reference and its critic said of them, then credit for each token.

Axes: R answer, M trained token of a packed batch, T token of one answer (the longest, where answers stand side by side).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from thumbwheel.config import OnlineSettings
from thumbwheel.errors import TrainingError
from thumbwheel.formulas.advantages import advantage_rules, dr_grpo, group_counts
from thumbwheel.formulas.credit import gae
from thumbwheel.formulas.reduce import standardise
from thumbwheel.formulas.variety import repetition_share
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.train.on_policy import Lesson, Lessons, OnPolicy, unit_of
from thumbwheel.train.rollouts import Answer, Rollouts
from thumbwheel.train.units import Unit, in_micro_batches

Floats = NDArray[np.float64]
TAKEN = {
    "step",
    "loss",
    "lr",
    "grad_norm",
    "coefficient",
    "tokens_per_s",
    "seconds",
    "stopped_early",
    *OnPolicy.figures,
}
"""Names of an iteration's other figures, which no reward term takes."""


class Reference:
    """The model as it was when the run began: with adapters the same weights with them as they were, else a copy."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.copy: LanguageModel | None = None
        if not model.adapted():
            network = copy.deepcopy(model.network).requires_grad_(False)
            self.copy = LanguageModel(network, model.tokenizer, compute_dtype=model.compute_dtype)

    @contextmanager
    def policy(self) -> Iterator[LanguagePolicy]:
        """The reference as a policy."""
        if self.copy is not None:
            yield LanguagePolicy(self.copy)
        else:
            with self.model.reference():
                yield LanguagePolicy(self.model)


@torch.no_grad()
def prepared(policy: LanguagePolicy, reference: Reference, rollouts: Rollouts, settings: OnlineSettings) -> Rollouts:
    """Every answer with what the policy, the reference and the critic say of its tokens before the first update."""
    policy.eval()
    units = [Unit(str(i), tuple(a.row for a in group), i) for i, group in enumerate(rollouts.answers)]
    mine = _told(policy, units, settings, entropy=True)
    with reference.policy() as other:
        theirs = _told(other, units, settings, entropy=False)
    flat = [
        replace(answer, old=own["logp"], value=own["value"], entropy=own["entropy"], reference=ref["logp"])
        for answer, own, ref in zip(rollouts.flat, mine, theirs, strict=True)
    ]
    return rollouts.regrouped(flat)


def _told(
    policy: LanguagePolicy, units: Sequence[Unit[int]], settings: OnlineSettings, *, entropy: bool
) -> list[dict[str, NDArray[np.float32]]]:
    """Per answer, in the units' order: logp, and value and entropy where they are there."""
    found: dict[int, list[dict[str, NDArray[np.float32]]]] = {}
    for micro in in_micro_batches(units, settings.tokens_per_micro_batch):
        out = policy.evaluate(micro.packed, temperature=settings.temperature, entropy=entropy)
        columns = {"logp": out.logp, "entropy": out.entropy, "value": out.value}
        arrays = {k: v.float().cpu().numpy() for k, v in columns.items() if v is not None}
        zeros = np.zeros_like(arrays["logp"])
        cuts = np.cumsum(micro.row_lengths)[:-1]
        parts = {name: np.split(arrays.get(name, zeros), cuts) for name in columns}
        for row, place in enumerate(micro.unit_of_row):
            answer = {name: values[row] for name, values in parts.items()}
            found.setdefault(micro.units[int(place)].label, []).append(answer)
    return [answer for label in sorted(found) for answer in found[label]]


# ---------------------------------------------------------------------- credit


def score_of(answer: Answer, settings: OnlineSettings) -> float:
    """The answer's reward, less what a cut answer costs; NaN where it has none."""
    cut = settings.cut_answers == "penalise" and not answer.ended
    return answer.reward - (settings.cut_penalty if cut else 0.0)


def log_ratios(answer: Answer) -> Floats:
    """(T,) log π_old - log π_ref of the sampled tokens, nats."""
    if answer.old is None or answer.reference is None:
        raise TrainingError("The answers were not prepared before they were learned from.")
    return answer.old.astype(np.float64) - answer.reference


def lessons_of(rollouts: Rollouts, settings: OnlineSettings, *, coefficient: float) -> list[Unit[Lessons]]:
    """A unit a prompt. β Σ KL is taken off the reward where kl.place says so: token by token with a critic, else at once.

    Σ rewards of an answer's tokens = score - β Σ (log π_old - log π_ref).
    """
    flat = rollouts.flat
    scores = np.array([score_of(answer, settings) for answer in flat])
    beta = coefficient if settings.kl.place == "reward" else 0.0
    if settings.advantage == "gae":
        advantages, returns = _critic(flat, scores, beta, settings)
    else:
        by_answer = _by_answer(
            scores, beta * np.array([log_ratios(answer).sum() for answer in flat]), rollouts, settings
        )
        advantages = [np.full(len(answer), value) for answer, value in zip(flat, by_answer, strict=True)]
        returns = [np.zeros(len(answer)) for answer in flat]
    lessons = [
        _lesson(answer, counted=is_counted(answer, settings), advantage=a, returns=r)
        for answer, a, r in zip(flat, advantages, returns, strict=True)
    ]
    left = iter(zip(flat, lessons, strict=True))
    units = []
    for index, group in enumerate(rollouts.answers):
        pairs = [next(left) for _ in group]
        units.append(unit_of(f"prompt {index}", [a.row for a, _ in pairs], [lesson for _, lesson in pairs]))
    return units


def _by_answer(scores: Floats, cost: Floats, rollouts: Rollouts, settings: OnlineSettings) -> Floats:
    """(R,) advantages of scores less the cost of KL.

    GRPO divides by the deviation of a prompt's scores; the cost stays outside. Else a prompt whose answers all earned the
    same would teach the noise of its KL at full strength, and β would weigh more the less the rewards differ.
    """
    rule = advantage_rules.get(settings.advantage)
    if settings.advantage != "grpo":
        return rule(scores - cost, rollouts.group)
    return rule(scores, rollouts.group) + dr_grpo(np.where(np.isnan(scores), np.nan, -cost), rollouts.group)


def is_counted(answer: Answer, settings: OnlineSettings) -> bool:
    """Whether an answer is learned from: it has a reward, and is not cut where cut ones are masked."""
    return not np.isnan(answer.reward) and (answer.ended or settings.cut_answers != "mask")


def _critic(
    flat: Sequence[Answer], scores: Floats, beta: float, settings: OnlineSettings
) -> tuple[list[Floats], list[Floats]]:
    """Advantages and returns by GAE: the score stands on the last token, -β (log π_old - log π_ref) on every token."""
    width = max(len(answer) for answer in flat)
    rewards, values = (torch.zeros(len(flat), width, dtype=torch.float64) for _ in range(2))
    mask = torch.zeros(len(flat), width, dtype=torch.bool)
    for i, (answer, score) in enumerate(zip(flat, scores, strict=True)):
        n = len(answer)
        mask[i, :n] = True
        rewards[i, :n] = torch.from_numpy(-beta * log_ratios(answer))
        rewards[i, n - 1] += 0.0 if np.isnan(score) else score
        values[i, :n] = torch.from_numpy(np.asarray(answer.value, dtype=np.float64))
    ended = torch.zeros(len(flat), dtype=torch.float64)  # an answer ends where it ends, also where it was cut
    advantage = gae(rewards, values, mask, gamma=settings.gamma, lam=settings.lam, last_value=ended)
    returns = advantage + values
    if settings.standardise:
        counted = mask & torch.tensor([is_counted(answer, settings) for answer in flat])[:, None]
        advantage = standardise(advantage, counted, unbiased=False)

    def cut(x: torch.Tensor) -> list[Floats]:
        return [x[i, : len(answer)].numpy() for i, answer in enumerate(flat)]

    return cut(advantage), cut(returns)


def _lesson(answer: Answer, *, counted: bool, advantage: Floats, returns: Floats) -> Lesson:
    columns = (advantage, answer.old, answer.behaviour, answer.reference, answer.value, returns)
    narrow = [np.asarray(column, dtype=np.float32) for column in columns]
    return Lesson(counted, narrow[0], narrow[1], narrow[2], narrow[3], narrow[4], narrow[5])


# ---------------------------------------------------------------------- figures


def counts_of(rollouts: Rollouts, settings: OnlineSettings) -> dict[str, float]:
    """What people watch: reward and its terms, KL to the reference, entropy, length, repetition, flat groups, what was lost."""
    flat = rollouts.flat
    rewards = rollouts.rewards
    known = rewards[~np.isnan(rewards)]
    if not len(known):
        raise TrainingError(
            "Not one answer of this iteration has a reward, so there is nothing to learn from. Look at the reward function: "
            "call it on an answer of your own."
        )
    ratios = [log_ratios(answer) for answer in flat]
    entropies = np.concatenate([np.asarray(answer.entropy, dtype=np.float64) for answer in flat])
    repeated = [repetition_share(answer.row.ids[answer.row.trained].tolist()).value for answer in flat]
    groups = group_counts(rewards, rollouts.group)
    figures = {
        "reward": float(known.mean()),
        "reward_std": float(known.std()),
        "kl_per_response_nats": float(np.mean([ratio.sum() for ratio in ratios])),
        "kl_per_token_nats": float(np.concatenate(ratios).mean()),
        "entropy": float(entropies.mean()),
        "length": float(np.mean([len(answer) for answer in flat])),
        "ended_share": float(np.mean([answer.ended for answer in flat])),
        "repetition": float(np.mean([value for value in repeated if value is not None] or [0.0])),
        "unscored": float(len(rewards) - len(known)),
        "left_out": float(sum(not is_counted(answer, settings) for answer in flat)),
        "no_room": float(rollouts.no_room),
        "flat_groups": float(groups.flat),
        "too_easy": float(groups.too_easy),
        "too_hard": float(groups.too_hard),
        "tokens": float(sum(len(answer) for answer in flat)),
        "engine_gap_nats": float(np.mean(np.abs(np.concatenate([np.asarray(a.old) - a.behaviour for a in flat])))),
    }
    names = {name for answer in flat for name in answer.terms or {}}
    for name in sorted(names):
        values = [
            answer.terms[name] for answer in flat if answer.terms and not np.isnan(answer.terms.get(name, np.nan))
        ]
        if values:
            figures[f"term_{name}" if name in figures or name in TAKEN else name] = float(np.mean(values))
    return figures
