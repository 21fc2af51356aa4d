"""Settings of learning from fresh samples: how KL is held, and what a reward is made of. `thumbwheel.config` shows them all."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from thumbwheel.config_rewards import CompositeSettings
from thumbwheel.config_train import TrainSettings
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


class GuardSettings(Section):
    """What is watched while a policy learns from its own answers, and what is done when it goes wrong."""

    enabled: bool = Field(True, description="watch, and act")
    max_kl_per_response_nats: Positive = Field(60.0, description="KL to the reference above this is a collapse")
    max_repetition_rise: Share = Field(0.2, description="rise of the share of repeated 3-grams over the first answers'")
    min_entropy_share: Share = Field(0.2, description="entropy below this share of the first answers' is a collapse")
    max_length_ratio: float = Field(3.0, gt=1, description="mean length over the first answers', either way")
    max_reward_jump: Positive = Field(
        2.0, description="a mean reward this many deviations of single answers above the last one is a spike"
    )
    max_gold_gap: Positive | None = Field(None, description="reward may rise this much more than the gold reward")
    save_every_iterations: Count = Field(5, description="iterations between weights that are kept for rolling back")
    warnings_before_rollback: Count = Field(2, description="alarms in a row that cool down before one rolls back")
    cool_down: float = Field(0.5, gt=0, lt=1, description="learning rate is multiplied by this at every alarm")
    kl_boost: float = Field(2.0, ge=1, description="β is multiplied by this at every alarm")
    max_rollbacks: Count = Field(2, description="after so many, DPO on the preferences at hand, or an end")


RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "dr_grpo", "reduction": "constant_length"},
    "dapo": {"clip_high": 0.28, "reduction": "token_mean", "resample_flat": 2, "cut_answers": "mask"},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "reduction": "sequence_mean"},
    "rloo": {"advantage": "rloo", "reduction": "token_mean"},
    "reinforce_pp": {"advantage": "reinforce_pp", "reduction": "token_mean"},
    "batch": {"advantage": "batch", "reduction": "token_mean"},
    "ppo": {
        "advantage": "gae",
        "answers_per_prompt": 1,
        "prompts_per_iteration": 32,
        "reduction": "token_mean",
        "epochs": 2,
    },
}
"""What the papers' names stand for, as settings; see docs/howto/online.md."""


class OnlineSettings(TrainSettings):
    """Learning from the policy's own answers: PPO, GRPO and its family. What is set here goes before the recipe."""

    recipe: str = Field("grpo", description=", ".join(RECIPES) + ": what the names stand for, as settings")
    lr: Positive = Field(2e-5, description="peak learning rate")
    iterations: Count = Field(50, description="rounds of sampling, scoring and learning")
    prompts_per_iteration: Count = Field(8, description="prompts asked in one of them")
    answers_per_prompt: Count = Field(8, description="G: answers to each prompt")
    batch_size: Count = Field(8, description="prompts (all answers together) a weight update")
    epochs: Count = Field(1, description="passes over an iteration's answers")
    passes: Count = Field(2, description="picks only: passes over the groups at hand, in place of 'iterations'")
    checkpoint_every_steps: Count = Field(10, description="weight updates between checkpoints for resuming")
    temperature: Positive = Field(1.0, description="answers are sampled, and scored in training, at this temperature")
    advantage: str = Field("grpo", description="grpo, dr_grpo, rloo, batch, reinforce_pp, or gae with a value head")
    reduction: str = Field("sequence_mean", description="token_mean, sequence_mean or constant_length")
    ratio: Literal["token", "sequence"] = Field(
        "token", description="of new to old policy: each token's, or the answer's"
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="ε below 1")
    clip_high: Positive = Field(0.2, description="ε above 1")
    dual_clip: float | None = Field(None, gt=1, description="bound of the loss where the advantage is negative")
    engine_weight_cap: Positive | None = Field(
        2.0, description="bound of π_trainer/π_engine as a token's weight; none: the two are taken to be one"
    )
    resample_flat: int = Field(0, ge=0, description="tries to replace groups whose rewards are all equal")
    cut_answers: Literal["keep", "mask", "penalise"] = Field(
        "keep", description="answers without an end token: learn from them, leave them out, or take cut_penalty off"
    )
    cut_penalty: float = Field(
        1.0, ge=0, description="taken off the reward of a cut answer, with cut_answers = penalise"
    )
    gamma: Share = Field(1.0, description="discount a token, with advantage = gae")
    lam: Share = Field(0.95, description="λ of GAE")
    standardise: bool = Field(
        True, description="with gae: advantages to mean 0, deviation 1 over an iteration's tokens"
    )
    value_weight: float = Field(0.5, ge=0, description="of the value loss")
    value_clip: Positive | None = Field(0.2, description="how far a value may move from the old one unpunished")
    value_detached: bool = Field(False, description="the value loss leaves the trunk alone")
    value_head: str | None = Field(
        None,
        description="folder of a model that such a run left: the critic starts from its value head, not from zeros",
    )
    entropy_weight: float = Field(
        0.0, ge=0, description="of the entropy bonus; 0.05 is usual in control, 0 for language"
    )
    lm_weight: float = Field(0.0, ge=0, description="of an ordinary language-model loss on the texts of lm_texts")
    lm_texts: str | None = Field(
        None, description="file of such texts: .txt with one a line, or JSON lines with 'text'"
    )
    max_update_kl_per_token_nats: Positive | None = Field(
        0.5, description="new against old policy; above this the rest of the iteration's updates is left out"
    )
    max_unscored_share: Share = Field(0.2, description="fail when more answers than this get no reward")
    reward: CompositeSettings = Field(
        default_factory=CompositeSettings, description="what an answer's reward is made of"
    )
    kl: KLSettings = Field(default_factory=KLSettings, description="how far the policy may go from its reference")
    guard: GuardSettings = Field(default_factory=GuardSettings, description="what is watched, and what is then done")

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("recipe", "grpo")
        if name not in RECIPES:
            raise ValueError(f"there is no recipe '{name}'. Allowed: {', '.join(RECIPES)}")
        return {**RECIPES[name], **given}

    @model_validator(mode="after")
    def _fits_together(self) -> OnlineSettings:
        alone = self.advantage in ("gae", "reinforce_pp")
        if self.answers_per_prompt < 2 and not alone:
            raise ValueError(
                f"advantage '{self.advantage}' compares answers to one prompt, and answers_per_prompt is 1. Set it to 2 or "
                "more (8 is usual), or use advantage = 'gae' or 'reinforce_pp'"
            )
        if self.value_head is not None and self.advantage != "gae":
            raise ValueError(f"there is no value head with advantage = '{self.advantage}'. Leave value_head out")
        if self.advantage == "gae" and self.resample_flat:
            raise ValueError("resample_flat replaces flat groups; with advantage = 'gae' there are none. Leave it out")
        return self
