"""KTO: move a policy by single thumbs, up or down, without pairs (Ethayarajh et al. 2024).

The loss compares each answer's log-ratio with z, an estimate of KL(π‖π_ref) from mismatched answers: each prompt with
the answer that another prompt got. Who is matched with whom is fixed once, so that the reference can be computed once;
z is one number a step, taken over the whole step before its first micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from thumbwheel.batches import TokenRow, token_row
from thumbwheel.config import UpdateSettings
from thumbwheel.errors import DataError, SettingError, explain
from thumbwheel.formulas.preference import kto_kl
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.reference import reference_logps
from thumbwheel.records import Labelled
from thumbwheel.signals.accounts import Account
from thumbwheel.train.choice import loss_of, must_be
from thumbwheel.train.loop import FitResult
from thumbwheel.train.rows import Encoded, Lengths, encode, labelled_rows, within
from thumbwheel.train.stage import REFERENCE, How, run, sides
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit, column, in_micro_batches


@dataclass(frozen=True)
class Thumb:
    """What was said of an answer. `liked` is the probability that it is a good one; the reference as in `dpo.Pair`."""

    liked: float
    weight: float
    mismatched: TokenRow = field(repr=False)
    reference: float = field(default=0.0, repr=False)
    reference_mismatched: float = field(default=0.0, repr=False)


class Totals(NamedTuple):
    """Σ w of a step, and its KL estimate z."""

    weight: float
    kl: Tensor


class Kto(Task[Thumb]):
    """Σᵢ wᵢ L_KTO(rᵢ, z) / Σᵢ wᵢ,  over a step's answers i, r the log-ratio to the reference and z one number for the step"""

    name = "kto"
    watch = "margin"
    figures = ("liked_reward", "disliked_reward", "kl")
    model: LanguageModel

    def __init__(
        self,
        model: LanguageModel,
        units: Sequence[Unit[Thumb]],
        heldout: Sequence[Unit[Thumb]],
        settings: UpdateSettings,
    ) -> None:
        super().__init__(model, units, heldout)
        self.spec, self.options = loss_of(settings)
        self.beta, self.max_tokens = settings.beta, settings.tokens_per_micro_batch

    @torch.no_grad()
    def totals(self, units: Sequence[Unit[Thumb]]) -> Totals:
        """Σ w and z. A step of one answer (the ragged last one) has no other prompt's answer: there z is 0, its floor."""
        weight = sum(unit.label.weight for unit in units)
        if len(units) < 2:
            return Totals(weight, torch.zeros(()))
        swapped = [replace(unit, rows=(unit.label.mismatched,)) for unit in units]
        micros = in_micro_batches(swapped, self.max_tokens)
        logp = torch.cat([self.model.row_logps(micro.packed) for micro in micros])
        reference = [unit.label.reference_mismatched for micro in micros for unit in micro.units]
        return Totals(weight, kto_kl(logp, torch.tensor(reference, device=logp.device)))

    def loss(self, micro: MicroBatch[Thumb], totals: Totals) -> Losses:
        """Each answer's part of the loss."""
        logp = self.model.row_logps(micro.packed)  # (U,)
        reference = column([unit.label.reference for unit in micro.units], logp.device)
        liked = column([unit.label.liked for unit in micro.units], logp.device)
        weight = column([unit.label.weight for unit in micro.units], logp.device)
        kl = totals.kl.to(logp.device)
        loss = self.spec.fn(logp, reference, liked, kl, beta=self.beta, **self.options)
        rewards = self.beta * (logp.detach() - reference)
        figures = {
            "liked_reward": torch.where(liked > 0.5, rewards, torch.nan),
            "disliked_reward": torch.where(liked > 0.5, torch.nan, rewards),
            "kl": kl,
        }
        return Losses(loss * weight / totals.weight, figures)


