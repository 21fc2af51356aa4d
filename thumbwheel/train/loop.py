"""One loop for every update from rows at hand: epochs of weight updates, evaluation, early stopping, checkpoints, metrics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch

from thumbwheel.config import TrainSettings
from thumbwheel.errors import CheckpointError, DataError
from thumbwheel.signals.accounts import Account
from thumbwheel.train.journal import Journal
from thumbwheel.train.learner import Learner
from thumbwheel.train.saves import Position, Saves, settings_hash
from thumbwheel.train.schedule import learning_rate
from thumbwheel.train.task import Task, evaluate
from thumbwheel.train.units import Unit, data_hash, epoch_order

L = TypeVar("L")
log = logging.getLogger("thumbwheel.train")


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
            return run.train(run.begin(resume=resume), watcher or (lambda report: None), progress=progress, clock=clock)
        finally:
            task.model.zero_grad(set_to_none=True)


class _Run(Generic[L]):
    """The moving parts of one `fit`."""

    def __init__(self, task: Task[L], settings: TrainSettings, folder: Path, identity: Mapping[str, str]) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.learner = Learner(task, settings)
        self.accelerator = self.learner.accelerator
        hashes = {"data": data_hash(task.units), "settings": settings_hash(settings), **identity}
        self.saves = Saves(folder, self.learner.parameters, self.learner.optimiser, hashes, settings.keep_checkpoints)
        self.steps_per_epoch = math.ceil(len(task.units) / settings.batch_size)
        self.steps = settings.epochs * self.steps_per_epoch

    def begin(self, *, resume: bool) -> Position:
        """Where the run starts, or goes on."""
        if resume:
            return Position(**self.saves.resume().about["position"])
        self.saves.begin()
        return Position()

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
                    self.saves.write(position.step, {"position": asdict(position)})
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
        """One weight update; its figures."""
        figures = self.learner.update(self.units_of(step), learning_rate(step, self.steps, self.settings))
        return {**figures, "epoch": float(step // self.steps_per_epoch)}

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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
