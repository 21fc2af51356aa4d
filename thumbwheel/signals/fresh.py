"""How much of what a reward model learns from is about answers of the policy that now serves, and weights that make it enough.

A policy moves away from the answers that its reward model knows. Stiennon et al. 2020 and Bai et al. 2022 ask people about
fresh samples for this reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.errors import SettingError, explain
from thumbwheel.records import Preference


@dataclass(frozen=True)
class Freshness:
    """Pairs in all and those whose answers the live version gave; and the weights of both."""

    rows: int
    fresh: int
    weight: float
    fresh_weight: float

    @property
    def share(self) -> float:
        """Of the weight; 0 where there are no pairs."""
        return self.fresh_weight / self.weight if self.weight else 0.0

    def line(self, live: str) -> str:
        """One line for people."""
        return f"{self.fresh} of {self.rows} pairs ({self.share:.0%} of the weight) are answers of {live}"


def freshness(rows: Sequence[Preference], live: str) -> Freshness:
    """How many of the pairs are of the version `live`, and how much they weigh."""
    fresh = [row.weight for row in rows if row.policy_version == live]
    return Freshness(len(rows), len(fresh), sum(row.weight for row in rows), sum(fresh))


def prompts_to_sample(found: Freshness, *, share: float, pairs_per_prompt: int) -> int:
    """⌈(s N - F) / ((1 - s) k)⌉, at least 0: prompts of k pairs each until a share s of all pairs is fresh

    N pairs of which F are fresh. Known value: N = 70, F = 0, s = .3, k = 3 -> 10, for then 30 of 100 are. Raises SettingError
    for a share outside [0, 1), or without a pair a prompt.
    """
    _check_share(share)
    if pairs_per_prompt < 1:
        raise SettingError("One answer a prompt makes no pair. Sample two or more (-n 4 is usual).")
    missing = (share * found.rows - found.fresh) / ((1 - share) * pairs_per_prompt)
    return max(0, math.ceil(missing - 1e-9))  # 21/2.1 is a little over 10 in floating point


def freshened(rows: Sequence[Preference], live: str, *, share: float, cap: float) -> list[Preference]:
    """Weights times a = min(s W / F, cap) where fresh, times b = (W - a F) / (W - F) elsewhere; the sum W stays

    | symbol | name  | unit   | range                                                |
    | ------ | ----- | ------ | ---------------------------------------------------- |
    | W, F   | -     | weight | of all pairs; of those that the version `live` gave   |
    | s      | share | -      | [0, 1), what the fresh ones should hold of W          |
    | cap    | cap   | -      | ≥ 1, the most that a fresh pair's weight is multiplied |

    Pairs that are fresh already by a share of s or more, or not at all, stay as they are. Known value: weights 1 fresh, 9
    others, s = .3, cap 4 -> 3 and 7/9; cap 2 -> 2 and 8/9. Raises SettingError for a share or cap out of range.
    """
    _check_share(share)
    if not cap >= 1:
        raise SettingError(
            explain("The 'reward.fresh_weight_cap' setting is out of range.", allowed="[1, inf)", got=cap)
        )
    found = freshness(rows, live)
    if found.fresh == 0 or found.share >= share:
        return list(rows)
    up = min(share * found.weight / found.fresh_weight, cap)
    down = (found.weight - up * found.fresh_weight) / (found.weight - found.fresh_weight)
    return [
        row.model_copy(update={"weight": row.weight * (up if row.policy_version == live else down)}) for row in rows
    ]


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise SettingError(explain("The 'reward.fresh_share' setting is out of range.", allowed="[0, 1)", got=share))
