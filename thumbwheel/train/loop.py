"""One loop for every update. A task says what its units are and what a loss is; everything else happens here.

An optimiser step takes `batch_size` units and cuts them into micro-batches by token budget. Losses are normalised by
totals over the whole step, so the cuts never change the gradient. With several processes (accelerate) each takes its
share of the micro-batches and gradients are summed: the result is that of one process.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from thumbwheel.config import TrainSettings
from thumbwheel.errors import CheckpointError, DataError, TrainingError
from thumbwheel.signals.accounts import Account
from thumbwheel.train.journal import Journal
from thumbwheel.train.saves import Position, Saves, settings_hash
from thumbwheel.train.schedule import learning_rate
from thumbwheel.train.units import MicroBatch, Unit, data_hash, epoch_order, in_micro_batches

L = TypeVar("L")
log = logging.getLogger("thumbwheel.train")


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


@dataclass(frozen=True)
class FitResult:
    """What came out of a run.

    steps       optimiser steps done, over all resumed parts
    metrics     means over the last epoch, `first_…` of the first step, `heldout_…` at the end
    stopped     "finished", or "patience" where early stopping ended it (the best weights are then in place)
    empty_steps steps in which no token carried loss: weights stayed as they were
    account     rows in, kept, dropped
    seconds     spent in this process on weight updates
    checkpoint  folder of the saved model, once there is one
    """

    steps: int
    metrics: dict[str, float]
    stopped: Literal["finished", "patience"]
    empty_steps: int
    seconds: float
    account: Account = field(default_factory=Account)
    notes: tuple[str, ...] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True)
class StepReport:
    """Sent to a watcher after every update (before its evaluation and checkpoint), and once where the run begins or resumes."""

    step: int
    steps: int
    figures: Mapping[str, float]


def fit(
    task: Task[L],
    settings: TrainSettings,
    folder: Path,
    *,
    resume: bool = False,
    identity: Mapping[str, str] | None = None,
    watcher: Callable[[StepReport], None] | None = None,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> FitResult:
    """Train `task.model` in place; checkpoints and metrics go to `folder`. `identity` adds hashes (model, template) that
    must be the same on resuming.

    Raises DataError (nothing to train on), TrainingError (not finite, out of memory), CheckpointError (`resume` with
    nothing there, with other data or settings; no `resume` where a run is already there; disk full).
    """
    if not task.units:
        raise DataError(f"The {task.name} update has no row to train on. Look at the account of dropped rows.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"The folder '{folder}' cannot be made: {error}. Name another one.") from error
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        run = _Run(task, settings, folder, identity or {})
        try:
            position = run.saves.resume() if resume else run.saves.begin()
            return run.train(position, watcher or (lambda report: None), progress=progress, clock=clock)
        finally:
            task.model.zero_grad(set_to_none=True)


class _Run(Generic[L]):
    """The moving parts of one `fit`."""

    def __init__(self, task: Task[L], settings: TrainSettings, folder: Path, identity: Mapping[str, str]) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.accelerator = _accelerator()
        self.parameters = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise TrainingError("No weight of the model learns. Load it with trainable=True.")
        self.optimiser = adamw(self.parameters, settings)
        for parameter in self.parameters.values():  # kept and zeroed: large gradients made anew cost page faults
            parameter.grad = torch.zeros_like(parameter)
        hashes = {"data": data_hash(task.units), "settings": settings_hash(settings), **identity}
        self.saves = Saves(folder, self.parameters, self.optimiser, hashes, settings.keep_checkpoints)
        self.steps_per_epoch = math.ceil(len(task.units) / settings.batch_size)
        self.steps = settings.epochs * self.steps_per_epoch

    def train(
        self, position: Position, watcher: Callable[[StepReport], None], *, progress: bool, clock: Callable[[], float]
    ) -> FitResult:
        """Steps until the end, or until early stopping."""
        seconds = 0.0
        settings, main = self.settings, self.accelerator.is_main_process
        self._say_plan(position)
        with Journal(
            self.folder, name=self.task.name, watch=self.task.watch, start=position.step, steps=self.steps,
            progress=progress, tensorboard=settings.tensorboard, writes=main,
        ) as journal:  # fmt: skip
            watcher(StepReport(position.step, self.steps, {}))
            while position.step < self.steps and not position.stopped:
                began = clock()
                figures = self.update(position.step)
                seconds += clock() - began
                position = replace(position, step=position.step + 1)
                journal.step(position.step, figures)
                watcher(StepReport(position.step, self.steps, figures))
                if self._evaluation_due(position.step):
                    position = self._evaluate(position, journal)
                if main and (position.step % settings.checkpoint_every_steps == 0 or self._ends(position)):
                    self.saves.write(position)
            self.accelerator.wait_for_everyone()
            if settings.patience and self.task.heldout and position.best_step not in (0, position.step):
                self.saves.restore_best()
            lines = journal.lines()
        stopped: Literal["finished", "patience"] = "patience" if position.stopped else "finished"
        empty = sum("loss" in line and "grad_norm" not in line for line in lines)
        return FitResult(position.step, self._metrics(lines, position), stopped, empty, seconds)

    # ------------------------------------------------------------------ one step

    def units_of(self, step: int) -> list[Unit[L]]:
        """The units of a step; the last step of an epoch takes what is left."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(len(self.task.units), seed=self.settings.seed, epoch=epoch)
        size = self.settings.batch_size
        return [self.task.units[int(index)] for index in order[place * size : (place + 1) * size]]

    def update(self, step: int) -> dict[str, float]:
        """One weight update; its figures. `grad_norm` is absent where no token carried loss."""
        units = self.units_of(step)
        rate = learning_rate(step, self.steps, self.settings)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.task.model.train()
        figures, learned = through(self.task, units, self.settings, self.accelerator, learn=True)
        figures["lr"] = rate
        figures["epoch"] = float(step // self.steps_per_epoch)
        if learned:
            figures["grad_norm"] = self._clip(units)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=False)
        return figures

    def _clip(self, units: Sequence[Unit[L]]) -> float:
        """Scale gradients to the largest norm allowed; the norm they had."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = total_norm(grads)
        if not math.isfinite(norm):
            odd = [n for n, p in self.parameters.items() if p.grad is not None and not bool(p.grad.isfinite().all())]
            raise TrainingError(
                f"The gradient of the {self.task.name} update is not finite in {', '.join(odd[:3]) or 'its norm'}, for a step of "
                f"{', '.join(unit.name for unit in units[:5])}. Lower the learning rate, or drop rows that are out of "
                "the ordinary; the last checkpoint is sound and can be resumed from."
            )
        if norm > self.settings.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters.values(), self.settings.max_grad_norm, torch.tensor(norm))
        return norm

    # ------------------------------------------------------------------ around the steps

    def _evaluation_due(self, step: int) -> bool:
        every = self.settings.eval_every_steps or self.steps_per_epoch
        return bool(self.task.heldout) and (step % every == 0 or step == self.steps)

    def _evaluate(self, position: Position, journal: Journal) -> Position:
        """Measure held-out units, and tell whether patience has run out."""
        figures = evaluate(self.task, self.task.heldout, self.settings, self.accelerator)
        journal.held_out(position.step, {f"heldout_{name}": value for name, value in figures.items()})
        log.info("%s step %d: held-out loss %.4f", self.task.name, position.step, figures["loss"])
        if not self.settings.patience:
            return position
        if position.best_loss is None or figures["loss"] < position.best_loss:
            if self.accelerator.is_main_process:
                self.saves.write_best(position.step)
            return replace(position, best_loss=figures["loss"], best_step=position.step, without_gain=0)
        missed = position.without_gain + 1
        return replace(position, without_gain=missed, stopped=missed >= self.settings.patience)

    def _ends(self, position: Position) -> bool:
        return position.stopped or position.step == self.steps

    def _metrics(self, lines: Sequence[Mapping[str, float]], position: Position) -> dict[str, float]:
        """Means over the last epoch, the first step's figures, and the held-out ones that belong to the final weights."""
        steps = [line for line in lines if "loss" in line]
        if not steps:
            return {}
        last = [line for line in steps if line["epoch"] == steps[-1]["epoch"]]
        names = sorted({name for line in last for name in line} - {"step", "epoch", "lr", "tokens"})
        metrics = {name: _mean([line[name] for line in last if name in line]) for name in names}
        metrics |= {f"first_{name}": steps[0][name] for name in ("loss", *self.task.figures) if name in steps[0]}
        metrics["tokens"] = sum(line["tokens"] for line in steps)
        final = position.best_step if self.settings.patience and position.best_step else position.step
        held = [line for line in lines if "heldout_loss" in line and line["step"] == final]
        return metrics | ({k: v for k, v in held[-1].items() if k.startswith("heldout_")} if held else {})

    def _say_plan(self, position: Position) -> None:
        n, size = len(self.task.units), self.settings.batch_size
        log.info(
            "%s: %d units, %d held out, %d a step, last step of an epoch %d; %d epochs, %d steps%s",
            self.task.name, n, len(self.task.heldout), size, n % size or min(n, size), self.settings.epochs, self.steps,
            f", resumed at {position.step}" if position.step else "",
        )  # fmt: skip


