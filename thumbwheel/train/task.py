"""What an update is: a task says what its units are and what a loss is; one step of it goes through the model here.

A step's units are cut into micro-batches by token budget. Losses are normalised by totals over the whole step, so the
cuts never change the gradient. With several processes (accelerate) each takes its share of the micro-batches and
gradients are summed: the result is that of one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from thumbwheel.config import TrainSettings
from thumbwheel.errors import TrainingError
from thumbwheel.train.units import MicroBatch, Unit, in_micro_batches

L = TypeVar("L")


@dataclass(frozen=True)
class Losses:
    """What a task says of one micro-batch.

    per_unit  (U,) each unit's part of the step's loss, already divided by the step's totals: they sum to the loss
    figures   name -> (any number,) values to be averaged over the step; NaN is "does not apply here"
    """

    per_unit: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)


class Task(ABC, Generic[L]):
    """One kind of update.

    name     what it is called in messages
    watch    the figure that people watch: "loss" or one of `figures`
    figures  names of what `loss` returns beside the loss
    """

    name: ClassVar[str]
    watch: ClassVar[str] = "loss"
    figures: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module, units: Sequence[Unit[L]], heldout: Sequence[Unit[L]] = ()) -> None:
        self.model = model
        self.units = units
        self.heldout = heldout

    @abstractmethod
    def totals(self, units: Sequence[Unit[L]]) -> Any:
        """What the losses of these units are divided by; asked once a step, for all of its units."""

    @abstractmethod
    def loss(self, micro: MicroBatch[L], totals: Any) -> Losses:
        """The part of the step's loss that these units make."""


def evaluate(
    task: Task[L], units: Sequence[Unit[L]], settings: TrainSettings, accelerator: Accelerator | None = None
) -> dict[str, float]:
    """Loss and figures of `units` as if they were one step, without learning."""
    task.model.eval()
    with torch.no_grad():
        return through(task, units, settings, accelerator or accelerator_of(), learn=False)[0]


def through(
    task: Task[L], units: Sequence[Unit[L]], settings: TrainSettings, accelerator: Accelerator, *, learn: bool
) -> tuple[dict[str, float], bool]:
    """Loss and figures of `units` as one step, its gradient added on the weights if they are to `learn`; whether any was."""
    names = ("loss", *task.figures)
    sums = torch.zeros(2, len(names) + 1, dtype=torch.float64)
    try:
        totals = task.totals(units)
        micros = in_micro_batches(units, settings.tokens_per_micro_batch)
        for micro in micros[accelerator.process_index :: accelerator.num_processes]:
            losses = task.loss(micro, totals)
            _must_be_finite(task, losses.per_unit, micro.units)
            _add(sums, names, losses, micro.packed.n_tokens)
            if learn and losses.per_unit.requires_grad:
                accelerator.backward(losses.per_unit.sum())
                sums[1, -1] += 1
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"Out of memory in the {task.name} update. Lower 'tokens_per_micro_batch' "
            f"(now {settings.tokens_per_micro_batch}; it changes no result) and resume, or checkpoint gradients."
        ) from error
    if accelerator.num_processes > 1:
        sums = _summed(accelerator, sums.to(accelerator.device)).cpu()
        for parameter in task.model.parameters():
            if sums[1, -1] > 0 and parameter.grad is not None:
                parameter.grad = _summed(accelerator, parameter.grad)
    total, count = sums.tolist()
    figures = {name: t / n for name, t, n in zip(names[1:], total[1:-1], count[1:-1], strict=True) if n > 0}
    return {"loss": total[0], **figures, "tokens": total[-1]}, count[-1] > 0


def accelerator_of() -> Accelerator:
    """Every process that takes part, or this one alone."""
    return Accelerator(mixed_precision="no")  # the model has a precision of its own


def _summed(accelerator: Accelerator, tensor: Tensor) -> Tensor:
    """The sum over all processes."""
    summed: Tensor = accelerator.reduce(tensor, reduction="sum")
    return summed


def _must_be_finite(task: Task[L], per_unit: Tensor, units: Sequence[Unit[L]]) -> None:
    if bool(per_unit.isfinite().all()):
        return
    bad = [unit.name for unit, ok in zip(units, per_unit.isfinite().tolist(), strict=True) if not ok]
    raise TrainingError(
        f"The loss of the {task.name} update is not finite for {', '.join(bad[:5])}"
        f"{' and others' if len(bad) > 5 else ''}. Look at these rows; lower the learning rate; "
        "the last checkpoint is sound and can be resumed from."
    )


def _add(sums: Tensor, names: Sequence[str], losses: Losses, n_tokens: int) -> None:
    sums[0, 0] += losses.per_unit.detach().sum().double().cpu()
    for place, name in enumerate(names[1:], start=1):
        values = losses.figures[name].detach().double().cpu()
        known = values[~values.isnan()]
        sums[0, place] += known.sum()
        sums[1, place] += known.numel()
    sums[0, -1] += n_tokens
