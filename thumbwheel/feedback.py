"""The kinds of feedback: for each, the schema of `Feedback.value` and the signal it is worth.

    kind            value                                                  what the person did
    thumb           {"up": true}                                           👍 or 👎
    stars           {"stars": 4}                                           1 to 5
    scores          {"scores": {"fluency": 4.5}, "low": 0, "high": 5}      several named dimensions
    edit            {"text": "…"}                                          wrote the answer as it should have been
    demonstration   {}                                                     the target step is itself worth copying
    comment         {"text": "…"}                                          words only
    choice          {"chosen": "STEP" | null, "tie": false, "both_bad": false, "strength": "clear"}   A/B, best of N
    ranking         {"order": [["STEP"], ["STEP", "STEP"]]}                best first; ties share a place
    tags            {"tags": ["tone_stiff"]}                               reasons without a verdict
    step_mark       {"mark": -1}                                           -1, 0, +1 on one step of a trace
    outcome         {"success": true} or {"reward": 0.3}                   how the whole task ended
    dwell           {"dwell_s": 12.5}                                      visible time on the answer       (implicit)
    copy            {"share": 1.0}                                         copied the answer                (implicit)
    follow_up       {"rephrased": true}                                    asked again                      (implicit)
    abandon         {}                                                     left without a word              (implicit)
    click           {"passage_id": "d7", "position": 2}                    opened a retrieved document      (implicit)
    skip            {"passage_id": "d1", "position": 1}                    passed one over                  (implicit)

A kind of your own is one class: subclass `Kind`, decorate with `@kinds.register("name")`, or name it "module:Class".
The weights and noise rates below are starting values from practice, not truths; settings override them per kind.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from thumbwheel.errors import RecordError
from thumbwheel.records import Feedback, Id, Text
from thumbwheel.registry import Registry
from thumbwheel.validation import record_error


class Signal(BaseModel):
    """What one feedback says about its target.

    `value` in [-1, 1], or `None` where it has no polarity by itself (a comment, a choice between answers).
    `weight` >= 0 scales its pull; `noise_rate` in [0, 0.5) is the chance that its sign is wrong.
    """

    model_config = ConfigDict(frozen=True)

    value: float | None = Field(default=None, ge=-1, le=1)
    weight: float = Field(default=1.0, ge=0)
    noise_rate: float = Field(default=0.0, ge=0, lt=0.5)


class Kind(BaseModel):
    """Base of every kind. Fields are the schema of `Feedback.value`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    implicit: ClassVar[bool] = False
    default_weight: ClassVar[float] = 1.0
    default_noise_rate: ClassVar[float] = 0.05

    def polarity(self) -> float | None:
        """The value in [-1, 1], or `None`."""
        return None

    def signal(self) -> Signal:
        """Polarity with the kind's default weight and noise rate."""
        return Signal(value=self.polarity(), weight=self.default_weight, noise_rate=self.default_noise_rate)


kinds: Registry[type[Kind]] = Registry("feedback kind")


@kinds.register("thumb")
class Thumb(Kind):
    """One click under the answer."""

    default_noise_rate: ClassVar[float] = 0.1
    up: bool

    def polarity(self) -> float:
        return 1.0 if self.up else -1.0


@kinds.register("stars")
class Stars(Kind):
    """1 to 5; 3 is neutral."""

    default_noise_rate: ClassVar[float] = 0.1
    stars: int = Field(ge=1, le=5)

    def polarity(self) -> float:
        return (self.stars - 3) / 2


@kinds.register("scores")
class Scores(Kind):
    """Several named dimensions on one scale; polarity is their mean, mapped from [low, high] to [-1, 1]."""

    scores: Annotated[dict[Id, float], Field(min_length=1)]
    low: float = 0.0
    high: float = 5.0

    @model_validator(mode="after")
    def _inside_the_scale(self) -> Scores:
        if not self.low < self.high:
            raise ValueError(f"low must be under high, got {self.low} and {self.high}")
        for name, score in self.scores.items():
            if not self.low <= score <= self.high:
                raise ValueError(f"score '{name}' must lie in [{self.low:g}, {self.high:g}], got {score:g}")
        return self

    def polarity(self) -> float:
        mean = sum(self.scores.values()) / len(self.scores)
        return 2 * (mean - self.low) / (self.high - self.low) - 1


@kinds.register("edit")
class Edit(Kind):
    """The answer as it should have been. The edited answer is chosen, the original rejected."""

    default_weight: ClassVar[float] = 2.0
    default_noise_rate: ClassVar[float] = 0.02
    text: Annotated[Text, Field(min_length=1)]

    def polarity(self) -> float:
        return -0.5


@kinds.register("demonstration")
class Demonstrated(Kind):
    """The target step is itself worth copying (a reference answer, an imported instruction row)."""

    default_noise_rate: ClassVar[float] = 0.02

    def polarity(self) -> float:
        return 1.0


@kinds.register("comment")
class Comment(Kind):
    """Words only."""

    text: Annotated[Text, Field(min_length=1)]


@kinds.register("choice")
class Choice(Kind):
    """One of the answers in `Feedback.shown`, or none: a tie, or both (all) bad."""

    chosen: Id | None = None
    tie: bool = False
    both_bad: bool = False
    strength: Literal["slight", "clear"] | None = None

    @model_validator(mode="after")
    def _one_verdict(self) -> Choice:
        if sum((self.chosen is not None, self.tie, self.both_bad)) != 1:
            raise ValueError("give exactly one of chosen=<step id>, tie=true, both_bad=true")
        return self


