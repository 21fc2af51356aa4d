"""What a run from fresh answers could not use, and what it should be warned of: counted while it runs, told at its end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.config import OnlineSettings
from thumbwheel.errors import CheckpointError
from thumbwheel.train.lessons import is_counted
from thumbwheel.train.rollouts import Rollouts

LEAST_REACH = 1e-3
"""(γλ)^n under this: the reward at the end of an answer does not reach its first tokens but through the value head."""


@dataclass(frozen=True)
class Tally:
    """Of all iterations so far.

    answers   sampled
    missing   answers without a reward
    unscored  "term: reason" -> how many times
    no_room   prompts that fill the context
    nothing   iterations of which no answer could be learned from
    longest   tokens of the longest answer
    """

    answers: int = 0
    missing: int = 0
    unscored: Mapping[str, int] = field(default_factory=dict)
    no_room: int = 0
    nothing: int = 0
    longest: int = 0

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint."""
        return asdict(self)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Tally:
        """The tally at that state. Raises CheckpointError where it is none."""
        try:
            return cls(**state)
        except TypeError as error:
            raise CheckpointError(f"The checkpoint's tally cannot be read: {error}. Start a new run.") from error

    def after(self, rollouts: Rollouts, settings: OnlineSettings) -> Tally:
        """With an iteration more."""
        flat = rollouts.flat
        return Tally(
            answers=self.answers + len(flat),
            missing=self.missing + sum(math.isnan(answer.reward) for answer in flat),
            unscored=dict(Counter(self.unscored) + Counter(rollouts.unscored)),
            no_room=self.no_room + rollouts.no_room,
            nothing=self.nothing + (not any(is_counted(answer, settings) for answer in flat)),
            longest=max(self.longest, *(len(answer) for answer in flat)),
        )

    def notes(self, settings: OnlineSettings) -> dict[str, str]:
        """A sentence a kind, for what there is to tell."""
        found: dict[str, str] = {}
        if self.missing or self.unscored:
            reasons = "; ".join(f"{reason} ({n})" for reason, n in Counter(self.unscored).most_common(5))
            found["unscored"] = (
                f"{self.missing} of {self.answers} answers have no reward and were not learned from"
                f"{f'. Unscored: {reasons}' if reasons else ''}."
            )
        if self.no_room:
            found["no_room"] = (
                f"{self.no_room} prompts leave no room for an answer, since they fill the model's context, and were left out; "
                "the others were answered. Shorten them."
            )
        if self.nothing:
            found["nothing"] = (
                f"In {self.nothing} iteration{'s' if self.nothing > 1 else ''} not one answer could be learned from, so the "
                f"weights stayed as they were: every answer was {'cut or ' if settings.cut_answers == 'mask' else ''}without "
                "a reward. "
                "Raise sample.max_new_tokens, or set online.cut_answers to 'keep' or 'penalise'."
            )
        decay = settings.gamma * settings.lam
        if settings.advantage == "gae" and decay**self.longest < LEAST_REACH:
            found["reach"] = (
                f"(γλ)^n is {decay**self.longest:.1g} for the longest answer (n = {self.longest} tokens, γ = {settings.gamma:g}, "
                f"λ = {settings.lam:g}): what the answer earned at its end hardly reaches its first tokens. Set online.lam = 1, "
                f"or at least {math.ceil(1e4 * LEAST_REACH ** (1 / self.longest)) / 1e4:g}, with online.gamma = 1."
            )
        return found
