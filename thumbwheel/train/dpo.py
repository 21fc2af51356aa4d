"""The DPO family: move a policy by pairs of answers. The loss is a name in `preference_losses`; KTO takes single thumbs.

Axes: U pair, R row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack, cast

import torch
from torch import Tensor

from thumbwheel.config import UpdateSettings
from thumbwheel.formulas.preference import mean_nll
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.reference import reference_logps
from thumbwheel.records import Labelled, Preference
from thumbwheel.signals.accounts import Account
from thumbwheel.train.choice import loss_of, must_be
from thumbwheel.train.kto import kto
from thumbwheel.train.loop import FitResult
from thumbwheel.train.reward import agreement, preference_of
from thumbwheel.train.rows import Lengths, encode, preference_rows, within
from thumbwheel.train.stage import REFERENCE, How, run, sides
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit, column

log = logging.getLogger("thumbwheel.train")
CHOSEN, REJECTED = 0, 1  # places of a pair's rows in its unit


@dataclass(frozen=True)
class Pair:
    """What was said of two answers, and (chosen, rejected) log-probabilities (nats) under the reference.

    The reference is a function of data and model, so it is left out of the data's hash.
    """

    preference: float
    weight: float
    reference: tuple[float, float] = field(default=(0.0, 0.0), repr=False)


class Dpo(Task[Pair]):
    """Σᵢ wᵢ (Lᵢ + c NLLᵢ) / Σᵢ wᵢ,  over a step's pairs i; L any paired loss of `preference_losses`, NLL of the chosen answer"""

    name = "dpo"
    watch = "margin"
    figures = ("accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logp", "chosen_logp_change")
    model: LanguageModel

    def __init__(
        self, model: LanguageModel, units: Sequence[Unit[Pair]], heldout: Sequence[Unit[Pair]], settings: UpdateSettings
    ) -> None:
        super().__init__(model, units, heldout)
        self.spec, self.options = loss_of(settings)
        self.beta, self.nll_weight = settings.beta, settings.nll_weight

    def totals(self, units: Sequence[Unit[Pair]]) -> float:
        """Σ w."""
        return sum(unit.label.weight for unit in units)

    def loss(self, micro: MicroBatch[Pair], totals: float) -> Losses:
        """Both answers of every pair in one forward; the reference was computed beforehand."""
        logp = self.model.row_logps(micro.packed)  # (R,)
        device = logp.device
        first = torch.from_numpy(micro.first).to(device)
        length = column(micro.row_lengths, device).clamp(min=1)  # (R,)
        chosen, rejected = logp[first + CHOSEN], logp[first + REJECTED]  # (U,)
        ref_chosen = column([unit.label.reference[CHOSEN] for unit in micro.units], device)
        ref_rejected = column([unit.label.reference[REJECTED] for unit in micro.units], device)
        preference = column([unit.label.preference for unit in micro.units], device)
        per_token = length if self.spec.length_averaged else torch.ones_like(length)
        n_chosen, n_rejected = per_token[first + CHOSEN], per_token[first + REJECTED]
        scores = [chosen / n_chosen, rejected / n_rejected]
        if self.spec.needs_reference:
            scores += [ref_chosen / n_chosen, ref_rejected / n_rejected]
        loss = self.spec.fn(*scores, beta=self.beta, preference=preference, **self.options)
        if self.nll_weight:
            loss = loss + self.nll_weight * mean_nll(chosen, length[first + CHOSEN])
        weight = column([unit.label.weight for unit in micro.units], device)
        return Losses(loss * weight / totals, self._figures(scores, preference, chosen, ref_chosen))

    def _figures(
        self, scores: Sequence[Tensor], preference: Tensor, chosen: Tensor, ref_chosen: Tensor
    ) -> dict[str, Tensor]:
        """Rewards are β times the log-ratio to the reference, or β times the log-probability where there is none."""
        base = scores[2:] if self.spec.needs_reference else [torch.zeros_like(score) for score in scores]
        good, bad = (self.beta * (score.detach() - ref) for score, ref in zip(scores[:2], base, strict=True))
        change = chosen.detach() - ref_chosen if self.spec.needs_reference else torch.full_like(ref_chosen, torch.nan)
        return {
            "accuracy": agreement(good - bad, preference), "margin": good - bad, "chosen_reward": good,
            "rejected_reward": bad, "chosen_logp": chosen, "chosen_logp_change": change,
        }  # fmt: skip


def dpo(
    model: LanguageModel,
    records: Sequence[Preference] | Sequence[Labelled],
    settings: UpdateSettings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    heldout: Sequence[Preference] | Sequence[Labelled] | None = None,
    cache: Path | None = None,
    **how: Unpack[How],
) -> FitResult:
    """Train `model` in place on pairs (on labelled answers for KTO) and save it in `folder`/model.

    The reference is the model as it comes in; its log-probabilities are computed once and kept in `cache`, which is
    `folder`/reference unless named.
    Raises SettingError (an option that the loss does not have, or one that it needs), DataError, and as `fit` does.
    """
    spec, _ = loss_of(settings)
    if not spec.paired:
        thumbs, held = cast(Sequence[Labelled], records), cast("Sequence[Labelled] | None", heldout)
        return kto(model, thumbs, settings, folder, lengths=lengths, heldout=held, cache=cache, **how)
    must_be(Preference, records, settings)
    units: list[list[Unit[Pair]]] = []
    accounts: list[Account] = []
    for side in sides(cast(Sequence[Preference], records), cast("Sequence[Preference] | None", heldout), settings):
        encoded = encode(
            side, model.template, preference_rows, noun="pair", lengths=within(lengths, model),
            max_unusable_share=settings.max_unusable_share, is_tie=lambda pair: preference_of(pair) == 0.5,
        )  # fmt: skip
        pairs = [Unit(row.name, row.rows, Pair(preference_of(row.record), row.record.weight)) for row in encoded.rows]
        units.append(
            with_reference(model, pairs, settings, cache or folder / REFERENCE) if spec.needs_reference else pairs
        )
        accounts.append(encoded.account)
    task = Dpo(model, units[0], units[1], settings)
    result = run(task, settings, folder, save=model.save, template=model.template, account=accounts[0], how=how)
    notes = falling(result.metrics)
    for note in notes:
        log.warning("dpo: %s", note)
    return replace(result, notes=(*result.notes, *notes))


def with_reference(
    model: LanguageModel, units: Sequence[Unit[Pair]], settings: UpdateSettings, cache: Path
) -> list[Unit[Pair]]:
    """The units with the log-probabilities that the model as it is now gives their answers."""
    rows = [row for unit in units for row in unit.rows]
    logps = iter(reference_logps(model, rows, cache=cache, max_tokens=settings.tokens_per_micro_batch).tolist())
    return [replace(unit, label=replace(unit.label, reference=(next(logps), next(logps)))) for unit in units]


def falling(metrics: Mapping[str, float]) -> list[str]:
    """A note where training made the chosen answers less likely: the pairs were then learned by unlearning (Pang et al. 2024)."""
    change = metrics.get("chosen_logp_change", 0.0)
    if change >= 0:
        return []
    return [
        f"The log-probability of chosen answers fell by {-change:.3g} nats on average over the last epoch. "
        "A little is usual; where it is much, set 'update.nll_weight', raise 'update.beta', or lower the learning rate."
    ]