@kinds.register("ranking")
class Ranking(Kind):
    """Best first; each place holds one step id, or several that tie."""

    order: Annotated[tuple[Annotated[tuple[Id, ...], Field(min_length=1)], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_once(self) -> Ranking:
        flat = [step for place in self.order for step in place]
        if len(flat) != len(set(flat)):
            raise ValueError("a step id stands in the order twice")
        if len(flat) < 2:
            raise ValueError("a ranking needs at least two step ids")
        return self


@kinds.register("tags")
class Tags(Kind):
    """Reasons without a verdict of their own."""

    tags: Annotated[tuple[Id, ...], Field(min_length=1)]


@kinds.register("step_mark")
class StepMark(Kind):
    """-1, 0 or +1 on one step of an agent's trace."""

    mark: Literal[-1, 0, 1]

    def polarity(self) -> float:
        return float(self.mark)


@kinds.register("outcome")
class Outcome(Kind):
    """How the whole task ended: success or failure, or a number in [-1, 1]."""

    success: bool | None = None
    reward: float | None = Field(default=None, ge=-1, le=1)

    @model_validator(mode="after")
    def _one_of(self) -> Outcome:
        if (self.success is None) == (self.reward is None):
            raise ValueError("give exactly one of success=<bool>, reward=<number in [-1, 1]>")
        return self

    def polarity(self) -> float:
        if self.reward is not None:
            return self.reward
        return 1.0 if self.success else -1.0


@kinds.register("dwell")
class Dwell(Kind):
    """Seconds the answer was visible. Long reading is weakly good; the noise rules drop what is too short to mean anything."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.1
    default_noise_rate: ClassVar[float] = 0.4
    dwell_s: float = Field(ge=0)

    def polarity(self) -> float:
        return min(self.dwell_s, 60.0) / 60.0


@kinds.register("copy")
class Copy(Kind):
    """Copied the answer, or a share of it."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.3
    default_noise_rate: ClassVar[float] = 0.25
    share: float = Field(default=1.0, ge=0, le=1)

    def polarity(self) -> float:
        return self.share


@kinds.register("follow_up")
class FollowUp(Kind):
    """Asked on (weakly good), or asked the same again in other words (bad)."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.2
    default_noise_rate: ClassVar[float] = 0.35
    rephrased: bool

    def polarity(self) -> float:
        return -0.5 if self.rephrased else 0.2


@kinds.register("abandon")
class Abandon(Kind):
    """Left without a word."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.1
    default_noise_rate: ClassVar[float] = 0.4

    def polarity(self) -> float:
        return -0.3


@kinds.register("click")
class Click(Kind):
    """Opened a retrieved document; `position` is its place on the page, from 1."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.2
    default_noise_rate: ClassVar[float] = 0.3
    passage_id: Id
    position: int = Field(ge=1)

    def polarity(self) -> float:
        return 1.0


@kinds.register("skip")
class Skip(Kind):
    """Passed a retrieved document over; `position` is its place on the page, from 1."""

    implicit: ClassVar[bool] = True
    default_weight: ClassVar[float] = 0.1
    default_noise_rate: ClassVar[float] = 0.4
    passage_id: Id
    position: int = Field(ge=1)

    def polarity(self) -> float:
        return -1.0


def parse(feedback: Feedback) -> Kind:
    """The typed value of a feedback. Raises RecordError naming the field; RegistryError for an unknown kind."""
    kind = kinds.get(feedback.kind)
    try:
        value = kind.model_validate(feedback.value if feedback.value is not None else {})
    except ValidationError as error:
        raise record_error(error, kind, noun=f"'{feedback.kind}' feedback", prefix=("value",)) from None
    _check_against_shown(feedback, value)
    return value


def signal_of(feedback: Feedback) -> Signal:
    """The signal a feedback is worth, with its kind's own weight and noise rate."""
    return parse(feedback).signal()


def check(feedback: Feedback) -> Feedback:
    """The same feedback, after its value was checked against its kind. Raises as `parse`."""
    if not feedback.retracts:
        parse(feedback)
    return feedback


def _check_against_shown(feedback: Feedback, value: Kind) -> None:
    if isinstance(value, Choice):
        if len(feedback.shown) < 2:
            raise RecordError.of(
                "A 'choice' needs 'shown': the step ids that were on screen, in display order.",
                field="shown",
                allowed="a list of two or more step ids",
                got=list(feedback.shown),
                next="Send the steps first, then the choice between their ids.",
            )
        named: tuple[str, ...] = () if value.chosen is None else (value.chosen,)
    elif isinstance(value, Ranking):
        named = tuple(step for place in value.order for step in place)
    else:
        return
    strangers = [step for step in named if feedback.shown and step not in feedback.shown]
    if strangers:
        raise RecordError.of(
            f"The {feedback.kind} names a step that was not shown.",
            field="value",
            allowed=list(feedback.shown),
            got=strangers[0],
            next="Name a step id out of 'shown'.",
        )


def value_of(kind: Kind) -> JsonValue:
    """The JSON that goes into `Feedback.value` for a typed value."""
    return cast(JsonValue, kind.model_dump(mode="json", exclude_none=True))
