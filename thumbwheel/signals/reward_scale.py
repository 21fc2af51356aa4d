"""Rewards on a steady scale: mean 0 and deviation 1, or [-1, 1], by what was seen so far. What is missing (NaN) stays so.

scale = RunningScale("z_score", clip=5.0)
scale = scale.after(rewards)        # learn from this batch …
rewards = scale.apply(rewards)      # … and put it on the scale
state = scale.state()               # JSON, for the checkpoint; scale.restored(state) goes on
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thumbwheel.errors import CheckpointError, SettingError, TrainingError, explain
from thumbwheel.signals.rewards import LARGEST

Floats = NDArray[np.float64]
ScaleKind = Literal["none", "z_score", "range"]
_KEPT = ("count", "mean", "squares", "low", "high")


@dataclass(frozen=True)
class RunningScale:
    """A scale and what it has seen: how many rewards, their mean, Σ (r - mean)², least and largest.

    kind   "z_score": (r - mean)/std, std with n - 1. "range": 2 (r - low)/(high - low) - 1. "none": as they are
    clip   the scaled reward is kept within ±clip, none: not at all; "range" never leaves [-1, 1]

    Rewards that were all equal so far have no scale: they become 0.
    """

    kind: ScaleKind = "z_score"
    clip: float | None = None
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "z_score", "range") or (self.clip is not None and not self.clip > 0):
            raise SettingError(
                explain(
                    "A reward scale is malformed.",
                    allowed="the kind 'none', 'z_score' or 'range'; a clip above 0 or none",
                    got=(self.kind, self.clip),
                )
            )

    def after(self, rewards: ArrayLike) -> Self:
        """The scale after these too. Source: Chan et al. 1979, the parallel form of mean and sum of squares."""
        seen = _finite(rewards)
        seen = seen[~np.isnan(seen)]
        if not seen.size:
            return self
        n, total = seen.size, self.count + seen.size
        least = float(seen.min())
        above = seen - least  # exact for close numbers, so that equal rewards have a deviation of exactly 0
        mean = least + float(above.mean())
        gap = mean - self.mean if self.count else 0.0
        return replace(
            self,
            count=total,
            mean=self.mean + gap * n / total if self.count else mean,
            squares=self.squares + float(((above - above.mean()) ** 2).sum()) + gap**2 * self.count * n / total,
            low=min(self.low, least) if self.count else least,
            high=max(self.high, float(seen.max())) if self.count else float(seen.max()),
        )

    def apply(self, rewards: ArrayLike) -> Floats:
        """(R,) rewards on the scale. Raises TrainingError where it has seen none yet: call `after` first."""
        r = _finite(rewards)
        if self.kind != "none" and not self.count and not np.isnan(r).all():
            raise TrainingError(
                "A reward scale that has seen no reward cannot scale one. Call `after` with them first."
            )
        if self.kind == "none":
            scaled = r
        elif self.high <= self.low or not self.squares > 0:
            scaled = np.where(np.isnan(r), np.nan, 0.0)
        elif self.kind == "z_score":
            scaled = (r - self.mean) / math.sqrt(self.squares / (self.count - 1))
        else:
            scaled = np.clip(2 * ((r - self.low) / (self.high - self.low)) - 1, -1.0, 1.0)
        return scaled if self.clip is None else np.clip(scaled, -self.clip, self.clip)

    def state(self) -> dict[str, Any]:
        """What it has seen, as JSON."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in _KEPT}}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """This scale, having seen that. Raises CheckpointError for the state of another kind of scale."""
        values: dict[str, Any] = {name: state.get(name) for name in _KEPT}
        sound = all(
            isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values.values()
        )
        if state.get("kind") != self.kind or not sound or set(state) != {"kind", *_KEPT} or values["count"] < 0:
            raise CheckpointError(
                explain(
                    "The checkpoint's reward scale is not the one in the settings.",
                    allowed=f"a state of '{self.kind}' with {', '.join(_KEPT)}",
                    got=dict(state),
                    next="Go on with the settings the run began with, or start a new run.",
                )
            )
        return replace(self, **values)


def _finite(rewards: ArrayLike) -> Floats:
    r = np.asarray(rewards, dtype=np.float64)
    if (np.abs(r[~np.isnan(r)]) > LARGEST).any():
        raise TrainingError(
            f"A reward must be finite and within ±{LARGEST:g}, or NaN where it is missing. Got: {r[np.abs(r) > LARGEST][0]}."
        )
    return r
