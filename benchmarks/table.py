"""What every benchmark prints and writes.

    with benchmark("ingest", "Durable single POSTs") as bench:
        bench.add(Row("p50, 8 clients", ours=3.1, peer=9.8, goal=1.0, goal_on="ratio", goal_is="at_most", unit="ms"))
        bench.note("fsync of 4 kB on this disk: p50 1.2 ms")
    raise SystemExit(bench.exit_code)

On leaving the block the table is printed with how disturbed the machine was, and build/bench/NAME.json is written: a
list of {name, value, unit, goal, ok}. `goal` is null and `ok` true where there is no goal; a row with a peer adds a
second entry "NAME, ratio" (unit "x").
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

FOLDER = Path("build/bench")


@dataclass(frozen=True)
class Row:
    """One figure. `None` is "not measured" and meets no goal.

    `ratio` is ours / peer unless given. `goal` bounds `ours`, or the ratio where `goal_on="ratio"`, from below
    (`at_least`) or above (`at_most`). `met` follows from them; give it only where the goal is no plain bound.
    """

    name: str
    ours: float | None
    peer: float | None = None
    ratio: float | None = None
    goal: float | None = None
    met: bool | None = None
    unit: str = ""
    goal_on: Literal["ours", "ratio"] = "ours"
    goal_is: Literal["at_least", "at_most"] = "at_least"

    def __post_init__(self) -> None:
        if self.ratio is None and self.ours is not None and self.peer:
            object.__setattr__(self, "ratio", self.ours / self.peer)
        if self.met is None and self.goal is not None:
            object.__setattr__(self, "met", self._holds(self.ours if self.goal_on == "ours" else self.ratio, self.goal))

    def _holds(self, value: float | None, goal: float) -> bool:
        if value is None or math.isnan(value):
            return False
        return value >= goal if self.goal_is == "at_least" else value <= goal

    def entries(self) -> list[dict[str, object]]:
        """The row as JSON entries: the figure, and the ratio where there is one."""
        plain = _entry(self.name, self.ours, self.unit)
        ratio = _entry(f"{self.name}, ratio", self.ratio, "x")
        judged = plain if self.goal_on == "ours" else ratio
        judged |= {"goal": self.goal, "ok": self.met is not False}
        return [plain] if self.ratio is None and judged is plain else [plain, ratio]


def _entry(name: str, value: float | None, unit: str) -> dict[str, object]:
    finite = value if value is not None and math.isfinite(value) else None
    return {"name": name, "value": finite, "unit": unit, "goal": None, "ok": True}


@dataclass(frozen=True)
class Machine:
    """The machine at one moment. Times in seconds; the three `*_s` of /proc/stat are sums over all cores."""

    wall_s: float
    own_cpu_s: float
    load: float
    busy_s: float | None
    steal_s: float | None
    total_s: float | None

    @classmethod
    def now(cls) -> Machine:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return cls(time.perf_counter(), own, os.getloadavg()[0], *_proc_stat())


def _proc_stat() -> tuple[float | None, float | None, float | None]:
    """(busy, steal, total) of the whole machine; None where there is no /proc/stat."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None, None, None
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, iowait, irq, softirq, steal = (int(part) / tick for part in first)
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + steal + idle + iowait


def disturbance(before: Machine, after: Machine) -> list[Row]:
    """How disturbed the machine was between two moments. Child processes count as ours once they have ended."""
    wall = max(after.wall_s - before.wall_s, 1e-9)
    own = after.own_cpu_s - before.own_cpu_s
    rows = [
        Row("machine: load average before", before.load),
        Row("machine: load average after", after.load),
        Row("machine: own CPU seconds a second", own / wall, unit="cores"),
    ]
    if before.busy_s is not None and after.busy_s is not None:
        rows.append(Row("machine: CPU of others", max(0.0, after.busy_s - before.busy_s - own) / wall, unit="cores"))
    if (
        before.steal_s is not None
        and after.steal_s is not None
        and before.total_s is not None
        and after.total_s is not None
    ):
        total = max(after.total_s - before.total_s, 1e-9)
        rows.append(Row("machine: stolen by the hypervisor", 100 * (after.steal_s - before.steal_s) / total, unit="%"))
    return rows


@dataclass
class Benchmark:
    """Rows and notes of one run."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Add figures, in the order in which they are shown."""
        self.rows.extend(rows)

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self.notes.append(text)

    @property
    def exit_code(self) -> int:
        """0 where every goal was met, else 1."""
        return int(any(row.met is False for row in self.rows))

    def table(self) -> Table:
        """Figure, ours, peer, ratio, goal, met."""
        table = Table(title=f"bench-{self.name}: {self.title}", title_justify="left")
        table.add_column("figure", overflow="fold")
        for column in ("ours", "peer", "ratio", "goal", "met"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in self.rows:
            met = "" if row.met is None else "[green]yes[/]" if row.met else "[red]no[/]"
            table.add_row(row.name, _number(row.ours, row.unit), _number(row.peer), _number(row.ratio), _goal(row), met)
        return table

    def show(self, console: Console, machine: list[Row]) -> None:
        """Print the table, the notes and the state of the machine."""
        console.print(self.table())
        for text in self.notes:
            console.print(text, markup=False)
        figures = "; ".join(f"{row.name.removeprefix('machine: ')} {_number(row.ours, row.unit)}" for row in machine)
        console.print(f"machine: {os.cpu_count()} cores; {figures}", markup=False)

    def write(self, folder: Path, machine: list[Row]) -> Path:
        """Write NAME.json into `folder`, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        entries = [entry for row in [*self.rows, *machine] for entry in row.entries()]
        part = path.with_suffix(".json.part")
        part.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
        return path


@contextmanager
def benchmark(name: str, title: str, *, folder: Path = FOLDER, console: Console | None = None) -> Iterator[Benchmark]:
    """A run. On a normal end it prints the table and writes `folder`/NAME.json; an exception writes nothing."""
    console = console or Console(width=None if os.isatty(1) else 120)
    before = Machine.now()
    bench = Benchmark(name, title)
    yield bench
    machine = disturbance(before, Machine.now())
    bench.show(console, machine)
    console.print(f"written: {bench.write(folder, machine)}", markup=False)


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "" if not unit else "not measured"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}" if size >= 0.001 or value == 0 else f"{value:.2e}"
    return f"{text} {unit}".strip()


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    sign = "≥" if row.goal_is == "at_least" else "≤"
    return f"{sign} {_number(row.goal, 'x' if row.goal_on == 'ratio' else '')}"
