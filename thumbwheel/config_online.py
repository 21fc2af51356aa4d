"""Settings of learning from fresh samples: how KL is held, and what a reward is made of. `thumbwheel.config` shows them all."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from thumbwheel.section import Count, Positive, Section, Share

NEEDS_TARGET = ("ziegler", "exponential", "band", "pid")
TAKES_NO_TARGET = ("fixed", "cosine")
TARGETS = ("target_per_response_nats", "target_per_token_nats")


class KLSettings(Section):
    """How far the policy may go from its reference, and how the pull back is set. Options begin with their controller's name."""

    controller: str = Field(
        "fixed", description="fixed, ziegler, exponential, band, pid, cosine, or 'module:attr' of your own"
    )
    coefficient: float = Field(0.1, ge=0, description="β: weight of KL in reward or loss; where a controller begins")
    place: Literal["reward", "loss"] = Field("reward", description="KL is taken off the reward, or added to the loss")
    estimator: Literal["k1", "k2", "k3"] = Field("k1", description="of KL on sampled tokens; in the loss k2 or k3")
    target_per_response_nats: Positive | None = Field(
        None, description="KL of a whole answer that a controller aims at"
    )
    target_per_token_nats: Positive | None = Field(None, description="the same for the mean token; give one of the two")
    coefficient_bounds: tuple[Positive, Positive] = Field(
        (1e-6, 1e3), description="what a controller with a target may set β to"
    )
    ziegler_horizon_responses: Count = Field(10_000, description="answers over which an error of 1 would double β")
    exponential_gain_per_nat: Positive | None = Field(
        None, description="β ← β exp(gain (KL - target)); none: 0.1, for a target per response only"
    )
    band_low: float = Field(0.5, gt=0, lt=1, description="under this times the target β falls")
    band_high: float = Field(2.0, gt=1, description="over this times the target β rises")
    band_factor: float = Field(1.5, gt=1, description="what β is multiplied with or divided by")
    pid_p: float = Field(0.1, ge=0, description="log β per relative error KL/target - 1")
    pid_i: float = Field(0.05, ge=0, description="log β per relative error and update, summed")
    pid_d: float = Field(0.0, ge=0, description="log β per change of the relative error")
    cosine_warmup_share: Share = Field(0.1, description="share of updates at the first coefficient")
    cosine_warmup_coefficient: float = Field(0.2, ge=0, description="β in warm-up")
    cosine_start: float = Field(0.15, ge=0, description="β after warm-up")
    cosine_end: float = Field(0.05, ge=0, description="β at the last update")
    cosine_clip_end: float = Field(0.5, gt=0, description="the clip range at the last update, over that of warm-up")

    @model_validator(mode="before")
    @classmethod
    def _a_target_has_a_unit(cls, given: Any) -> Any:
        bare = [key for key in ("target", "target_nats", "target_kl") if isinstance(given, dict) and key in given]
        if bare:
            raise ValueError(
                f"there is no '{bare[0]}': a KL target has a unit. Use target_per_response_nats (6 is usual for short "
                "answers) or target_per_token_nats (0.01 is usual)"
            )
        return given

    @model_validator(mode="after")
    def _hangs_together(self) -> KLSettings:
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator 'k1' as a loss regularises nothing: its expected gradient is 0. With place = 'loss' use 'k2' "
                "(the gradient of KL to the reference) or 'k3'; or place = 'reward'"
            )
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one target, not two: {given[0]} or {given[1]}")
        if self.controller in NEEDS_TARGET and not given:
            raise ValueError(f"the controller '{self.controller}' needs a target: set {TARGETS[0]} or {TARGETS[1]}")
        if self.controller in TAKES_NO_TARGET and given:
            raise ValueError(
                f"the controller '{self.controller}' aims at no target, so {given[0]} would be ignored. Take it out, or use "
                f"one of {', '.join(NEEDS_TARGET)}"
            )
        self._refuse_ignored_options()
        self._check_range()
        return self

    def _refuse_ignored_options(self) -> None:
        if self.controller == "cosine" and self.coefficient != type(self).model_fields["coefficient"].default:
            raise ValueError(
                "'cosine' would ignore coefficient: set cosine_warmup_coefficient, cosine_start, cosine_end"
            )
        builtin = (*NEEDS_TARGET, *TAKES_NO_TARGET)
        unused = [name for name in builtin if name != self.controller and self.controller in builtin]
        for field, info in type(self).model_fields.items():
            owner = field.partition("_")[0]
            if owner in unused and getattr(self, field) != info.default:
                raise ValueError(
                    f"{field} belongs to the controller '{owner}', and '{self.controller}' would ignore it"
                )

    def _check_range(self) -> None:
        low, high = self.coefficient_bounds
        if low >= high:
            raise ValueError(f"coefficient_bounds must rise, from the least to the most. Got {low} and {high}")
        if self.controller in NEEDS_TARGET and not low <= self.coefficient <= high:
            raise ValueError(
                f"coefficient must lie in coefficient_bounds ({low:g} … {high:g}): '{self.controller}' moves it by factors"
            )
        if self.controller == "exponential" and self.target_per_token_nats and self.exponential_gain_per_nat is None:
            raise ValueError(
                "the usual gain of 0.1 is made for nats per response; with target_per_token_nats it would move β by "
                "thousandths. Set exponential_gain_per_nat too (20 is about right), or use target_per_response_nats"
            )
