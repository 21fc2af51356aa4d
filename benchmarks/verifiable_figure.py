"""The figure of `benchmarks.verifiable`: the reward of every iteration by group size, and accuracy before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import COLOURS
from thumbwheel.formulas.figures import Interval

GREY, GRID = "#6b7280", "#e5e7eb"


def learning_figure(
    path: Path,
    curves: Mapping[str, Sequence[NDArray[np.float64]]],
    ends: Mapping[str, Sequence[Interval]],
    *,
    without_reading: float,
) -> None:
    """Left: a faint line a seed and their mean. Right: held-out accuracy with intervals, a dot a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colour = dict(zip(curves, COLOURS, strict=False))
    with plt.rc_context({"svg.hashsalt": "thumbwheel"}):  # the same figure, the same file
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(8.4, 3.9), layout="constrained", sharey=True, width_ratios=(1.7, 1)
        )
        for name, lines in curves.items():
            steps = np.arange(1, len(lines[0]) + 1)
            for line in lines if len(lines) > 1 else ():
                left.plot(steps, line, color=colour[name], linewidth=0.9, alpha=0.35)
            left.plot(steps, np.mean(lines, axis=0), color=colour[name], linewidth=2, label=name)
        left.set_xlabel("iteration")
        left.set_ylabel("share right")
        left.set_title("sampled answers, questions not asked before", fontsize=10)
        for place, (name, found) in enumerate(ends.items()):
            for shift, one in zip(_spread(len(found)), found, strict=True):
                if one.value is not None and one.low is not None and one.high is not None:
                    reach = [[one.value - one.low], [one.high - one.value]]
                    right.errorbar(
                        place + shift, one.value, yerr=reach, fmt="o", color=colour.get(name, GREY), capsize=3
                    )
        right.set_xticks(range(len(ends)), [name.replace("groups of ", "groups\nof ") for name in ends])
        right.set_title("greedy answers, held out", fontsize=10)
        for axes in (left, right):
            axes.axhline(without_reading, color=GREY, linewidth=1, linestyle="--")
            axes.set_ylim(0, 1)
            axes.grid(color=GRID)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        left.plot([], [], color=GREY, linewidth=1, linestyle="--", label="best without reading")
        left.legend(loc="upper left", frameon=False, fontsize=9)
        figure.savefig(path, facecolor="white", metadata={"Date": None})
        plt.close(figure)


def _spread(count: int) -> list[float]:
    """Sideways shifts of dots that share a place."""
    return [0.16 * (i - (count - 1) / 2) for i in range(count)]
