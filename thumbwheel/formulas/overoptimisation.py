"""What happens when a proxy reward is pushed hard: best of n, and the two curves of gold reward over √KL. numpy only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, Floats, known_pair
from thumbwheel.formulas.ranks import midranks


def best_of_n_kl(n: int) -> float:
    """KL = ln n - (n - 1)/n

    | symbol | name | shape | unit  | range |
    | ------ | ---- | ----- | ----- | ----- |
    | n      | n    | ()    | count | ≥ 1   |

    Source: Stiennon et al. 2020, app. G.3. In nats per response, from the policy the n answers were sampled from.
    Known value: n = 2 -> .193147; 4 -> .636294; 16 -> 1.835089; 64 -> 3.174508; 256 -> 4.549084.
    An upper bound where answers repeat (Beirami et al. 2024). Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"Best of n needs n of at least 1. Got: {n}.")
    return math.log(n) - (n - 1) / n


def best_of_n_mean(proxy: ArrayLike, gold: ArrayLike, *, n: int) -> Figure:
    """Σᵢ C(i - 1, n - 1) / C(N, n) · goldᵢ,  i the rank by proxy, from the lowest

    | symbol | name  | shape | unit  | range                                  |
    | ------ | ----- | ----- | ----- | -------------------------------------- |
    | -      | proxy | (N,)  | score | ℝ, decides which answer is picked      |
    | -      | gold  | (N,)  | score | ℝ, says how good the picked answer is  |
    | n      | n     | ()    | count | ≥ 1                                    |

    Source: Nakano et al. 2021 (WebGPT). The mean gold of the best by proxy, over every n-subset of the N answers: unbiased,
    and no draw is wasted. Equal proxies share their mean gold, as if ties were broken by a fair die.
    Known value: N = 4, n = 2, gold in proxy order (1, 0, 2, -1) -> 1/6. Undefined for n > N. Raises ValueError for n < 1.
    """
    by, value = known_pair(proxy, gold, ("proxy", "gold"))
    if n < 1:
        raise ValueError(f"Best of n needs n of at least 1. Got: {n}.")
    if n > by.size:
        return Figure(None, f"best of {n} needs {n} answers; there are {by.size}")
    weight = np.zeros(by.size)  # by rank, from the lowest
    share = n / by.size  # C(N - 1, n - 1) / C(N, n): the highest is in a subset with this chance
    for i in range(by.size, n - 1, -1):
        weight[i - 1] = share
        share *= (i - n) / (i - 1) if i > 1 else 0.0
    order = np.argsort(by, kind="stable")
    _, which = np.unique(midranks(by)[order], return_inverse=True)
    mean_gold = np.bincount(which, weights=value[order]) / np.bincount(which)
    return Figure(float(weight @ mean_gold[which]))


def best_of_n_gold(distance: ArrayLike, *, alpha: float, beta: float) -> Floats:
    """R(d) = d (α - β d)

    | symbol | name     | shape | unit        | range            |
    | ------ | -------- | ----- | ----------- | ---------------- |
    | d      | distance | any   | √nat        | [0, ∞), √KL      |
    | α      | alpha    | ()    | score/√nat  | ℝ                |
    | β      | beta     | ()    | score/nat   | ℝ                |

    Source: Gao et al. 2023, best of n. Returns the gold reward, 0 at d = 0. Known value: α = 1, β = .1: d = 5 -> 2.5.
    """
    d = _distance(distance)
    return d * (alpha - beta * d)


def best_of_n_peak(*, alpha: float, beta: float) -> Figure:
    """d* = α / 2β, where `best_of_n_gold` is highest. Known value: α = 1, β = .1 -> 5. Undefined unless α, β > 0."""
    if alpha <= 0 or beta <= 0:
        return Figure(None, "the curve has no peak at a distance above 0 unless alpha and beta are above 0")
    return Figure(alpha / (2 * beta))


def rl_gold(distance: ArrayLike, *, alpha: float, beta: float) -> Floats:
    """R(d) = d (α - β ln d), 0 at d = 0

    | symbol | name     | shape | unit       | range       |
    | ------ | -------- | ----- | ---------- | ----------- |
    | d      | distance | any   | √nat       | [0, ∞), √KL |
    | α, β   | alpha, beta | () | score/√nat | ℝ           |

    Source: Gao et al. 2023, reinforcement learning. Known value: α = 1, β = .5: d = 1 -> 1; peak d = e -> e/2.
    """
    d = _distance(distance)
    curve: Floats = d * (alpha - beta * np.log(np.where(d > 0, d, 1.0)))
    return curve


def rl_peak(*, alpha: float, beta: float) -> Figure:
    """d* = exp(α/β - 1), where `rl_gold` is highest. Known value: α = 1, β = .5 -> e. Undefined unless β > 0."""
    if beta <= 0:
        return Figure(None, "the curve has no peak unless beta is above 0")
    return Figure(math.exp(alpha / beta - 1))


def _distance(distance: ArrayLike) -> Floats:
    d = np.asarray(distance, dtype=np.float64)
    if (d < 0).any():
        raise ValueError(f"The distance is the square root of a KL and cannot be negative. Got: {d.min():g}.")
    return d
