"""A linear Bradley–Terry model with a ridge: convex, so one answer from every start, and cross-validated by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from thumbwheel.errors import TrainingError
from thumbwheel.formulas.bradley_terry import bradley_terry, centring

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
MOST_STEPS = 100
TOLERANCE = 1e-10
"""Newton's decrement, relative to the objective, at which a fit is done."""


@dataclass(frozen=True)
class Comparisons:
    """P comparisons among R answers: `chosen` is better than `rejected` with probability `preference` (½: a tie)."""

    chosen: Indices  # (P,) rows of answers
    rejected: Indices  # (P,)
    preference: Floats  # (P,)
    margin: Floats  # (P,) on the raw score, 0 where unknown
    weight: Floats  # (P,) mean 1
    group: Indices  # (P,) the prompt

    def __len__(self) -> int:
        return len(self.chosen)

    def where(self, kept: NDArray[np.bool_]) -> Comparisons:
        """Those for which `kept` (P,) is True."""
        return Comparisons(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))

    def gaps(self, scores: Floats) -> Floats:
        """(P,) score of chosen minus score of rejected, from the scores (R,) of the answers."""
        return scores[self.chosen] - scores[self.rejected]


def fit_ridge(
    features: Floats, pairs: Comparisons, *, ridge: float, tau: float, centre: float, start: Floats | None = None
) -> Floats:
    """argmin_w Σ_pairs v (L_BT(r_w, r_l; τ, p, m) + c (r_w + r_l)²) + ½ ρ |w|²,  r = X w

    | symbol | name     | shape  | unit  | range                    |
    | ------ | -------- | ------ | ----- | ------------------------ |
    | X      | features | (R, D) | -     | ℝ, centred               |
    | ρ      | ridge    | ()     | -     | (0, ∞)                   |
    | τ      | tau      | ()     | score | (0, ∞)                   |
    | c      | centre   | ()     | -     | [0, ∞)                   |
    | v      | weight   | (P,)   | -     | (0, ∞), in `pairs`       |

    Returns (D,), by Newton's steps halved while they do not descend. Strictly convex, so `start` changes the time it takes
    and not the result. Raises TrainingError where it does not come out finite.
    """
    if not features.shape[1]:
        return np.zeros(0)  # nothing varies between the answers
    difference, total = _incidence(pairs, len(features), -1.0), _incidence(pairs, len(features), 1.0)  # (P, R)
    loss = _Loss(pairs, tau, centre)
    w: Floats = np.zeros(features.shape[1]) if start is None else start.copy()
    gap, both = difference @ (features @ w), total @ (features @ w)
    here = loss.value(gap, both) + 0.5 * ridge * float(w @ w)
    for _ in range(MOST_STEPS):
        by_gap, by_both, bend_gap, bend_both = loss.slopes(gap, both)
        slope = features.T @ (difference.T @ by_gap + total.T @ by_both) + ridge * w
        laplacian = (
            difference.T @ diags_array(bend_gap) @ difference + total.T @ diags_array(bend_both) @ total
        )  # (R, R)
        bend = features.T @ (laplacian @ features) + ridge * np.eye(len(w))
        step = -cho_solve(cho_factor(bend, check_finite=False), slope, check_finite=False)
        decrease = -float(slope @ step)
        if not np.isfinite(decrease):
            raise TrainingError(
                "The fit of the reward model is not finite. Look for extreme margins or weights in the data."
            )
        gap_step, both_step = difference @ (features @ step), total @ (features @ step)
        size = 1.0
        while size > 1e-9:
            there = loss.value(gap + size * gap_step, both + size * both_step)
            there += 0.5 * ridge * float((w + size * step) @ (w + size * step))
            if there <= here - 1e-4 * size * decrease:
                break
            size /= 2
        else:
            return w  # no step lowers the objective in floating point: this is the bottom
        w, gap, both, here = w + size * step, gap + size * gap_step, both + size * both_step, there
        if decrease <= TOLERANCE * max(1.0, abs(here)):
            return w
    raise TrainingError(f"The fit of the reward model did not settle in {MOST_STEPS} steps.")


def _incidence(pairs: Comparisons, answers: int, sign: float) -> Any:
    """(P, R) sparse: 1 at the chosen answer of each pair, `sign` at the rejected one."""
    rows = np.arange(len(pairs))
    values = np.concatenate([np.ones(len(pairs)), np.full(len(pairs), sign)])
    places = np.concatenate([rows, rows]), np.concatenate([pairs.chosen, pairs.rejected])
    made: Any = csr_array((values, places), shape=(len(pairs), answers))
    return made