def kto(
    model: LanguageModel,
    labelled: Sequence[Labelled],
    settings: UpdateSettings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    heldout: Sequence[Labelled] | None = None,
    cache: Path | None = None,
    **how: Unpack[How],
) -> FitResult:
    """Train `model` in place on labelled answers and save it in `folder`/model; called by `dpo` for unpaired losses.

    A value above 0 is liked, below 0 disliked, its size a weight; 0 says nothing and is left out, counted as neutral.
    Raises SettingError for a batch of one, DataError where all answers are liked or all disliked.
    """
    must_be(Labelled, labelled, settings)
    if settings.batch_size < 2:
        raise SettingError(
            explain(
                "The loss 'kto' compares each answer with other answers of its batch.",
                allowed="'update.batch_size' of 2 or more",
                got=settings.batch_size,
                next="Raise it; 'tokens_per_micro_batch' limits the memory.",
            ),
            field="batch_size",
        )
    lengths = within(lengths, model)
    train, held = sides(labelled, heldout, settings)
    both_kinds(train)
    units: list[list[Unit[Thumb]]] = []
    accounts: list[Account] = []
    for side in (train, held):
        encoded = encode(
            [record for record in side if record.value != 0], model.template, labelled_rows, noun="answer",
            lengths=lengths, max_unusable_share=settings.max_unusable_share,
        )  # fmt: skip
        neutral = len(side) - encoded.account.read
        accounts.append(replace(encoded.account, read=len(side), unscored=neutral))
        answers = matched(encoded.rows, seed=settings.seed, max_tokens=lengths.max_tokens)
        units.append(with_reference(model, answers, settings, cache or folder / REFERENCE))
    task = Kto(model, units[0], units[1], settings)
    return run(task, settings, folder, save=model.save, template=model.template, account=accounts[0], how=how)


def both_kinds(labelled: Sequence[Labelled]) -> None:
    """Raises DataError where all answers are liked, or all are disliked: KTO then has nothing to tell apart."""
    liked = sum(record.value > 0 for record in labelled)
    disliked = sum(record.value < 0 for record in labelled)
    if not liked or not disliked:
        only = "liked" if liked else "disliked"
        raise DataError(
            explain(
                f"The loss 'kto' needs liked and disliked answers; all of these are {only}.",
                allowed="at least one of each",
                got={"liked": liked, "disliked": disliked},
                next="Train on liked answers alone with method 'sft'."
                if liked
                else "Collect some liked answers first.",
            )
        )


def matched(rows: Sequence[Encoded[Labelled]], *, seed: int, max_tokens: int) -> list[Unit[Thumb]]:
    """Units, each with its prompt before an answer that another prompt got, cut to `max_tokens`.

    Where all prompts are one, another answer to it takes that place.
    """
    n = len(rows)
    order = [int(i) for i in np.random.default_rng(seed).permutation(n)]
    prompts = [row.rows[0].ids[: row.rows[0].shared].tobytes() for row in rows]
    partner: dict[int, int] = {}
    for place, index in enumerate(order):
        others = (order[(place + step) % n] for step in range(1, n))
        partner[index] = next((other for other in others if prompts[other] != prompts[index]), order[(place + 1) % n])
    units = []
    for index, encoded in enumerate(rows):
        own, other = encoded.rows[0], rows[partner[index]].rows[0]
        room = max(1, max_tokens - own.shared)
        mismatched = token_row(own.ids[: own.shared].tolist(), other.ids[other.shared :][:room].tolist())
        record = encoded.record
        liked = 1 - record.noise_rate if record.value > 0 else record.noise_rate
        label = Thumb(liked, record.weight * abs(record.value), mismatched)
        units.append(Unit(encoded.name, encoded.rows, label))
    return units


def with_reference(
    model: LanguageModel, units: Sequence[Unit[Thumb]], settings: UpdateSettings, cache: Path
) -> list[Unit[Thumb]]:
    """The units with the log-probabilities that the model as it is now gives own and mismatched answers."""
    rows = [row for unit in units for row in (unit.rows[0], unit.label.mismatched)]
    logps = iter(reference_logps(model, rows, cache=cache, max_tokens=settings.tokens_per_micro_batch).tolist())
    return [
        replace(unit, label=replace(unit.label, reference=next(logps), reference_mismatched=next(logps)))
        for unit in units
    ]