def evaluate(
    task: Task[L], units: Sequence[Unit[L]], settings: TrainSettings, accelerator: Accelerator | None = None
) -> dict[str, float]:
    """Loss and figures of `units` as if they were one step, without learning."""
    task.model.eval()
    with torch.no_grad():
        return through(task, units, settings, accelerator or _accelerator(), learn=False)[0]


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


def _accelerator() -> Accelerator:
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


def adamw(parameters: Mapping[str, nn.Parameter], settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW in one fused kernel; vectors and scalars (norms, biases) do not decay (Loshchilov & Hutter 2019)."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr, betas=settings.adam_betas, eps=settings.adam_eps, fused=True,
    )  # fmt: skip


def total_norm(tensors: Sequence[Tensor]) -> float:
    """√(Σ x²) over all of them, row by row: one sum over a large matrix is three times slower and loses digits."""
    rows = [torch.linalg.vector_norm(x, dim=-1).flatten() if x.ndim > 1 else x.flatten() for x in tensors]
    return float(torch.linalg.vector_norm(torch.cat(rows)))


def _add(sums: Tensor, names: Sequence[str], losses: Losses, n_tokens: int) -> None:
    sums[0, 0] += losses.per_unit.detach().sum().double().cpu()
    for place, name in enumerate(names[1:], start=1):
        values = losses.figures[name].detach().double().cpu()
        known = values[~values.isnan()]
        sums[0, place] += known.sum()
        sums[1, place] += known.numel()
    sums[0, -1] += n_tokens


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
