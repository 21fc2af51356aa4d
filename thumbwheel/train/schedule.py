"""The learning rate of each step: a function of the step alone, so that a resumed run needs no state for it."""

from __future__ import annotations

import math

from thumbwheel.config import TrainSettings


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """lr · warm-up · schedule

    | symbol   | name   | unit  | range                                                             |
    | -------- | ------ | ----- | ----------------------------------------------------------------- |
    | s        | step   | steps | 0 … S - 1                                                         |
    | S        | steps  | steps | ≥ 1                                                               |
    | W        | -      | steps | warmup_share · S, rounded                                         |
    | warm-up  | -      | -     | (s + 1) / W while s < W, then 1                                   |
    | schedule | -      | -     | with x = (s - W) / (S - W): constant 1; linear 1 - x; cosine ½(1 + cos πx) |

    Known values (lr 1, S 10, no warm-up): linear s=5 -> .5; cosine s=5 -> .5; with warmup_share .2, s=0 -> .5, s=1 -> 1.
    The rate is above 0 at every step, so no step is wasted.
    """
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    x = (step - warmup) / max(1, steps - warmup)
    if settings.schedule == "linear":
        return settings.lr * (1 - x)
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * x))
    return settings.lr
