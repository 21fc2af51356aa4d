"""Has a rater become worse? Decided on golds, items whose right answer is known: CUSUM, and the plain rule. numpy only."""

from __future__ import annotations

import math

ALARM = 3.5
"""A CUSUM above this pauses the rater's work."""


def cusum_step(state: float, *, wrong: bool, accuracy: float, drop: float = 0.15) -> float:
    """S ← max(0, S + (wrong ? ln((1 - p₁)/(1 - p₀)) : ln(p₁/p₀))),  p₁ = p₀ - drop

    | symbol | name     | shape | unit | range                                                  |
    | ------ | -------- | ----- | ---- | ------------------------------------------------------ |
    | S      | state    | ()    | nats | [0, ∞), 0 at the start and after each recalibration    |
    | p₀     | accuracy | ()    | -    | (drop, 1), the rater's own or the expected accuracy    |
    | -      | drop     | ()    | -    | (0, p₀), the fall that is to be found                  |

    Source: Page 1954, with the log-likelihood ratio of p₁ against p₀. Alarm where S > `ALARM`.
    Known value: p₀ = .89: a wrong gold from 0 -> .860201, a right one from 1 -> .815429; about 656 golds between false alarms,
    34 to find a fall to .74, 18 to find one to .63. Raises ValueError for p₀ or drop out of range.
    """
    if not 0 < drop < accuracy < 1:
        raise ValueError(f"The accuracy must be in (drop, 1) and the drop above 0. Got {accuracy} and {drop}.")
    worse = accuracy - drop
    step = math.log((1 - worse) / (1 - accuracy)) if wrong else math.log(worse / accuracy)
    return max(0.0, state + step)


def plain_shortfall(correct: int, n: int, *, accuracy: float, drop: float = 0.15) -> bool:
    """k/n < p₀ - drop

    | symbol | name     | shape | unit  | range                                     |
    | ------ | -------- | ----- | ----- | ----------------------------------------- |
    | k      | correct  | ()    | count | [0, n]                                    |
    | n      | n        | ()    | count | ≥ 1, the golds looked at, 10 by custom    |
    | p₀     | accuracy | ()    | -     | [0, 1]                                    |
    | -      | drop     | ()    | -     | [0, 1]                                    |

    The rule people state first. Known value: p₀ = .89, n = 10: 7 right -> True, 8 right -> False; so a rater who is as good as
    ever is stopped at 8.8 % of the looks, and one who fell to .74 is found at half of them. Raises ValueError outside [0, n].
    """
    if not 0 <= correct <= n or n < 1:
        raise ValueError(f"Right answers must be between 0 and n, and n at least 1. Got {correct} of {n}.")
    return correct / n < accuracy - drop - 1e-9  # exactly the drop is not more than the drop, whatever rounding says
