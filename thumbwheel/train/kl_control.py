"""What holds KL where it should be: the coefficient β of the pull to the reference, set anew after each update.

    controller = open_controller(settings, updates=200)
    ...                                                  # an update with controller.coefficient
    controller = controller.after(kl, responses=64)      # kl in nats per response or per token: see controller.unit

A controller is frozen; `after` gives the next one. `state()` is JSON for a checkpoint, `restored(state)` goes on from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from thumbwheel.config import KLSettings
from thumbwheel.errors import CheckpointError, SettingError, TrainingError, explain
from thumbwheel.registry import Registry

Unit = Literal["response", "token"]
USUAL_GAIN_PER_NAT = 0.1


@runtime_checkable
class KLController(Protocol):
    """What the trainers need of one."""

    @property
    def coefficient(self) -> float:
        """β of the next update."""

    @property
    def clip_scale(self) -> float:
        """What the clip range of the next update is multiplied with; 1 for all but the cosine."""

    @property
    def unit(self) -> Unit:
        """Whether `after` takes KL per response or per token."""

    def after(self, kl: float, *, responses: int) -> Self:
        """The controller of the next update. `kl` in nats, measured over `responses` answers; 0 answers say nothing."""

    def state(self) -> dict[str, Any]:
        """What changes, as JSON."""

    def restored(self, state: Mapping[str, Any]) -> Self:
        """This controller at that state. Raises CheckpointError for the state of another kind."""


kl_controllers: Registry[Callable[..., KLController]] = Registry("KL controller")
"""Name -> (KLSettings, *, updates: int) -> KLController."""


def open_controller(settings: KLSettings, *, updates: int) -> KLController:
    """The controller that the settings name, before the first of `updates` updates. Raises RegistryError, SettingError."""
    controller = kl_controllers.get(settings.controller)(settings, updates=updates)
    if not isinstance(controller, KLController):
        raise SettingError(
            explain(
                "The 'controller' setting of KL names something else.",
                allowed="(settings, *, updates) -> an object with coefficient, clip_scale, unit, after, state, restored",
                got=settings.controller,
            )
        )
    return controller


@dataclass(frozen=True)
class _Control:
    """The parts all share. `KEPT` names the fields that change and are written to checkpoints."""

    KEPT: ClassVar[tuple[str, ...]] = ("coefficient",)

    coefficient: float
    unit: Unit = "response"
    clip_scale: float = 1.0

    def state(self) -> dict[str, Any]:
        return {"controller": type(self).__name__, **{name: getattr(self, name) for name in self.KEPT}}

    def restored(self, state: Mapping[str, Any]) -> Self:
        kind, mine = state.get("controller"), type(self).__name__
        values: dict[str, Any] = {name: state.get(name) for name in self.KEPT}
        sound = all(
            isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values.values()
        )
        if kind != mine or not sound or set(state) != {"controller", *self.KEPT}:
            raise CheckpointError(
                explain(
                    "The checkpoint's KL controller is not the one in the settings.",
                    allowed=f"a state of {mine} with {', '.join(self.KEPT)}",
                    got=dict(state),
                    next="Go on with the settings the run began with, or start a new run.",
                )
            )
        return replace(self, **values)


@dataclass(frozen=True)
class Fixed(_Control):
    """β stays."""

    def after(self, kl: float, *, responses: int) -> Self:
        return self


@dataclass(frozen=True)
class _Aiming(_Control, ABC):
    """One that aims at `target_nats`, in the unit of `unit`, and keeps β within low … high."""

    target_nats: float = math.nan
    low: float = 1e-6
    high: float = 1e3

    def after(self, kl: float, *, responses: int) -> Self:
        if not math.isfinite(kl):
            raise TrainingError(
                f"KL to the reference is not finite. Got: {kl} nats per {self.unit}. The update that made it went wrong: "
                "lower the learning rate, or go back to the checkpoint before it."
            )
        return self._moved(kl, responses) if responses > 0 else self

    @abstractmethod
    def _moved(self, kl: float, responses: int) -> Self:
        """The next one, for a finite `kl` over one answer or more."""

    def _error(self, kl: float, limit: float) -> float:
        """clip(KL/target - 1, -limit, limit)"""
        return min(limit, max(-limit, kl / self.target_nats - 1))

    def _at(self, log_coefficient: float, **changed: Any) -> Self:
        """With β = e^x, or exactly the bound that e^x would pass."""
        if log_coefficient >= math.log(self.high):
            return replace(self, coefficient=self.high, **changed)
        if log_coefficient <= math.log(self.low):
            return replace(self, coefficient=self.low, **changed)
        return replace(self, coefficient=math.exp(log_coefficient), **changed)


@dataclass(frozen=True)
class Ziegler(_Aiming):
    """e = clip(KL/target - 1, -.2, .2),  β ← β (1 + e n/horizon)

    Source: Ziegler et al. 2019, sec. 2.2. n answers an update. β .15, target 6, horizon 10 000, n 512: KL 12 -> .151536.
    """

    horizon_responses: int = 10_000

    def _moved(self, kl: float, responses: int) -> Self:
        factor = 1 + self._error(kl, 0.2) * responses / self.horizon_responses
        return replace(self, coefficient=min(self.high, max(self.low, self.coefficient * factor)))


@dataclass(frozen=True)
class Exponential(_Aiming):
    """β ← β e^(gain (KL - target))

    With gain .1 per nat and nats per response, 8 against 4 multiplies by 1.4918; in nats per token, .02 against .01
    multiplies by 1.001 only, so such a target needs a gain of its own.
    """

    gain_per_nat: float = USUAL_GAIN_PER_NAT

    def _moved(self, kl: float, responses: int) -> Self:
        return self._at(math.log(self.coefficient) + self.gain_per_nat * (kl - self.target_nats))


@dataclass(frozen=True)
class Band(_Aiming):
    """β ← factor β over band_high · target, β/factor under band_low · target, and stays between

    Source: Schulman et al. 2017 (PPO), sec. 4, there with 1.5, 1/1.5 and factor 2.
    """

    band_low: float = 0.5
    band_high: float = 2.0
    factor: float = 1.5

    def _moved(self, kl: float, responses: int) -> Self:
        step = (kl > self.band_high * self.target_nats) - (kl < self.band_low * self.target_nats)
        return self._at(math.log(self.coefficient) + step * math.log(self.factor)) if step else self


@dataclass(frozen=True)
class PID(_Aiming):
    """log β = log β₀ + P e + I Σ e + D (e - e₋₁),  e = clip(KL/target - 1, -1, 1)

    Source: Stooke et al. 2020 (PID Lagrangian), here in log β, so that gains have no unit and β stays above 0. The sum
    stands still while β is at a bound and would be pushed further (no wind-up).
    """

    KEPT: ClassVar[tuple[str, ...]] = ("coefficient", "summed", "error")

    first: float = math.nan
    p: float = 0.0
    i: float = 0.0
    d: float = 0.0
    summed: float = 0.0
    error: float = 0.0

    def _moved(self, kl: float, responses: int) -> Self:
        error = self._error(kl, 1.0)
        outside = (self.coefficient >= self.high and error > 0) or (self.coefficient <= self.low and error < 0)
        summed = self.summed if outside else self.summed + error
        wanted = math.log(self.first) + self.p * error + self.i * summed + self.d * (error - self.error)
        return self._at(wanted, summed=summed, error=error)


@dataclass(frozen=True)
class Cosine(_Control):
    """β = warm-up's, then end + (start - end) (1 + cos πx)/2 for x from 0 to 1 at the last update; the clip range likewise

    By default .2, then .15 → .05, while the clip range goes from its own size to half of it (.2 → .1). KL is not looked at.
    """

    KEPT: ClassVar[tuple[str, ...]] = ("coefficient", "clip_scale", "done")

    updates: int = 1
    warmup_updates: int = 0
    warmup: float = 0.2
    start: float = 0.15
    end: float = 0.05
    clip_end: float = 0.5
    done: int = 0

    def after(self, kl: float, *, responses: int) -> Self:
        return self.before(self.done + 1)

    def before(self, update: int) -> Self:
        """The controller of that update, counted from 0; beyond the last one it stays where it ended."""
        if update < self.warmup_updates:
            return replace(self, coefficient=self.warmup, clip_scale=1.0, done=update)
        last = max(1, self.updates - 1 - self.warmup_updates)
        fall = (1 + math.cos(math.pi * min(1.0, (update - self.warmup_updates) / last))) / 2
        return replace(
            self,
            coefficient=self.end + (self.start - self.end) * fall,
            clip_scale=self.clip_end + (1 - self.clip_end) * fall,
            done=update,
        )


def _aim(settings: KLSettings) -> dict[str, Any]:
    per_token = settings.target_per_token_nats
    low, high = settings.coefficient_bounds
    return {
        "coefficient": settings.coefficient,
        "unit": "response" if per_token is None else "token",
        "target_nats": per_token if per_token is not None else settings.target_per_response_nats,
        "low": low,
        "high": high,
    }


@kl_controllers.register("fixed")
def _fixed(settings: KLSettings, *, updates: int) -> KLController:
    return Fixed(settings.coefficient)


@kl_controllers.register("ziegler")
def _ziegler(settings: KLSettings, *, updates: int) -> KLController:
    return Ziegler(**_aim(settings), horizon_responses=settings.ziegler_horizon_responses)


@kl_controllers.register("exponential")
def _exponential(settings: KLSettings, *, updates: int) -> KLController:
    return Exponential(**_aim(settings), gain_per_nat=settings.exponential_gain_per_nat or USUAL_GAIN_PER_NAT)


@kl_controllers.register("band")
def _band(settings: KLSettings, *, updates: int) -> KLController:
    return Band(**_aim(settings), band_low=settings.band_low, band_high=settings.band_high, factor=settings.band_factor)


@kl_controllers.register("pid")
def _pid(settings: KLSettings, *, updates: int) -> KLController:
    return PID(**_aim(settings), first=settings.coefficient, p=settings.pid_p, i=settings.pid_i, d=settings.pid_d)


@kl_controllers.register("cosine")
def _cosine(settings: KLSettings, *, updates: int) -> KLController:
    return Cosine(
        settings.cosine_warmup_coefficient,
        updates=updates,
        warmup_updates=round(settings.cosine_warmup_share * updates),
        warmup=settings.cosine_warmup_coefficient,
        start=settings.cosine_start,
        end=settings.cosine_end,
        clip_end=settings.cosine_clip_end,
    ).before(0)