@dataclass(frozen=True)
class _Loss:
    """The loss as a function of each pair's gap r_w - r_l and sum r_w + r_l, with slopes taken by autograd."""

    pairs: Comparisons
    tau: float
    centre: float

    def value(self, gap: Floats, both: Floats) -> float:
        return float(self._each(torch.from_numpy(gap), torch.from_numpy(both)).sum())

    def slopes(self, gap: Floats, both: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """First and second derivatives of the loss by gap and by sum, (P,) each; the mixed ones are zero."""
        at = torch.from_numpy(gap).requires_grad_(), torch.from_numpy(both).requires_grad_()
        first = torch.autograd.grad(self._each(*at).sum(), at, create_graph=True)
        second = torch.autograd.grad(first[0].sum() + first[1].sum(), at)
        by_gap, by_both, bend_gap, bend_both = (one.detach().numpy() for one in (*first, *second))
        return by_gap, by_both, bend_gap, bend_both

    def _each(self, gap: Tensor, both: Tensor) -> Tensor:
        preference, margin, weight = (
            torch.from_numpy(one) for one in (self.pairs.preference, self.pairs.margin, self.pairs.weight)
        )
        nothing = torch.zeros_like(gap)
        loss = bradley_terry(gap, nothing, tau=self.tau, margin=margin, preference=preference)
        return weight * (loss + self.centre * centring(both, nothing))


def folds_of(groups: Indices, *, most: int, rng: np.random.Generator) -> Indices:
    """(P,) fold of each pair: pairs of one prompt together, folds of about as many pairs, the largest prompts placed first.

    With fewer than two prompts the pairs are dealt one by one.
    """
    names, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return rng.permutation(len(groups)) % min(most, max(1, len(groups)))
    n = min(most, len(names))
    order = rng.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    fold, load = np.zeros(len(names), dtype=np.intp), np.zeros(n)
    for name in order:
        fold[name] = int(load.argmin())
        load[fold[name]] += sizes[name]
    return fold[codes]


def crossed_gaps(
    features: Floats, pairs: Comparisons, folds: Indices, *, ridges: Sequence[float], tau: float, centre: float
) -> Floats:
    """(ridges, P): the gap of each pair by a fit on the other folds, for each ridge. Ridges from the strongest down."""
    gaps = np.zeros((len(ridges), len(pairs)))
    for fold in np.unique(folds):
        out = folds == fold
        train, w = pairs.where(~out), None
        for row, ridge in enumerate(ridges):
            w = fit_ridge(features, train, ridge=ridge, tau=tau, centre=centre, start=w)
            gaps[row, out] = pairs.where(out).gaps(features @ w)
    return gaps


def best_scale(gaps: Floats, pairs: Comparisons) -> float:
    """argmax_s Σ v (p ln σ(s d) + (1 - p) ln σ(-s d)) in [0.01, 100]: by how much gaps are to be stretched to be believed.

    One tie of typical gap is added, so that a few pairs that all came out right are not believed without limit.
    Known value: n pairs of gap d, all right -> ln(2n + 1) / d.
    """
    typical = float(np.sqrt((gaps**2).mean())) if len(gaps) else 0.0
    low, high = np.log(0.01), np.log(100.0)
    for _ in range(60):  # the slope is monotone in s, so bisection on it
        middle = (low + high) / 2
        if _slope(np.exp(middle), gaps, pairs, typical) > 0:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _slope(scale: float, gaps: Floats, pairs: Comparisons, typical: float) -> float:
    tie = typical * (0.5 - _sigmoid(scale * typical))
    return float((pairs.weight * (pairs.preference - _sigmoid(scale * gaps)) * gaps).sum() + tie)


def _sigmoid(z: Floats | float) -> Floats:
    made: Floats = np.exp(-np.logaddexp(0, -np.asarray(z, dtype=np.float64)))
    return made


def log_loss_of(gaps: Floats, pairs: Comparisons) -> float:
    """Weighted mean of -p ln σ(d) - (1 - p) ln σ(-d), nats a pair."""
    loss = np.logaddexp(0, -gaps) + (1 - pairs.preference) * gaps
    return float((pairs.weight * loss).sum() / pairs.weight.sum())
