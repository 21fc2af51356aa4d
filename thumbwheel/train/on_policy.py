"""The loss of PPO, GRPO and their family: one clipped surrogate; what differs is advantage, ratio, weights and the critic.

Axes: U unit (a prompt with its answers), R answer, M trained token, T token of one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thumbwheel.batches import TokenRow
from thumbwheel.config import OnlineSettings
from thumbwheel.formulas.kl import k3, kl_estimators
from thumbwheel.formulas.policy import (
    clipped,
    clipped_surrogate,
    sequence_log_ratio,
    token_reductions,
    truncated_weight,
    value_clip,
)
from thumbwheel.formulas.reduce import sum_by_row
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one answer teaches; arrays are (T,) over its trained tokens.

    counted    False: it is left out of loss and divisor (no reward, or cut short and masked)
    beside     True: a text of the language-model loss, which no policy loss sees
    advantage  in deviations or units of the reward
    old, behaviour, reference   log-probabilities, nats; see `rollouts.Answer`
    value, returns   of the critic; zeros without one
    """

    counted: bool
    advantage: Floats
    old: Floats
    behaviour: Floats
    reference: Floats
    value: Floats
    returns: Floats
    beside: bool = False

    @classmethod
    def of_text(cls, tokens: int) -> Lesson:
        """A text to be kept in mind beside the answers."""
        zeros = np.zeros(tokens, dtype=np.float32)
        return cls(False, zeros, zeros, zeros, zeros, zeros, zeros, beside=True)


Lessons = tuple[Lesson, ...]


class Totals(NamedTuple):
    """Counted tokens, counted answers, and tokens of the text beside."""

    tokens: int
    rows: int
    lm_tokens: int


class OnPolicy(Task[Lessons]):
    """Σₜ wₜ [ω lₜ + c_v vₜ - c_e Hₜ + β kₜ] + c_lm NLL,  over a step's tokens t

    | symbol | meaning                                                                            |
    | ------ | ---------------------------------------------------------------------------------- |
    | w      | `token_reductions`: token_mean, sequence_mean or constant_length; 0 if not counted  |
    | ω      | min(π_old/μ, cap): engine against trainer, `engine_weight_cap`                       |
    | l      | clipped surrogate of the token's ratio, or of its answer's (GSPO)                    |
    | v      | clipped value loss                                                                   |
    | H      | entropy of the policy                                                                |
    | k      | KL to the reference, k2 or k3, with kl.place = loss                                  |
    | NLL    | mean token loss of the texts given beside (Ouyang et al. 2022, eq. 2), at the        |
    |        | temperature of the answers                                                          |

    `coefficient` is β and `clip_scale` the factor on the clip range of the updates to come; a KL controller sets both.
    """

    name = "policy"
    watch = "surrogate"
    figures = ("surrogate", "update_kl", "clipped_share", "ratio", "value_loss", "entropy_bonus", "lm_loss")
    model: LanguagePolicy

    def __init__(self, model: LanguagePolicy, settings: OnlineSettings, *, longest: int) -> None:
        super().__init__(model, ())
        self.settings = settings
        self.longest = longest
        self.weights = token_reductions.get(settings.reduction)
        self.coefficient = settings.kl.coefficient
        self.clip_scale = 1.0

    def totals(self, units: Sequence[Unit[Lessons]]) -> Totals:
        """Of the whole step, so that micro-batches add up."""
        rows = [(row, lesson) for unit in units for row, lesson in zip(unit.rows, unit.label, strict=True)]
        counted = [len(lesson.advantage) for _, lesson in rows if lesson.counted]
        texts = [len(lesson.advantage) for _, lesson in rows if lesson.beside]
        return Totals(sum(counted), len(counted), sum(texts))

    def loss(self, micro: MicroBatch[Lessons], totals: Totals) -> Losses:
        """Each prompt's part of the loss."""
        s = self.settings
        lessons = [lesson for unit in micro.units for lesson in unit.label]
        batch = micro.packed
        out = self.model.evaluate(batch, temperature=s.temperature, entropy=s.entropy_weight > 0)
        device = out.logp.device
        row = torch.from_numpy(batch.row).to(device)
        counted = torch.tensor([lesson.counted for lesson in lessons], device=device)

        def known(name: str) -> Tensor:
            return torch.from_numpy(np.concatenate([getattr(lesson, name) for lesson in lessons])).to(device)

        old, advantage, reference = known("old"), known("advantage"), known("reference")
        advantage = torch.where(
            counted[row], advantage, 0.0
        )  # where nothing counts, nothing flows back, not even a NaN
        weight = self.weights(row, counted, tokens=totals.tokens, rows=totals.rows, length=self.longest)
        log_ratio = out.logp - old if s.ratio == "token" else sequence_log_ratio(out.logp, old, row, batch.n_rows)
        clip = {"clip_low": s.clip_low * self.clip_scale, "clip_high": s.clip_high * self.clip_scale}
        surrogate = clipped_surrogate(log_ratio, advantage, dual_clip=s.dual_clip, **clip)
        if s.engine_weight_cap is not None:
            surrogate = surrogate * truncated_weight(old, known("behaviour"), cap=s.engine_weight_cap)
        loss = surrogate
        figures = {
            "surrogate": _kept(surrogate.detach(), counted[row]),
            "update_kl": _kept(k3(old - out.logp.detach()), counted[row]),
            "clipped_share": _kept(clipped(log_ratio.detach(), advantage, **clip).float(), counted[row]),
            "ratio": _kept(log_ratio.detach().exp(), counted[row]),
        }
        if s.kl.place == "loss" and self.coefficient > 0:
            loss = loss + self.coefficient * kl_estimators.get(s.kl.estimator).fn(out.logp - reference)
        if out.value is not None:
            error = value_clip(out.value, known("value"), known("returns"), clip=s.value_clip)
            loss = loss + s.value_weight * error
            figures["value_loss"] = _kept(error.detach(), counted[row])
        if out.entropy is not None:
            loss = loss - s.entropy_weight * out.entropy
            figures["entropy_bonus"] = _kept(out.entropy.detach(), counted[row])
        per_token = torch.where(weight > 0, weight * loss, 0.0)
        if totals.lm_tokens:
            beside = torch.tensor([lesson.beside for lesson in lessons], device=device)[row]
            per_token = per_token - torch.where(beside, out.logp, 0.0) * (s.lm_weight / totals.lm_tokens)
            figures["lm_loss"] = _kept(-out.logp.detach(), beside)
        per_row = sum_by_row(per_token, row, batch.n_rows)
        nothing = torch.full((1,), torch.nan)
        return Losses(micro.by_unit(per_row), {name: figures.get(name, nothing) for name in self.figures})


def unit_of(name: str, rows: Sequence[TokenRow], lessons: Sequence[Lesson]) -> Unit[Lessons]:
    """A prompt with its answers."""
    return Unit(name, tuple(rows), tuple(lessons))


def _kept(values: Tensor, counted: Tensor) -> Tensor:
    return torch.where(counted, values, torch.nan)
