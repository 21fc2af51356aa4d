"""Intervals and tests: Wilson, bootstrap (by cluster too), win rate, sign test, McNemar, effective sample size. numpy only.

Accuracy and AUC are in `accuracy`, Brier, log loss and ECE in `calibration`, rank correlations in `ranks`.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thumbwheel.formulas.figures import Figure, Floats, Interval, known, known_pair, probability, undefined

Indices: TypeAlias = NDArray[np.intp]
NORMAL = NormalDist()


def wilson(successes: float, n: float, *, level: float = 0.95) -> Interval:
    """(p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n),  p = k/n

    | symbol | name      | shape | unit  | range                                       |
    | ------ | --------- | ----- | ----- | ------------------------------------------- |
    | k      | successes | ()    | count | [0, n]; a tie may be half                   |
    | n      | n         | ()    | count | ≥ 0; an effective sample size may be given  |
    | z      | level     | ()    | -     | the normal quantile at (1 + level)/2        |

    Source: Wilson 1927; Newcombe 1998, method 3. Known value: 81 of 263 at 95 % -> .2553 to .3662; 0 of 20 -> 0 to .1611.
    n = 0 is undefined. Raises ValueError for k outside [0, n]. Left out: the continuity correction.
    """
    _check_level(level)
    if not 0 <= successes <= n:
        raise ValueError(f"Successes must be between 0 and n = {n}. Got: {successes}.")
    if n == 0:
        return undefined("there are no observations", level=level, n=0)
    z = NORMAL.inv_cdf((1 + level) / 2)
    p = successes / n
    centre = p + z * z / (2 * n)
    half = z * float(np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return Interval(p, min(max(low, 0.0), p), max(min(high, 1.0), p), level, round(n))


def win_rate(outcome: ArrayLike, *, prompt: ArrayLike | None = None, level: float = 0.95) -> Interval:
    """p = mean(y), with Wilson's interval at n' = min(n, p(1 - p)/v),  v = G/(G - 1) Σ_g (Σ_{i in g} (yᵢ - p))² / n²

    | symbol | name      | shape | unit  | range                                                      |
    | ------ | --------- | ----- | ----- | ---------------------------------------------------------- |
    | y      | outcome   | (n,)  | -     | 1 win, ½ tie, 0 loss                                       |
    | g      | prompt    | (n,)  | -     | any labels; comparisons on one prompt share one; none: n' = n |
    | G      | -         | ()    | count | prompts                                                    |

    Source: Wilson 1927 with the effective sample size of Korn & Graubard 1998; v is the linearised variance of a mean over
    clusters. Ties count half, for which Wilson's interval is a little wide. Where every outcome is a win, or every one a
    loss, v says nothing and n' = G. Known value: 15 wins, 10 ties, 15 losses -> .5, and .351995 to .648005.
    Undefined without outcomes, and with prompts given but fewer than two of them. Raises ValueError outside [0, 1].
    """
    y = probability(outcome, "outcome")
    if y.size == 0:
        return undefined("there are no comparisons", level=level, n=0)
    p, n = float(y.mean()), float(y.size)
    if prompt is not None:
        group = _codes(prompt, y.size)
        groups = int(group.max()) + 1
        if groups < 2:
            return undefined("all comparisons are on one prompt", level=level, n=y.size)
        off = np.bincount(group, weights=y - p)
        variance = groups / (groups - 1) * float((off**2).sum()) / n**2
        if p in (0.0, 1.0):
            n = float(groups)
        elif variance > 0:
            n = min(n, p * (1 - p) / variance)
    interval = wilson(p * n, n, level=level)
    return Interval(p, interval.low, interval.high, level, y.size)


def bootstrap(
    statistic: Callable[[Indices], float],
    n: int,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = 2000,
    method: Literal["percentile", "bca"] = "percentile",
    cluster: ArrayLike | None = None,
) -> Interval:
    """[θ*_(a₁), θ*_(a₂)]: quantiles of the statistic over rows, or whole clusters, drawn again with replacement

    | symbol    | name      | shape       | unit  | range                                                     |
    | --------- | --------- | ----------- | ----- | --------------------------------------------------------- |
    | θ         | statistic | (m,) -> ()  | any   | of row indices; NaN where it is undefined                 |
    | n         | n         | ()          | count | rows                                                      |
    | -         | cluster   | (n,)        | -     | any labels, such as the prompt; none: every row is alone  |
    | a₁, a₂    | level     | ()          | -     | percentile: (1 ∓ level)/2                                 |
    |           |           |             |       | bca: Φ(z₀ + (z₀ + z_a)/(1 - c(z₀ + z_a))), z_a = ∓Φ⁻¹((1 + level)/2) |
    | z₀        | bias      | ()          | -     | Φ⁻¹(share of θ* below θ, those equal counted half)        |
    | c         | skewness  | ()          | -     | Σ dⱼ³ / (6 (Σ dⱼ²)^1.5), dⱼ = mean(θ₍·₎) - θ₍ⱼ₎ leaving out unit j |

    Source: Efron 1979 (percentile), Efron 1987 (BCa); whole clusters: Davison & Hinkley 1997, sec. 3.8. BCa evaluates the
    statistic once more per unit. Known value: for the mean of n rows the width is about 2 · 1.96 std/√n.
    Undefined without rows, where the statistic itself is, with one cluster, or where over 5 % of the resamples are undefined.
    Raises ValueError for fewer than one resample, a level outside (0, 1), or a label of the cluster too few or too many.
    """
    _check_level(level)
    if resamples < 1:
        raise ValueError(f"At least 1 resample is needed, and some 1000 for a steady interval. Got: {resamples}.")
    if n == 0:
        return undefined("there are no rows", level=level, n=0)
    value = float(statistic(np.arange(n)))
    if np.isnan(value):
        return undefined("the statistic is undefined on these rows", level=level, n=n)
    group = np.arange(n) if cluster is None else _codes(cluster, n)
    units = int(group.max()) + 1
    if units < 2:
        return undefined("there is one cluster only", level=level, n=n)
    order = np.argsort(group, kind="stable")
    size = np.bincount(group)
    draws = np.array([statistic(_rows_of(rng.integers(units, size=units), order, size)) for _ in range(resamples)])
    lost = np.isnan(draws)
    if lost.mean() > 0.05:
        return undefined(f"the statistic is undefined on {lost.mean():.0%} of the resamples", level=level, n=n)
    draws = draws[~lost]
    shares = (1 - level) / 2, (1 + level) / 2
    if method == "bca":
        left_out = np.array([statistic(np.flatnonzero(group != unit)) for unit in range(units)])
        shares = _bca_shares(value, draws, left_out[~np.isnan(left_out)], level)
    low, high = np.quantile(draws, shares)
    return Interval(value, float(low), float(high), level, n)


def sign_test(wins: int, losses: int) -> float:
    """p = min(1, 2 Σ_{k ≤ min(w, l)} C(w + l, k) / 2^(w + l)): how often a fair coin is at least so one-sided

    | symbol | name   | shape | unit  | range |
    | ------ | ------ | ----- | ----- | ----- |
    | w      | wins   | ()    | count | ≥ 0   |
    | l      | losses | ()    | count | ≥ 0   |

    Source: Dixon & Mood 1946. Exact, two-sided, ties left out. Known value: 1 against 7 -> .0703125; 0 against 0 -> 1.
    Raises ValueError for negative counts.
    """
    if min(wins, losses) < 0:
        raise ValueError(f"Counts must be 0 or more. Got {wins} and {losses}.")
    n, k = wins + losses, np.arange(1, min(wins, losses) + 1)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log((n - k + 1) / k))))  # ln C(n, 0), ln C(n, 1), …
    return min(1.0, 2 * float(np.exp(log_choose - n * np.log(2)).sum()))


def mcnemar(correct_a: ArrayLike, correct_b: ArrayLike) -> float:
    """p = sign test of (rows only A got right) against (rows only B got right)

    | symbol | name      | shape | unit | range        |
    | ------ | --------- | ----- | ---- | ------------ |
    | A      | correct_a | (n,)  | -    | {0, 1}       |
    | B      | correct_b | (n,)  | -    | {0, 1}       |

    Source: McNemar 1947, in its exact form. Rows that both got right, or both wrong, say nothing about which is better.
    Known value: A alone right once, B alone seven times -> .0703125. Raises ValueError for unequal lengths.
    """
    a, b = known_pair(correct_a, correct_b, ("correct_a", "correct_b"))
    return sign_test(int(((a > 0) & (b == 0)).sum()), int(((a == 0) & (b > 0)).sum()))


def effective_sample_size(weight: ArrayLike) -> Figure:
    """(Σ wᵢ)² / Σ wᵢ²

    | symbol | name   | shape | unit | range  |
    | ------ | ------ | ----- | ---- | ------ |
    | w      | weight | (n,)  | -    | [0, ∞) |

    Source: Kish 1965. Between 1 and n; the scale of w does not matter. Known value: (2, 0, 2) -> 2.0.
    Undefined where no weight is above 0. Raises ValueError for a negative weight.
    """
    w = known(weight, "weight")
    if w.size and w.min() < 0:
        raise ValueError(f"Weights must be 0 or more. Got: {w.min():g}.")
    if not w.any():
        return Figure(None, "no weight is above 0")
    w = w / w.max()
    return Figure(float(w.sum() ** 2 / (w**2).sum()))


def _rows_of(drawn: Indices, order: Indices, size: NDArray[np.intp]) -> Indices:
    """Row indices of the drawn clusters, one cluster after the other; `order` lists the rows by cluster."""
    start = np.concatenate(([0], np.cumsum(size)[:-1]))
    count = size[drawn]
    before = np.concatenate(([0], np.cumsum(count)[:-1]))
    rows: Indices = order[np.repeat(start[drawn] - before, count) + np.arange(int(count.sum()))]
    return rows


def _bca_shares(value: float, draws: Floats, left_out: Floats, level: float) -> tuple[float, float]:
    below = (np.count_nonzero(draws < value) + 0.5 * np.count_nonzero(draws == value)) / draws.size
    edge = 0.5 / draws.size  # all on one side: as far out as this many draws can tell
    bias = NORMAL.inv_cdf(min(max(below, edge), 1 - edge))
    off = left_out.mean() - left_out if left_out.size else left_out
    square = float((off**2).sum())
    skewness = float((off**3).sum()) / (6 * square**1.5) if square > 0 else 0.0

    def share(z: float) -> float:
        return NORMAL.cdf(bias + (bias + z) / (1 - skewness * (bias + z)))

    z = NORMAL.inv_cdf((1 + level) / 2)
    return share(-z), share(z)


def _codes(labels: ArrayLike, n: int) -> Indices:
    """0, 1, 2 … for the distinct labels. Raises ValueError where there are not n labels."""
    array = np.asarray(labels)
    if array.shape != (n,):
        raise ValueError(f"Every row needs one label of its cluster: expected the shape ({n},). Got {array.shape}.")
    codes: Indices = np.unique(array, return_inverse=True)[1]
    return codes


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"The confidence level must be in (0, 1). Got: {level}. For 95 % give 0.95.")
