"""The guard: figures of an iteration in, a verdict out. Pure; the loop carries the verdict out and the report tells of it.

A verdict is one of: go on; cool down (lower learning rate, stronger pull to the reference); roll back (the last good
weights, and the rest as in cool down); fall back (stop, and learn by DPO from the preferences at hand instead).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from thumbwheel.config import GuardSettings
from thumbwheel.errors import CheckpointError

Act = Literal["go_on", "cool_down", "roll_back", "fall_back"]
WATCHED = ("reward", "reward_std", "gold", "kl_per_response_nats", "repetition", "entropy", "length")


@dataclass(frozen=True)
class Verdict:
    """What to do, and why: one sentence a cause."""

    act: Act
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guard:
    """What the guard remembers: figures of the first and of the last good iteration, alarms in a row, roll-backs."""

    first: Mapping[str, float] | None = None
    last: Mapping[str, float] | None = None
    alarms: int = 0
    rollbacks: int = 0

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint."""
        return asdict(self)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Guard:
        """The guard at that state. Raises CheckpointError where it is none."""
        try:
            return cls(state["first"], state["last"], int(state["alarms"]), int(state["rollbacks"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"The checkpoint's guard cannot be read: {error}. Start a new run.") from error

    def judged(self, figures: Mapping[str, float], settings: GuardSettings) -> tuple[Guard, Verdict]:
        """The guard after an iteration with these figures (those of WATCHED that are known), and its verdict."""
        known = {name: float(figures[name]) for name in WATCHED if name in figures}
        first = known if self.first is None else self.first
        causes = alarms_of(known, first, self.last, settings)
        if not causes:
            return replace(self, first=first, last=known, alarms=0), Verdict("go_on")
        alarms = self.alarms + 1
        if alarms <= settings.warnings_before_rollback:
            return replace(self, first=first, alarms=alarms), Verdict("cool_down", causes)
        if self.rollbacks < settings.max_rollbacks:
            return replace(self, alarms=0, rollbacks=self.rollbacks + 1), Verdict("roll_back", causes)
        return replace(self, alarms=alarms), Verdict("fall_back", causes)


def alarms_of(
    now: Mapping[str, float], first: Mapping[str, float], last: Mapping[str, float] | None, settings: GuardSettings
) -> tuple[str, ...]:
    """What is wrong with an iteration, one sentence each.

    | alarm | when |
    | --- | --- |
    | not finite | a figure is NaN or infinite |
    | KL | per response above its bound |
    | repetition | share of repeated 3-grams has risen by more than allowed |
    | entropy | below a share of the first iteration's |
    | length | more than so many times, or less than that part of, the first iteration's |
    | spike | mean reward above that of the last good iteration by more deviations of its answers' rewards than allowed |
    | gold | reward has risen more than the gold reward by more than allowed |
    """
    odd = sorted(name for name, value in now.items() if not math.isfinite(value))
    if odd:
        return (f"{', '.join(odd)} not finite",)
    checks = (_kl, _repetition, _entropy, _length, _gold)
    found = [sentence for check in checks if (sentence := check(now, first, settings))]
    if sentence := _spike(now, last or now, settings):
        found.append(sentence)
    return tuple(found)


def _kl(now: Mapping[str, float], first: Mapping[str, float], s: GuardSettings) -> str | None:
    kl = now.get("kl_per_response_nats", 0.0)
    bound = s.max_kl_per_response_nats
    return f"KL to the reference is {kl:.3g} nats a response (allowed: {bound:g})" if kl > bound else None


def _repetition(now: Mapping[str, float], first: Mapping[str, float], s: GuardSettings) -> str | None:
    rise = now.get("repetition", 0.0) - first.get("repetition", 0.0)
    bound = s.max_repetition_rise
    return f"repeated 3-grams rose by {rise:.0%} (allowed: {bound:.0%})" if rise > bound else None


def _entropy(now: Mapping[str, float], first: Mapping[str, float], s: GuardSettings) -> str | None:
    if "entropy" not in now or not first.get("entropy"):
        return None
    share = now["entropy"] / first["entropy"]
    bound = s.min_entropy_share
    return f"entropy fell to {share:.0%} of where it began (allowed: {bound:.0%})" if share < bound else None


def _length(now: Mapping[str, float], first: Mapping[str, float], s: GuardSettings) -> str | None:
    if not now.get("length") or not first.get("length"):
        return None
    ratio = now["length"] / first["length"]
    if 1 / s.max_length_ratio <= ratio <= s.max_length_ratio:
        return None
    return f"answers are {ratio:.2g} times as long as at first (allowed: {s.max_length_ratio:g} times, either way)"


def _gold(now: Mapping[str, float], first: Mapping[str, float], s: GuardSettings) -> str | None:
    if s.max_gold_gap is None or not {"reward", "gold"} <= now.keys() & first.keys():
        return None
    gap = (now["reward"] - first["reward"]) - (now["gold"] - first["gold"])
    return (
        f"reward rose {gap:.3g} more than the gold reward (allowed: {s.max_gold_gap:g})"
        if gap > s.max_gold_gap
        else None
    )


def _spike(now: Mapping[str, float], last: Mapping[str, float], s: GuardSettings) -> str | None:
    deviation = last.get("reward_std", 0.0)
    above = now.get("reward", 0.0) - last.get("reward", 0.0)
    if deviation == 0 or above <= s.max_reward_jump * deviation:
        return None
    return (
        f"reward jumped by {above / deviation:.3g} times the deviation of the answers before "
        f"(allowed: {s.max_reward_jump:g}); look at the answers for a way round the reward"
    )
