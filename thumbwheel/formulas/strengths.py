"""One strength per item from who beat whom: Bradley-Terry by maximum likelihood, iterated until it stands still. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Floats


@dataclass(frozen=True, slots=True)
class Strengths:
    """Strengths that sum to 1, or None and the reason. Item i beats item j with probability sᵢ / (sᵢ + sⱼ)."""

    values: tuple[float, ...] | None
    iterations: int
    reason: str | None = None


def bradley_terry_strengths(wins: ArrayLike, *, tolerance: float = 1e-8, max_iterations: int = 10_000) -> Strengths:
    """sᵢ ← Wᵢ / Σ_{j ≠ i} (wᵢⱼ + wⱼᵢ) / (sᵢ + sⱼ),  then s ← s / Σ s, until no sᵢ moves by more than the tolerance

    | symbol | name | shape  | unit  | range                                                         |
    | ------ | ---- | ------ | ----- | ------------------------------------------------------------- |
    | wᵢⱼ    | wins | (K, K) | count | [0, ∞), how often i beat j; a tie is half a win for each side |
    | Wᵢ     | -    | ()     | count | Σⱼ wᵢⱼ                                                        |

    Source: Bradley & Terry 1952; the iteration: Zermelo 1929, Hunter 2004, eq. 3.
    Known value: wins [[0, 9, 8], [1, 0, 7], [2, 3, 0]] -> .737, .163, .100.
    Undefined where some group of items never lost to the others, or never met them (Ford 1957): the likelihood then has no
    maximum. Raises ValueError for a table that is not square, negative, or has wins of an item over itself.
    """
    table = np.asarray(wins, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] < 2:
        raise ValueError(f"Wins must be a square table of at least 2 items. Got the shape {table.shape}.")
    if not np.isfinite(table).all() or (table < 0).any() or np.diag(table).any():
        raise ValueError("Wins must be finite, 0 or more, and 0 on the diagonal: no item meets itself.")
    if not _connected(table > 0):
        return Strengths(None, 0, "some items never lost to the others or never met them, so no strengths fit best")
    met, won = table + table.T, table.sum(axis=1)
    strength = np.full(len(table), 1 / len(table))
    for iteration in range(1, max_iterations + 1):
        updated: Floats = won / (met / (strength[:, None] + strength[None, :])).sum(axis=1)
        updated /= updated.sum()
        moved = float(np.abs(updated - strength).max())
        strength = updated
        if moved <= tolerance:
            return Strengths(tuple(float(s) for s in strength), iteration)
    return Strengths(None, max_iterations, f"still moving by {moved:.2g} after {max_iterations} iterations")


def _connected(beats: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bool:
    """Is there a chain of wins from every item to every other?"""
    reach = beats | np.eye(len(beats), dtype=bool)
    for _ in range(int(np.ceil(np.log2(len(beats))))):
        reach = (reach.astype(np.float64) @ reach.astype(np.float64)) > 0
    return bool(reach.all())
