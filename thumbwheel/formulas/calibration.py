"""Does a probability mean what it says? Brier score, log loss and calibration error with the bins of its plot. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, Floats, probability
from thumbwheel.formulas.ranks import midranks


def brier(p: ArrayLike, outcome: ArrayLike) -> Figure:
    """1/n Σ (pᵢ - yᵢ)²

    | symbol | name    | shape | unit | range                                 |
    | ------ | ------- | ----- | ---- | ------------------------------------- |
    | p      | p       | (n,)  | -    | [0, 1], stated probability            |
    | y      | outcome | (n,)  | -    | {0, 1}; a share of votes or ½ is fine |

    Source: Brier 1950, for one of two outcomes. In [0, 1], lower is better; always saying ½ gives .25 on sure outcomes.
    Known value: p = (.9, .2), y = (1, 0) -> (.01 + .04)/2 = .025. Undefined without rows.
    """
    stated, y = _pair(p, outcome)
    return Figure(float(((stated - y) ** 2).mean())) if y.size else Figure(None, "there are no rows")


def log_loss(p: ArrayLike, outcome: ArrayLike, *, floor: float = 1e-12) -> Figure:
    """-1/n Σ yᵢ ln pᵢ + (1 - yᵢ) ln(1 - pᵢ)

    | symbol | name    | shape | unit | range                                                                |
    | ------ | ------- | ----- | ---- | -------------------------------------------------------------------- |
    | p      | p       | (n,)  | -    | [0, 1], held in [floor, 1 - floor]: a sure miss costs 27.6 nats, not ∞ |
    | y      | outcome | (n,)  | -    | [0, 1]                                                               |

    Source: Good 1952. In nats, lower is better; always saying ½ gives ln 2. Known value: p = (.9, .2), y = (1, 0) -> .164252.
    Undefined without rows.
    """
    stated, y = _pair(p, outcome)
    if not y.size:
        return Figure(None, "there are no rows")
    stated = stated.clip(floor, 1 - floor)
    return Figure(float(-(y * np.log(stated) + (1 - y) * np.log1p(-stated)).mean()))


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """One point of the reliability plot."""

    n: int
    stated: float  # mean probability
    observed: float  # mean outcome


@dataclass(frozen=True, slots=True)
class Calibration:
    """Expected calibration error and the bins it was taken over; bins without a row are not listed."""

    error: Figure
    bins: tuple[CalibrationBin, ...]
    binning: Literal["equal_width", "equal_mass"]


def calibration(
    p: ArrayLike, outcome: ArrayLike, *, bins: int = 10, binning: Literal["equal_width", "equal_mass"]
) -> Calibration:
    """ECE = Σ_b (n_b / n) |mean(p in b) - mean(y in b)|

    | symbol | name    | shape | unit  | range                                                                   |
    | ------ | ------- | ----- | ----- | ----------------------------------------------------------------------- |
    | p      | p       | (n,)  | -     | [0, 1], stated probability of y = 1                                     |
    | y      | outcome | (n,)  | -     | [0, 1]                                                                  |
    | b      | bins    | ()    | count | ≥ 1; equal width: [k/b, (k+1)/b); equal mass: n/b rows, equal p together |

    Source: Naeini et al. 2015 (equal width); Nixon et al. 2019 (equal mass). In [0, 1], lower is better.
    Known value: p = (.1, .1, .9, .9), y = (0, 1, 1, 1), two bins of either kind -> ½ · .4 + ½ · .1 = .25.
    Undefined without rows. It is biased upwards on few rows, so compare only at equal n. Raises ValueError for bins < 1.
    """
    if bins < 1:
        raise ValueError(f"At least one bin is needed. Got: {bins}.")
    stated, y = _pair(p, outcome)
    if not y.size:
        return Calibration(Figure(None, "there are no rows"), (), binning)
    position = stated if binning == "equal_width" else (midranks(stated) - 0.5) / y.size
    which = np.minimum((position * bins).astype(np.intp), bins - 1)
    count = np.bincount(which, minlength=bins)
    filled = np.flatnonzero(count)
    mean_p = np.bincount(which, weights=stated, minlength=bins)[filled] / count[filled]
    mean_y = np.bincount(which, weights=y, minlength=bins)[filled] / count[filled]
    error = float((count[filled] / y.size * np.abs(mean_p - mean_y)).sum())
    listed = tuple(
        CalibrationBin(int(n), float(a), float(b)) for n, a, b in zip(count[filled], mean_p, mean_y, strict=True)
    )
    return Calibration(Figure(error), listed, binning)


def _pair(p: ArrayLike, outcome: ArrayLike) -> tuple[Floats, Floats]:
    stated, y = probability(p, "p"), probability(outcome, "outcome")
    if stated.shape != y.shape:
        raise ValueError(f"'p' and 'outcome' must be of one length. Got {stated.size} and {y.size}.")
    return stated, y
