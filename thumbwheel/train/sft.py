"""Supervised fine-tuning: learn answers worth copying. Loss on answers only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import torch

from thumbwheel.config import TrainSettings
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Demonstration
from thumbwheel.signals.accounts import Account
from thumbwheel.train.loop import FitResult
from thumbwheel.train.rows import Lengths, demonstration_rows, encode, within
from thumbwheel.train.stage import How, run, sides
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit, column

FEW, MANY = 1_000, 100_000


class Sft(Task[float]):
    """Σᵢ wᵢ Σₜ -log π(yᵢₜ) / Σᵢ wᵢ nᵢ,  over a step's answers i of weight w and n trained tokens: every token counts alike."""

    name = "sft"
    model: LanguageModel

    def totals(self, units: Sequence[Unit[float]]) -> float:
        """Σ w n."""
        return sum(unit.label * int(unit.rows[0].trained.sum()) for unit in units)

    def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
        """Each answer's part of the loss. Where no token is trained nothing is computed: loss 0, gradient 0."""
        weight = column([unit.label for unit in micro.units], self.model.device)  # (U,)
        if not micro.packed.n_trained:
            return Losses(torch.zeros_like(weight))
        return Losses(-self.model.row_logps(micro.packed) * weight / totals)


def sft(
    model: LanguageModel,
    demonstrations: Sequence[Demonstration],
    settings: TrainSettings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    heldout: Sequence[Demonstration] | None = None,
    **how: Unpack[How],
) -> FitResult:
    """Train `model` in place on demonstrations and save it in `folder`/model.

    Without `heldout`, `settings.eval_share` of the prompts are held out. Notes of the result say where the amount of data
    is out of the ordinary, and count duplicates. Raises DataError (too many rows cannot be used), and as `fit` does.
    """
    train, held = sides(demonstrations, heldout, settings)
    units: list[list[Unit[float]]] = []
    accounts: list[Account] = []
    for side in (train, held):
        encoded = encode(
            side, model.template, demonstration_rows, noun="demonstration",
            lengths=within(lengths, model), max_unusable_share=settings.max_unusable_share,
        )  # fmt: skip
        units.append([Unit(row.name, row.rows, row.record.weight) for row in encoded.rows])
        accounts.append(encoded.account)
    task = Sft(model, units[0], units[1])
    return run(
        task,
        settings,
        folder,
        save=model.save,
        template=model.template,
        account=accounts[0],
        notes=warnings_about(task.units),
        how=how,
    )


def warnings_about(units: Sequence[Unit[float]]) -> list[str]:
    """What a person should know before training on so few, so many, or such repeated answers."""
    n = len(units)
    notes = []
    if n < FEW:
        notes.append(f"{n} demonstrations are few (under {FEW}): expect a change of style rather than of skill.")
    if n > MANY:
        notes.append(
            f"{n} demonstrations are many (over {MANY}): quality usually pays more than quantity from here on."
        )
    copies = n - len({unit.rows[0].ids.tobytes() for unit in units})
    if copies:
        notes.append(f"{copies} of {n} demonstrations are exact duplicates of others and count more than once.")
    return notes
