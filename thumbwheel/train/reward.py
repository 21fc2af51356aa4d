"""Reward model on a language model's trunk: a score for prompt and answer, learned from comparisons.

Every answer to a prompt goes through the trunk once, however many pairs it is in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from thumbwheel.batches import TokenRow
from thumbwheel.config import RewardSettings
from thumbwheel.formulas.bradley_terry import bradley_terry, centring
from thumbwheel.models.heads import RewardModel
from thumbwheel.records import Preference
from thumbwheel.train.loop import FitResult
from thumbwheel.train.rows import Encoded, Lengths, encode, preference_rows, within
from thumbwheel.train.stage import How, run, sides
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit, column, in_micro_batches

log = logging.getLogger("thumbwheel.train")
NORMALISED_ON = 1024  # training answers that the scores' mean and deviation are taken from


@dataclass(frozen=True)
class Compared:
    """One comparison among the answers of a unit: `chosen` is better than `rejected` with probability `preference`."""

    chosen: int
    rejected: int
    preference: float
    margin: float
    weight: float


Pairs = tuple[Compared, ...]


class Reward(Task[Pairs]):
    """Σ_g 1/P_g Σ_{pairs of g} w (L_BT + c (r_w + r_l)²) / Σ_g w̄_g,  over a step's prompts g with P_g pairs of mean weight w̄_g

    A prompt counts once however many answers it has (Ouyang et al. 2022, eq. 1).
    """

    name = "reward"
    watch = "accuracy"
    figures = ("accuracy", "gap", "score")
    model: RewardModel

    def __init__(
        self,
        model: RewardModel,
        units: Sequence[Unit[Pairs]],
        heldout: Sequence[Unit[Pairs]],
        *,
        tau: float,
        centre: float,
    ) -> None:
        super().__init__(model, units, heldout)
        self.tau, self.centre = tau, centre

    def totals(self, units: Sequence[Unit[Pairs]]) -> float:
        """Σ w̄."""
        return sum(float(np.mean([pair.weight for pair in unit.label])) for unit in units)

    def loss(self, micro: MicroBatch[Pairs], totals: float) -> Losses:
        """One forward for all answers, then every pair."""
        score = self.model.raw_scores(micro.packed)  # (R,)
        pairs = [(u, pair) for u, unit in enumerate(micro.units) for pair in unit.label]
        first, device = micro.first, score.device
        chosen = score[torch.tensor([int(first[u]) + pair.chosen for u, pair in pairs], device=device)]  # (P,)
        rejected = score[torch.tensor([int(first[u]) + pair.rejected for u, pair in pairs], device=device)]
        preference = column([pair.preference for _, pair in pairs], device)
        margin = column([pair.margin for _, pair in pairs], device)
        share = column([pair.weight / (len(micro.units[u].label) * totals) for u, pair in pairs], device)
        loss = bradley_terry(chosen, rejected, tau=self.tau, margin=margin, preference=preference)
        loss = (loss + self.centre * centring(chosen, rejected)) * share
        unit_of_pair = torch.tensor([u for u, _ in pairs], device=device)
        per_unit = loss.new_zeros(len(micro.units)).index_add(0, unit_of_pair, loss)
        gap = chosen.detach() - rejected.detach()
        figures = {"accuracy": agreement(gap, preference), "gap": gap, "score": score}
        return Losses(per_unit, figures)


def agreement(gap: Tensor, preference: Tensor) -> Tensor:
    """(P,) 1 where the gap's sign is that of preference - ½, 0 where it is the other, ½ for no gap, NaN for a tie.

    Known value: gap (2, -1, 0, 3), preference (1, 1, 1, ½) -> (1, 0, ½, NaN).
    """
    right = torch.sign(gap) * torch.sign(preference - 0.5)
    return torch.where(preference == 0.5, torch.nan, (right + 1) / 2)


def reward(
    model: RewardModel,
    preferences: Sequence[Preference],
    settings: RewardSettings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    heldout: Sequence[Preference] | None = None,
    **how: Unpack[How],
) -> FitResult:
    """Train `model` in place on comparisons and save it, its scores normalised, in `folder`/model.

    Without `heldout`, `settings.eval_share` of the prompts are held out. Raises as `thumbwheel.train.sft.sft` does.
    """
    template = model.language_model.template
    encoded = [
        encode(
            side, template, preference_rows, noun="pair", lengths=within(lengths, model.language_model),
            max_unusable_share=settings.max_unusable_share, is_tie=lambda pair: pair.p == 0.5,
        )
        for side in sides(preferences, heldout, settings)
    ]  # fmt: skip
    units, held = (by_prompt(side.rows) for side in encoded)
    task = Reward(model, units, held, tau=settings.temperature, centre=settings.centring)

    def save(path: Path) -> None:
        if settings.normalise:
            model.normalise(raw_scores(model, units, settings.tokens_per_micro_batch))
        model.save(path)

    return run(task, settings, folder, template=template, account=encoded[0].account, save=save, how=how)


def by_prompt(pairs: Sequence[Encoded[Preference]]) -> list[Unit[Pairs]]:
    """One unit a prompt, in order of first sight: its distinct answers once each, and all comparisons among them."""
    answers: dict[bytes, dict[bytes, tuple[int, TokenRow]]] = {}
    compared: dict[bytes, list[Compared]] = {}
    names: dict[bytes, str] = {}
    for pair in pairs:
        chosen, rejected = pair.rows
        prompt = chosen.ids[: chosen.shared].tobytes()
        known = answers.setdefault(prompt, {})
        better, worse = (known.setdefault(row.ids.tobytes(), (len(known), row))[0] for row in (chosen, rejected))
        record = pair.record
        label = Compared(better, worse, preference_of(record), record.margin or 0.0, record.weight)
        compared.setdefault(prompt, []).append(label)
        names.setdefault(prompt, pair.name)
    return [
        Unit(names[prompt], tuple(row for _, row in answers[prompt].values()), tuple(compared[prompt]))
        for prompt in answers
    ]


def preference_of(record: Preference) -> float:
    """P(chosen is better): ½ for a tie."""
    return 0.5 if record.tie else record.p


@torch.no_grad()
def raw_scores(model: RewardModel, units: Sequence[Unit[Pairs]], max_tokens: int) -> Tensor:
    """(R,) raw scores of about `NORMALISED_ON` training answers, taken evenly from all of them."""
    every = max(1, sum(len(unit.rows) for unit in units) // NORMALISED_ON)
    model.eval()
    return torch.cat([model.raw_scores(micro.packed) for micro in in_micro_batches(units[::every], max_tokens)])
