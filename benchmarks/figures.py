"""Figures of benchmarks, as SVG files for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#2f6fde", "#d9730d", "#0f8b76", "#8b47c7", "#c2386b", "#6b7280")
MARKS = ("o", "s", "^", "D", "v", "P")


def frontier_figure(
    path: Path,
    reference: tuple[float, float],
    possible: Sequence[tuple[float, float]],
    series: Mapping[str, Sequence[tuple[str, float, float, float]]],
) -> None:
    """Reward against KL: (name, KL, reward, half an interval) by series, the reference, and the curve no policy passes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
    axes.plot(
        *zip(*possible, strict=True), color="#9aa1ac", linewidth=2, linestyle="--", label="the most that is possible"
    )
    for place, (name, spots) in enumerate(series.items()):
        ordered = sorted(spots, key=lambda spot: spot[1])
        x, y, reach = ([spot[i] for spot in ordered] for i in (1, 2, 3))
        axes.errorbar(
            x,
            y,
            yerr=reach,
            color=COLOURS[place],
            marker=MARKS[place],
            markersize=6,
            linewidth=1.6,
            capsize=3,
            label=name,
        )
    axes.plot(*reference, color="black", marker="*", markersize=13, linestyle="none", label="reference")
    axes.set_xlim(-0.1, max(spot[1] for spots in series.values() for spot in spots) * 1.05)
    axes.set_xlabel("KL to the reference, nats a response")
    axes.set_ylabel("mean reward (sentiment)")
    axes.grid(color="#e5e7eb")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, facecolor="white")
    plt.close(figure)
