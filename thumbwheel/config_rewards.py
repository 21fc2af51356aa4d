"""Settings of what a reward is made of. `thumbwheel.config` shows them all."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from thumbwheel.section import Count, Positive, Section, Share


class RewardTermSettings(Section):
    """One term of a composed reward."""

    name: str = Field(min_length=1, description="of its column in logs and reports")
    scorer: str = Field(
        description="reward_model (of an ensemble also reward_model.0, …); repetition, length, broken_rule (decays); "
        "lower_bound; or 'module:attr' of your own"
    )
    asked: Literal["each", "together"] = Field(
        "each", description="your function gets one prompt and one text, or all prompts and all texts"
    )
    weight: float = Field(1.0, description="of an added term; a safety term λ has -λ")
    role: Literal["add", "multiply"] = Field("add", description="into the sum, or a decay in [0, 1] of all of it")
    required: bool = Field(
        True, description="an answer without this score has no reward; false: it goes without the term"
    )
    factor: Share = Field(0.7, description="decays: what a reward of 1 becomes")
    limit_words: Count | None = Field(None, description="length: words up to which nothing decays")
    rule: str | None = Field(None, description="broken_rule: 'module:attr' (prompt, text) -> is it broken")
    members: tuple[str, ...] = Field((), description="lower_bound: scorers; none: every member of the reward model")
    deviations: float = Field(1.0, ge=0, description="lower_bound: mean less this many standard deviations")

    @model_validator(mode="after")
    def _a_decay_multiplies(self) -> RewardTermSettings:
        if self.scorer in ("repetition", "length", "broken_rule") and self.role == "add":
            raise ValueError(f"'{self.scorer}' is a decay: set role = 'multiply'")
        if self.role == "multiply" and self.weight != 1.0:
            raise ValueError("a decay has no weight: set its factor")
        if self.scorer == "lower_bound" and len(self.members) == 1:
            raise ValueError(
                "'lower_bound' needs two or more members, or none for those of the reward model's ensemble"
            )
        return self

    @property
    def asks_reward_model(self) -> bool:
        """Whether the term is the reward model's, or that of members of its ensemble."""
        names = self.members or ("reward_model",) if self.scorer == "lower_bound" else (self.scorer,)
        return any(name.partition(".")[0] == "reward_model" and ":" not in name for name in names)


class CompositeSettings(Section):
    """What the reward of an answer is made of, and on which scale it is learned from."""

    terms: tuple[RewardTermSettings, ...] = Field(
        (RewardTermSettings(name="reward", scorer="reward_model"),), min_length=1, description="see RewardTermSettings"
    )
    scale: Literal["none", "z_score", "range"] = Field(
        "none", description="running mean 0 and deviation 1, or least and largest to -1 and 1"
    )
    clip: Positive | None = Field(None, description="scaled rewards are kept within plus and minus this")

    @model_validator(mode="after")
    def _terms_have_names_of_their_own(self) -> CompositeSettings:
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise ValueError(f"two reward terms have one name: {', '.join(names)}")
        if all(term.role == "multiply" for term in self.terms):
            raise ValueError("a reward needs a term with role = 'add': decays alone have nothing to decay")
        return self
