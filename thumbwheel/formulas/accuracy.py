"""How often a score puts the better answer first: pair accuracy with ties apart, AUC, and both with length held still.

numpy only. Throughout, `gap` is score(a) - score(b) and `label` is P(a is better): 1, 0, ½ for a tie, or a share of votes.
A label above ½ counts as "a is better".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, Floats, Interval, known_pair, probability
from thumbwheel.formulas.ranks import midranks
from thumbwheel.formulas.stats import wilson


@dataclass(frozen=True, slots=True)
class PairAccuracy:
    """Counts of pairs, and the accuracy on those that people decided."""

    accuracy: Interval  # (correct + ½ even) / (correct + wrong + even), Wilson
    correct: int
    wrong: int
    even: int  # people decided, the score did not
    ties: int  # people did not decide; in no rate


def pair_accuracy(gap: ArrayLike, label: ArrayLike, *, level: float = 0.95) -> PairAccuracy:
    """(#{sign(d) = sign(y - ½)} + ½ #{d = 0}) / n,  over the n pairs with y ≠ ½

    | symbol | name  | shape | unit  | range                            |
    | ------ | ----- | ----- | ----- | -------------------------------- |
    | d      | gap   | (n,)  | score | ℝ                                |
    | y      | label | (n,)  | -     | [0, 1], P(a is better); ½ a tie  |

    Ties in the labels stand apart, and are neither refused nor counted as losses; an even score is worth a coin's half.
    Known value: d = (2, -1, 0, 3), y = (1, 1, 1, ½) -> correct 1, wrong 1, even 1, ties 1, accuracy .5.
    Undefined where people decided no pair. Left out: a width within which a gap counts as even; round the gaps for that.
    """
    d, y = known_pair(gap, label, ("gap", "label"))
    probability(y, "label")
    side = np.sign(d) * np.sign(y - 0.5)
    decided = y != 0.5
    correct, wrong = int((side > 0).sum()), int((side < 0).sum())
    even = int((decided & (d == 0)).sum())
    rate = wilson(correct + even / 2, correct + wrong + even, level=level)
    return PairAccuracy(rate, correct, wrong, even, int((~decided).sum()))


def auc(score: ArrayLike, positive: ArrayLike) -> Figure:
    """(Σ_{positive} rankᵢ - n₁(n₁ + 1)/2) / (n₁ n₀) = P(s⁺ > s⁻) + ½ P(s⁺ = s⁻)

    | symbol | name     | shape | unit  | range                 |
    | ------ | -------- | ----- | ----- | --------------------- |
    | s      | score    | (n,)  | score | ℝ; equal ones allowed |
    | -      | positive | (n,)  | -     | {0, 1}                |

    Source: Mann & Whitney 1947; Hanley & McNeil 1982. Midranks, so a tie between the classes counts half.
    Known value: s = (.1, .4, .35, .8), positive = (0, 0, 1, 1) -> .75; all scores equal -> .5.
    Undefined where a class is empty.
    """
    s, y = known_pair(score, positive, ("score", "positive"))
    is_positive = y > 0
    n1 = int(is_positive.sum())
    n0 = y.size - n1
    if n1 == 0 or n0 == 0:
        return Figure(None, f"both classes are needed; got {n1} positive and {n0} negative")
    return Figure((float(midranks(s)[is_positive].sum()) - n1 * (n1 + 1) / 2) / (n1 * n0))


@dataclass(frozen=True, slots=True)
class LengthBalanced:
    """Accuracy where the better answer is the longer one, where it is the shorter one, and the mean of the two."""

    accuracy: Figure
    longer_is_better: PairAccuracy
    shorter_is_better: PairAccuracy
    same_length: int  # decided pairs of equal length; in neither


def length_balanced_accuracy(
    gap: ArrayLike, label: ArrayLike, length_difference: ArrayLike, *, level: float = 0.95
) -> LengthBalanced:
    """½ (accuracy where the better answer is the longer one) + ½ (accuracy where it is the shorter one)

    | symbol | name              | shape | unit   | range                           |
    | ------ | ----------------- | ----- | ------ | ------------------------------- |
    | d      | gap               | (n,)  | score  | ℝ                               |
    | y      | label             | (n,)  | -      | [0, 1], P(a is better); ½ a tie |
    | Δ      | length_difference | (n,)  | tokens | ℝ, length(a) - length(b)        |

    Balanced accuracy with "the better one is longer" as the class: any rule that goes by length alone gets ½, however
    strong the length bias of the labels is. Known value: d = Δ -> (1 + 0)/2 = .5. Undefined where one side has no pair.
    Left out: how much longer; `length_controlled_win_rate` has that.
    """
    d, y = known_pair(gap, label, ("gap", "label"))
    _, lengths = known_pair(gap, length_difference, ("gap", "length_difference"))
    side = np.sign(y - 0.5) * np.sign(lengths)
    longer, shorter = (pair_accuracy(d[side == s], y[side == s], level=level) for s in (1, -1))
    same_length = int(((y != 0.5) & (lengths == 0)).sum())
    a, b = longer.accuracy.value, shorter.accuracy.value
    if a is None or b is None:
        missing = "longer" if a is None else "shorter"
        return LengthBalanced(
            Figure(None, f"no pair whose better answer is the {missing}"), longer, shorter, same_length
        )
    return LengthBalanced(Figure((a + b) / 2), longer, shorter, same_length)


def length_controlled_win_rate(outcome: ArrayLike, length_difference: ArrayLike, *, ridge: float = 0.01) -> Figure:
    """σ(θ̂),  (θ̂, φ̂) = argmax Σ yᵢ ln σ(zᵢ) + (1 - yᵢ) ln σ(-zᵢ) - ½ κ φ²,  zᵢ = θ + φ tanh(Δᵢ / std(Δ))

    | symbol | name              | shape | unit   | range                                           |
    | ------ | ----------------- | ----- | ------ | ----------------------------------------------- |
    | y      | outcome           | (n,)  | -      | 1 win, ½ tie, 0 loss; or 1 where a score was right |
    | Δ      | length_difference | (n,)  | tokens | ℝ, length(ours) - length(theirs)                |
    | κ      | ridge             | ()    | -      | (0, ∞); keeps φ finite where length decides all |

    Source: Dubois et al. 2024 (length-controlled AlpacaEval): the win rate that the fit gives at equal lengths.
    Known value: 15 of 20 longer and 4 of 20 shorter answers won, all by the same length -> σ(½(ln 3 - ln 4)) = .464 as κ -> 0;
    every longer answer won and every shorter one lost, as many of each -> .5.
    Undefined without comparisons, or where all lengths differ by the same amount, which length and quality explain alike.
    Left out: the paper's term for the difficulty of the instruction. Intervals: `bootstrap`, by prompt.
    """
    y, delta = known_pair(outcome, length_difference, ("outcome", "length_difference"))
    probability(y, "outcome")
    if not ridge > 0:
        raise ValueError(f"The ridge must be in (0, inf). Got: {ridge}.")
    if y.size == 0:
        return Figure(None, "there are no comparisons")
    if y.min() == y.max() or not delta.any():
        return Figure(float(y.mean()))
    scale = float(delta.std())
    if scale <= 1e-12 * float(np.abs(delta).max()):
        return Figure(None, "all lengths differ by the same amount, so length and quality cannot be told apart")
    design = np.column_stack((np.ones(y.size), np.tanh(delta / scale)))
    return Figure(float(_sigmoid(_fit_logistic(design, y, np.array([0.0, ridge])))[0]))


def _fit_logistic(design: Floats, y: Floats, ridge: Floats) -> Floats:
    """Newton's steps on the concave objective, halved while they do not climb."""
    weights = np.zeros(design.shape[1])

    def objective(w: Floats) -> float:
        z = design @ w
        return float((y * z - np.logaddexp(0, z)).sum() - 0.5 * (ridge * w**2).sum())

    for _ in range(100):
        p = _sigmoid(design @ weights)
        slope = design.T @ (y - p) - ridge * weights
        curvature = (design * (p * (1 - p))[:, None]).T @ design + np.diag(ridge + 1e-12)
        step = np.linalg.solve(curvature, slope)
        while objective(weights + step) < objective(weights) and np.abs(step).max() > 1e-12:
            step = step / 2
        weights = weights + step
        if np.abs(step).max() < 1e-10:
            break
    return weights


def _sigmoid(z: Floats) -> Floats:
    result: Floats = np.exp(-np.logaddexp(0, -z))
    return result


def noise_ceiling(agreement: float) -> Figure:
    """a = (1 + √(2g - 1)) / 2

    | symbol | name      | shape | unit | range                                                  |
    | ------ | --------- | ----- | ---- | ------------------------------------------------------ |
    | g      | agreement | ()    | -    | [½, 1], how often two raters give a pair the same label |
    | a      | -         | ()    | -    | [½, 1], how often one of them is right                 |

    From g = a² + (1 - a)²: two equally good raters, errors independent. A model that is always right agrees with a
    single rater's label at rate a, so a is the ceiling of its measured accuracy.
    Known value: g = .63 -> .755; .73 -> .839; .81 -> .894. Undefined under ½, where raters agree less than coins would.
    Left out: hard and easy pairs, which make errors dependent and the true ceiling lower. Raises ValueError outside [0, 1].
    """
    if not 0 <= agreement <= 1:
        raise ValueError(f"The agreement must be in [0, 1]. Got: {agreement}.")
    if agreement < 0.5:
        return Figure(None, "raters agree less often than coins would")
    return Figure(float((1 + np.sqrt(2 * agreement - 1)) / 2))
