"""Plots as inline SVG: no script, no font, no network. Colours come from the style sheet and follow it into the dark.

Classes: `axis`, `grid`, `tick`, `line s0`…`line s5`, `raw s0`…, `dot s0`…, `whisker s0`…, `ring s0`…, `guide`. Each plot is
one `<svg role="img">` whose label says in words what it shows. Every text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 36
MAX_POINTS = 400
SMOOTH_FROM = 40
LETTER = 6.2  # width of a letter of a name, about
MOST_LETTERS = 24


@dataclass(frozen=True)
class Series:
    """One line: x and y of equal length; NaN in y is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(series: Sequence[Series], *, x_label: str, label: str) -> Markup:
    """A line a series over a shared x. From 40 points on, the points are faint and their running mean is strong."""
    drawn = [_finite(one) for one in series]
    drawn = [one for one in drawn if len(one.x)]
    if not drawn:
        return Markup("")
    x_axis = Axis.over([value for one in drawn for value in one.x], LEFT, WIDTH - RIGHT, tight=True)
    y_axis = Axis.over([value for one in drawn for value in one.y], HEIGHT - BOTTOM, TOP)
    parts = _frame(x_axis, y_axis, x_label)
    names = [one.name for one in series]
    for one in drawn:
        style = f"s{names.index(one.name) % 6}"
        points = _thinned(np.asarray(one.x, float), np.asarray(one.y, float))
        if len(one.x) == 1:
            parts.append(_dot(x_axis.at(one.x[0]), y_axis.at(one.y[0]), 4, style, one.name))
            continue
        if len(one.x) >= SMOOTH_FROM:
            parts.append(_path(points, x_axis, y_axis, f"raw {style}"))
            points = _thinned(np.asarray(one.x, float), running_mean(np.asarray(one.y, float), len(one.y) // 12))
        parts.append(_path(points, x_axis, y_axis, f"line {style}"))
    return _svg(parts, label)


def scatter(
    points: Sequence[tuple[str, float, float, float]],
    *,
    x_label: str,
    label: str,
    diagonal: bool = False,
    unit_square: bool = False,
    joined: bool = False,
    named: bool = False,
) -> Markup:
    """Dots (name, x, y, radius in px), each with a tooltip. `diagonal` draws y = x; `unit_square` fixes both axes to [0, 1];
    `joined` links the dots in the order given; `named` writes each name beside its dot."""
    points = [point for point in points if math.isfinite(point[1]) and math.isfinite(point[2])]
    if not points:
        return Markup("")
    xs, ys = ([0.0, 1.0], [0.0, 1.0]) if unit_square else ([p[1] for p in points], [p[2] for p in points])
    x_axis = Axis.over(xs, LEFT, WIDTH - RIGHT, tight=unit_square)
    y_axis = Axis.over(ys, HEIGHT - BOTTOM, TOP, tight=unit_square)
    parts = _frame(x_axis, y_axis, x_label)
    if diagonal:
        low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
        parts.append(
            f'<line class="guide" x1="{x_axis.at(low):.1f}" y1="{y_axis.at(low):.1f}" '
            f'x2="{x_axis.at(high):.1f}" y2="{y_axis.at(high):.1f}"/>'
        )
    if joined:
        parts.append(_path(np.array([[p[1], p[2]] for p in points]), x_axis, y_axis, "line s0"))
    parts += [_dot(x_axis.at(x), y_axis.at(y), radius, "s0", name) for name, x, y, radius in points]
    if named:
        parts += [_name(name, x_axis.at(x), y_axis.at(y), radius) for name, x, y, radius in points]
    return _svg(parts, label)


@dataclass(frozen=True)
class Spot:
    """A point of a frontier. `reach` is half the length of its error bar (0: none); `style` is a class such as "s0"."""

    name: str
    x: float
    y: float
    reach: float = 0.0
    style: str = "s0"
    ringed: bool = False


def frontier(spots: Sequence[Spot], *, x_label: str, label: str) -> Markup:
    """Dots with error bars in y, joined in the order of x, each with its name beside it; a ringed one stands out.

    What is not finite is not drawn: a spot without a place, a bar without an end.
    """
    spots = sorted(
        (one for one in spots if math.isfinite(one.x) and math.isfinite(one.y)), key=lambda one: (one.x, one.y)
    )
    if not spots:
        return Markup("")
    reach = {one: one.reach if math.isfinite(one.reach) else 0.0 for one in spots}
    x_axis = Axis.over([one.x for one in spots], LEFT, WIDTH - RIGHT)
    y_axis = Axis.over([one.y + sign * reach[one] for one in spots for sign in (-1, 1)], HEIGHT - BOTTOM, TOP)
    parts = _frame(x_axis, y_axis, x_label)
    if len(spots) > 1:
        parts.append(_path(np.array([[one.x, one.y] for one in spots]), x_axis, y_axis, "raw s5"))
    at = [(x_axis.at(one.x), y_axis.at(one.y)) for one in spots]
    for one, (x, _) in zip(spots, at, strict=True):
        if reach[one]:
            low, high = y_axis.at(one.y - reach[one]), y_axis.at(one.y + reach[one])
            bar = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
            parts.append(f'<path class="whisker {one.style}" d="{bar}"/>')
    for one, (x, y) in zip(spots, at, strict=True):
        if one.ringed:
            parts.append(f'<circle class="ring {one.style}" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
        parts.append(_dot(x, y, 5, one.style, one.name))
    names = [(one.name if len(one.name) <= MOST_LETTERS else one.name[: MOST_LETTERS - 1] + "…") for one in spots]
    for name, (x, y) in zip(names, _beside(names, at), strict=True):
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y:.1f}">{escape(name)}</text>')
    return _svg(parts, label)


def running_mean(values: Floats, window: int) -> Floats:
    """(n,) the mean over `window` values centred on each, fewer at the ends. Known value: (0, 3, 6), 3 -> (1.5, 3, 4.5)."""
    reach = max(window, 1) // 2
    total = np.concatenate(([0.0], np.cumsum(values)))
    index = np.arange(len(values))
    start, stop = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    means: Floats = (total[stop] - total[start]) / (stop - start)
    return means


@dataclass(frozen=True)
class Axis:
    """A linear scale from data [low, high] to pixels [start, stop], with round ticks."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float, *, tight: bool = False) -> Axis:
        """An axis that holds all `values`; unless `tight`, it ends on ticks. Equal values get room around them."""
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) / 2 or 0.5
            low, high = low - room, high + room
        step = round_step((high - low) / 4)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if not tight:
            low, high = first * step, last * step
        ticks = tuple(k * step for k in range(first, last + 1) if low - step * 1e-6 <= k * step <= high + step * 1e-6)
        return cls(low, high, start, stop, ticks)

    def at(self, value: float) -> float:
        """The pixel of `value`."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def round_step(rough: float) -> float:
    """The least of 1, 2, 2.5, 5 × 10^k that is at least `rough`. Known values: .3 -> .5; 7 -> 10; 2.1 -> 2.5."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= rough * (1 - 1e-9))


def tick_text(value: float, step: float) -> str:
    """A tick's number with no more decimals than its step needs; a true minus sign."""
    if abs(value) < step * 1e-6:
        return "0"
    if max(abs(value), step) >= 1e5 or step < 1e-4:
        digits, _, power = f"{value:.2g}".partition("e")
        text = f"{digits}e{int(power)}" if power else digits  # 1e6, not 1e+06: there is room for seven letters
    else:
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        decimals += not math.isclose(round(step, decimals), step)
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def _finite(one: Series) -> Series:
    kept = [(float(x), float(y)) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return Series(one.name, [x for x, _ in kept], [y for _, y in kept])


def _thinned(x: Floats, y: Floats) -> Floats:
    """(m, 2) at most 400 points, each the mean of a run of neighbours, so that a long run does not make a large page."""
    if len(x) <= MAX_POINTS:
        return np.stack([x, y], axis=1)
    runs = np.array_split(np.stack([x, y], axis=1), MAX_POINTS)
    return np.array([run.mean(axis=0) for run in runs])


def _frame(x_axis: Axis, y_axis: Axis, x_label: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    step = y_axis.ticks[1] - y_axis.ticks[0] if len(y_axis.ticks) > 1 else 1.0
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick_text(tick, step)}</text>'
        )
    step = x_axis.ticks[1] - x_axis.ticks[0] if len(x_axis.ticks) > 1 else 1.0
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick_text(tick, step)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text class="tick" x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return parts


def _path(points: Floats, x_axis: Axis, y_axis: Axis, style: str) -> str:
    joined = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
    return f'<polyline class="{style}" points="{joined}"/>'


def _dot(x: float, y: float, radius: float, style: str, name: str) -> str:
    return (
        f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{escape(name)}</title></circle>'
    )


def _name(name: str, x: float, y: float, radius: float) -> str:
    """The name on the side of the dot that has more room."""
    side, anchor = (radius + 5, "start") if x < WIDTH / 2 else (-radius - 5, "end")
    return f'<text class="tick" x="{x + side:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}">{escape(name)}</text>'


def _beside(names: Sequence[str], dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where each name begins: beside its dot, at the first of eight places where it meets no dot, name or edge."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    found = []
    for name, (x, y) in zip(names, dots, strict=True):
        width = len(name) * LETTER
        right, left, middle = x + 11, x - 11 - width, x - width / 2
        places = [(right, y - 7), (left, y - 7), (right, y + 15), (left, y + 15)]
        places += [(middle, y - 14), (middle, y + 22), (right, y - 22), (right, y + 30)]
        inside = [p for p in places if p[0] >= LEFT and p[0] + width <= WIDTH and TOP <= p[1] <= HEIGHT - BOTTOM]
        boxes = [((left, base), (left, base - 10, left + width, base + 3)) for left, base in inside or places[:1]]
        free = [one for one in boxes if not any(_meet(one[1], other) for other in taken)]
        place, box = (free or boxes)[0]
        taken.append(box)
        found.append(place)
    return found


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _svg(parts: Sequence[str], label: str) -> Markup:
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')
