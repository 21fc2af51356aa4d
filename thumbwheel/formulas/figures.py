"""A figure that may be undefined, and a figure with its interval. Unknown is None with a reason, never 0 or NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, or None and the reason why there is none."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """One number with a confidence interval of the given level from n observations, or None and the reason."""

    value: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    reason: str | None = None


def undefined(reason: str, *, level: float, n: int) -> Interval:
    """An interval that does not exist."""
    return Interval(None, None, None, level, n, reason)


def known(values: ArrayLike, name: str) -> Floats:
    """`values` as one axis of float64. Raises ValueError for NaN: a row that has no score is to be left out and counted."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"'{name}' must have one axis. Got the shape {array.shape}.")
    if np.isnan(array).any():
        raise ValueError(
            f"'{name}' holds {int(np.isnan(array).sum())} NaN. Leave rows without a value out and count them."
        )
    return array


def known_pair(left: ArrayLike, right: ArrayLike, names: tuple[str, str]) -> tuple[Floats, Floats]:
    """Two arrays of one length, each as in `known`. Raises ValueError for NaN or unequal lengths."""
    a, b = known(left, names[0]), known(right, names[1])
    if a.shape != b.shape:
        raise ValueError(f"'{names[0]}' and '{names[1]}' must be of one length. Got {a.size} and {b.size}.")
    return a, b


def probability(values: ArrayLike, name: str) -> Floats:
    """As `known`, and every value in [0, 1]; raises ValueError otherwise."""
    array = known(values, name)
    if array.size and (array.min() < 0 or array.max() > 1):
        raise ValueError(f"'{name}' must be in [0, 1]. Got {array.min():g} to {array.max():g}.")
    return array
