"""Groups: one prompt, the answers people were shown, and a reward for each out of what they picked or ranked.

A reward is the share of the others that an answer beat, in [0, 1]; unknown is None, never 0.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from thumbwheel.records import Id, Index, Message, Origin, Prompt, Record, check_token_logps


class Sampling(Record):
    """How an answer was sampled. `template` is the hash of the chat template that the prompt was rendered with."""

    temperature: float = Field(ge=0)
    top_p: float = Field(ge=0, le=1)
    top_k: int = Field(ge=0)
    template: Id

    @property
    def whole(self) -> bool:
        """Whether every token could be drawn: the log-probabilities are those of the model's own distribution."""
        return self.temperature > 0 and self.top_p == 1 and self.top_k == 0


class GroupedAnswer(Record):
    """One answer as it was shown; the tokens, their log-probabilities and the sampling as its step recorded them.

    `reward` is None where nobody's vote says anything of this answer. `ended=False` is an answer cut at the longest length.
    """

    step_id: Id
    response: Message
    reward: float | None = Field(default=None, ge=0, le=1)
    ended: bool = True
    token_ids: tuple[Index, ...] | None = None
    token_logps: tuple[float, ...] | None = None
    behaviour_logp: float | None = None
    tokenizer: Id | None = None
    policy_version: Id | None = None
    sampling: Sampling | None = None

    @model_validator(mode="after")
    def _one_log_probability_a_token(self) -> GroupedAnswer:
        check_token_logps(self.token_ids, self.token_logps)
        return self


class Grouped(Record):
    """Answers to one prompt with a reward each. `votes` that name a reward, of the summed `weight`, were averaged."""

    prompt: Prompt
    answers: Annotated[tuple[GroupedAnswer, ...], Field(min_length=2)]
    votes: int = Field(default=1, ge=1)
    weight: float = Field(default=1.0, gt=0)
    task_id: Id | None = None
    origin: Origin = "person"
    feedback_ids: tuple[Id, ...] = ()

    @model_validator(mode="after")
    def _each_answer_once(self) -> Grouped:
        ids = [answer.step_id for answer in self.answers]
        if len(set(ids)) < len(ids):
            raise ValueError("a step id stands in the group twice")
        return self
