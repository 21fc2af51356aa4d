"""What a round shows while it runs: a line a stage, a bar for what takes long, the account of every row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tick = Callable[[int, int], None]


class Watch(Protocol):
    """Where a round reports to."""

    def stage(self, name: str, *, done: bool) -> None:
        """A stage begins, or is found done from an earlier run."""
        ...

    def say(self, line: str) -> None:
        """One line worth reading."""
        ...

    def bar(self, label: str, unit: str) -> Tick | None:
        """A callback (done, total) that draws a bar, or None where nothing is drawn."""
        ...


class Silent:
    """Says nothing; keeps the lines for tests."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stages: list[tuple[str, bool]] = []

    def stage(self, name: str, *, done: bool) -> None:
        self.stages.append((name, done))

    def say(self, line: str) -> None:
        self.lines.append(line)

    def bar(self, label: str, unit: str) -> Tick | None:
        del label, unit
        return None


class Shown:
    """On a rich console, bars one below the other while the block of `open` runs."""

    def __init__(self, console: Console, *, bars: bool = True) -> None:
        self.console = console
        self._bars = bars
        self._progress: Progress | None = None
        self._began = time.monotonic()

    @contextmanager
    def open(self) -> Iterator[Shown]:
        """Draw bars until the block ends."""
        columns = (
            TextColumn("  {task.description:<22}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
        )
        # What trainers warn of comes back as notes and is said once, by `say`.
        muted = logging.NullHandler()
        logging.getLogger("thumbwheel").addHandler(muted)
        with Progress(*columns, console=self.console, transient=False, disable=not self._bars) as progress:
            self._progress = progress
            try:
                yield self
            finally:
                self._progress = None
                logging.getLogger("thumbwheel").removeHandler(muted)

    def stage(self, name: str, *, done: bool) -> None:
        note = " [dim](done before)[/]" if done else ""
        self.console.print(f"[bold cyan]{time.monotonic() - self._began:6.0f} s[/]  [bold]{escape(name)}[/]{note}")

    def say(self, line: str) -> None:
        self.console.print(f"          {escape(line)}")

    def bar(self, label: str, unit: str) -> Tick | None:
        progress = self._progress
        if progress is None or not self._bars:
            return None
        task = progress.add_task(label, total=None, unit=unit)

        def tick(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return tick
