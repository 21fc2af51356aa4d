"""Ranks with ties, and the two rank correlations. numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, Floats, known, known_pair


def midranks(values: ArrayLike) -> Floats:
    """rankᵢ = #{xⱼ < xᵢ} + (#{xⱼ = xᵢ} + 1)/2

    | symbol | name   | shape | unit | range |
    | ------ | ------ | ----- | ---- | ----- |
    | x      | values | (n,)  | any  | ℝ     |

    Returns (n,), ranks from 1; equal values share the mean of their ranks. Known value: (10, 20, 20) -> (1, 2.5, 2.5).
    """
    _, which, count = np.unique(known(values, "values"), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[which]
    return ranks


def spearman(left: ArrayLike, right: ArrayLike) -> Figure:
    """ρ = Σ (aᵢ - ā)(bᵢ - b̄) / √(Σ (aᵢ - ā)² Σ (bᵢ - b̄)²),  a, b the midranks

    | symbol | name        | shape | unit | range |
    | ------ | ----------- | ----- | ---- | ----- |
    | a, b   | left, right | (n,)  | any  | ℝ     |

    Source: Spearman 1904. In [-1, 1]; any rising change of either side leaves it as it is.
    Known value: (1, 2, 3, 4) and (1, 3, 2, 4) -> .8. Undefined for fewer than two rows or where a side is constant.
    """
    a, b = known_pair(left, right, ("left", "right"))
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Figure(None, "one side is constant" if a.size > 1 else "fewer than two rows")
    a, b = midranks(a) - (a.size + 1) / 2, midranks(b) - (a.size + 1) / 2
    return Figure(float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())))


def kendall(left: ArrayLike, right: ArrayLike) -> Figure:
    """τ_b = Σ_{i<j} sign(aᵢ - aⱼ) sign(bᵢ - bⱼ) / √(P_a P_b),  P_x = #{i<j: xᵢ ≠ xⱼ}

    | symbol | name        | shape | unit | range |
    | ------ | ----------- | ----- | ---- | ----- |
    | a, b   | left, right | (n,)  | any  | ℝ     |

    Source: Kendall 1945 (τ_b, which allows for ties on either side). In [-1, 1]. n(n - 1)/2 steps, one row at a time.
    Known value: (1, 2, 3, 4) and (1, 3, 2, 4) -> 4/6; (1, 1, 2) and (1, 2, 3) -> 2/√6 = .816497.
    Undefined for fewer than two rows or where a side is constant.
    """
    a, b = known_pair(left, right, ("left", "right"))
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Figure(None, "one side is constant" if a.size > 1 else "fewer than two rows")
    agree = apart_a = apart_b = 0.0
    for i in range(a.size - 1):
        sign_a, sign_b = np.sign(a[i + 1 :] - a[i]), np.sign(b[i + 1 :] - b[i])
        agree += float(sign_a @ sign_b)
        apart_a += float(np.count_nonzero(sign_a))
        apart_b += float(np.count_nonzero(sign_b))
    return Figure(agree / float(np.sqrt(apart_a * apart_b)))
