"""What a run says while it trains: a line of JSON a step, TensorBoard where asked for, and a progress bar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from thumbwheel.errors import CheckpointError
from thumbwheel.stores import files as disk

METRICS = "metrics.jsonl"


class Journal:
    """Metrics of one run, in `folder/metrics.jsonl`. Lines after step `start` belong to a killed run and are cut off.

    `watch` is the figure beside the progress bar. Without `writes` (any process but the first) it says nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        watch: str,
        start: int,
        steps: int,
        progress: bool,
        tensorboard: bool = False,
        writes: bool = True,
    ) -> None:
        self.path = folder / METRICS
        self.watch = watch
        self.writes = writes
        self._bar = _bar(name, shown=progress and writes)
        self._task: TaskID = self._bar.add_task(name, total=steps, completed=start, figure="")
        self._board: Any = None
        if writes:
            kept = [line for line in metric_rows(folder) if line["step"] <= start]
            try:
                disk.put_file(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())
                self._file: TextIO = self.path.open("a", encoding="utf-8")
            except OSError as error:
                raise self._full(error) from error
        if writes and tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def step(self, step: int, figures: Mapping[str, float], *, shown: str | None = None) -> None:
        """Record the figures of a finished step (1, 2, …) and move the bar; `shown` stands beside it in place of `watch`."""
        self._write(step, figures)
        if shown is None:
            watched = figures.get(self.watch)
            shown = "" if watched is None else f"{self.watch.replace('_', ' ')} {watched:.4g}"
        self._bar.update(self._task, completed=step, figure=shown)

    def held_out(self, step: int, figures: Mapping[str, float]) -> None:
        """Record held-out figures (their names begin with "heldout_") measured after a step."""
        self._write(step, figures)

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        if not self.writes:
            return
        try:
            self._put(json.dumps({"step": step, **figures}) + "\n")
        except OSError as error:
            raise self._full(error) from error
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)

    def _put(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def _full(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"Metrics cannot be written to '{self.path}': {disk.why(error)}.")

    def lines(self) -> list[dict[str, float]]:
        """Everything recorded so far, over all resumed runs."""
        return metric_rows(self.path.parent)

    def __enter__(self) -> Journal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self.writes:
            with suppress(OSError):  # what could not be written was told when it was
                self._file.close()
        if self._board is not None:
            self._board.close()


def metric_rows(folder: Path) -> list[dict[str, float]]:
    """What the run in `folder` recorded: whole lines; the last one may have been cut by a kill and is then left out."""
    path = folder / METRICS
    found: list[dict[str, float]] = []
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def _bar(name: str, *, shown: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figure]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (shown and console.is_terminal),
    )
