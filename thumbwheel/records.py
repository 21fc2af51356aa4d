"""What flows through the pipe: frozen records that cross wires and disks.

`Step` and `Feedback` are born outside and never change; everything else is built from them. A correction is a new record
that names the one it supersedes. Unknown is `None`, never 0. Times are UTC-aware. Ids are strings that the client makes,
so that sending twice stores once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("must carry a time zone, such as 2026-01-31T12:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie within the years 1 to 9999 in UTC") from None


def _plain_text(value: str) -> str:
    """Text that every database stores alike: no NUL, no lone surrogate."""
    if "\x00" in value:
        raise ValueError("must not contain the character U+0000")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"must be valid Unicode; a lone surrogate stands at character {error.start}") from None
    return value


def _plain_json(value: JsonValue) -> JsonValue:
    """JSON that every database stores alike: plain text in every string and key, finite numbers."""
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must hold finite numbers only, not {value}")
    if isinstance(value, dict):
        for key, item in value.items():
            _plain_text(key)
            _plain_json(item)
    elif isinstance(value, list):
        for item in value:
            _plain_json(item)
    return value


Time = Annotated[datetime, AfterValidator(_utc)]
Text = Annotated[str, AfterValidator(_plain_text)]
Id = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain_text)]
Json = Annotated[JsonValue, AfterValidator(_plain_json)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Role = Literal["end_user", "practitioner", "expert"]
Origin = Literal["person", "simulated", "rule", "model"]
StopReason = Literal[
    "completed", "stopped_by_tool", "max_turns", "max_tokens", "context_overflow", "parse_error", "timeout", "crashed"
]


def _unknown(value: object) -> bool:
    """True for None: a field that was added later stays out of the JSON, so that the digest of older records stands."""
    return value is None


def check_token_logps(token_ids: Sequence[int] | None, token_logps: Sequence[float] | None) -> None:
    """Raises ValueError where there is not one log-probability a token."""
    if token_logps is not None and len(token_logps) != len(token_ids or ()):
        raise ValueError(f"has {len(token_ids or ())} token_ids and {len(token_logps)} token_logps; give one a token")


class Record(BaseModel):
    """Frozen; an unknown field is an error; NaN and infinity are not numbers here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal records have equal digests, in every process."""
        return digest_of(self.model_dump(mode="json"))


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of `value` as canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces; characters beyond ASCII stand as they are."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class ToolCall(Record):
    """One call of a tool by the policy. `arguments` is the raw string the policy wrote, parsed by nobody on the way."""

    id: Id
    name: Id
    arguments: Text


class Message(Record):
    """One turn. `tool_call_id` and `name` belong to role `tool`; `tool_calls` to role `assistant`.

    `tools` is the raw JSON text of the tools on offer, on the first message of a prompt; parsed by nobody on the way.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Id | None = None
    name: Id | None = None
    tools: Text | None = None


Prompt = Annotated[tuple[Message, ...], Field(min_length=1)]


class Passage(Record):
    """A retrieved text that stood beside the answer."""

    id: Id
    text: Text
    title: Text | None = None


class Step(Record):
    """State, action, result. A chat reply is an episode of one step; a regenerated reply is the same index, next attempt.

    `sampled=False` marks an action the policy did not sample (tool output, an imported answer, a person's demonstration):
    its tokens have no behaviour log-probability. `token_ids` are the ids really sampled; training uses them in place of
    the text where the tokenizer is the same (`tokenizer` is its hash). `behaviour_logp` is their summed log-probability
    (nats) under the distribution really sampled from, `token_logps` that of each of them where it was kept.
    """

    id: Id
    episode_id: Id
    task_id: Id
    index: Index = 0
    attempt: Index = 0
    state: Prompt
    action: Message
    result: tuple[Message, ...] = ()
    passages: tuple[Passage, ...] = ()
    sampled: bool = True
    policy_version: Id | None = None
    behaviour_logp: float | None = None
    token_ids: tuple[Index, ...] | None = None
    token_logps: tuple[float, ...] | None = Field(default=None, exclude_if=_unknown)
    tokenizer: Id | None = None
    at: Time
    surface: Id | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    stop_reason: StopReason | None = None
    tags: dict[Text, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_log_probability_a_token(self) -> Step:
        check_token_logps(self.token_ids, self.token_logps)
        return self


class Target(Record):
    """What the feedback is about: a step, an episode, or only the task (joined to its episode when that arrives)."""

    task_id: Id | None = None
    episode_id: Id | None = None
    step_id: Id | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Target:
        if self.task_id is None and self.episode_id is None and self.step_id is None:
            raise ValueError("must name at least one of task_id, episode_id, step_id")
        return self


class Feedback(Record):
    """One thing one person did, once. `kind` names an entry of `thumbwheel.feedback.kinds`, which checks `value`.

    `shown` lists the step ids on screen in display order (what A, B, C … were). `supersedes` names an earlier feedback
    of the same person that this one corrects; `retracts=True` takes that one back and puts nothing in its place.
    `at` is when it happened; `received_at` is set by the store.
    """

    id: Id
    target: Target
    kind: Id
    value: Json = None
    reasons: tuple[Id, ...] = ()
    comment: Text | None = None
    who: Id | None = None
    role: Role = "end_user"
    origin: Origin = "person"
    at: Time
    received_at: Time | None = None
    guideline_version: Id | None = None
    shown: tuple[Id, ...] = ()
    surface: Id | None = None
    supersedes: Id | None = None
    retracts: bool = False

    @model_validator(mode="after")
    def _retraction_names_its_object(self) -> Feedback:
        if self.retracts and self.supersedes is None:
            raise ValueError("retracts=true needs 'supersedes', the id of the feedback taken back")
        return self

    def digest(self) -> str:
        """As `Record.digest`, without `received_at`: the store's own time stamp is not part of what was said."""
        return digest_of(self.model_dump(mode="json", exclude={"received_at"}))


class Episode(Record):
    """A task from start to stop: steps in order of (index, attempt), and the feedback in force that was joined to them.

    `terminated`: the task ended by itself. `truncated`: it was cut off (time, length). Two things; never or-ed into one.
    """

    id: Id
    task_id: Id
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    feedback: tuple[Feedback, ...] = ()
    terminated: bool = True
    truncated: bool = False
    stop_reason: StopReason | None = None

    @classmethod
    def of(cls, steps: Sequence[Step], feedback: Sequence[Feedback]) -> Episode:
        """An episode out of its parts (at least one step); both are put in order, and the last step says how it ended.

        A last step that says nothing ended by itself (`terminated`), unless it says that it was cut off (`truncated`).
        """
        ordered = sorted(steps, key=lambda step: (step.index, step.attempt, step.at, step.id))
        last = ordered[-1]
        truncated = bool(last.truncated)
        return cls(
            id=last.episode_id,
            task_id=ordered[0].task_id,
            steps=tuple(ordered),
            feedback=tuple(sorted(feedback, key=lambda item: (item.at, item.id))),
            terminated=not truncated if last.terminated is None else last.terminated,
            truncated=truncated,
            stop_reason=last.stop_reason,
        )


class Preference(Record):
    """Of two answers to one prompt, `chosen` is better with probability `p` (soft label; `tie=True` means p = 1/2).

    `margin` is how much better on the reward scale, where known. `*_token_ids` are the sampled ids where recorded.
    `policy_version` gave both answers (or the one that was edited); None where they are of two versions, or it is unknown.
    """

    prompt: Prompt
    chosen: Message
    rejected: Message
    weight: float = Field(default=1.0, gt=0)
    p: float = Field(default=1.0, ge=0, le=1)
    margin: float | None = None
    tie: bool = False
    reasons: tuple[Id, ...] = ()
    passages: tuple[Passage, ...] = ()
    chosen_token_ids: tuple[int, ...] | None = None
    rejected_token_ids: tuple[int, ...] | None = None
    tokenizer: Id | None = None
    policy_version: Id | None = Field(default=None, exclude_if=_unknown)
    task_id: Id | None = None
    origin: Origin = "person"
    feedback_ids: tuple[Id, ...] = ()


class Labelled(Record):
    """One answer with a label in [-1, 1]: above 0 is desirable. The unpaired view (thumbs, stars, outcomes)."""

    prompt: Prompt
    response: Message
    value: float = Field(ge=-1, le=1)
    weight: float = Field(default=1.0, gt=0)
    noise_rate: float = Field(default=0.0, ge=0, lt=0.5)
    reasons: tuple[Id, ...] = ()
    token_ids: tuple[int, ...] | None = None
    tokenizer: Id | None = None
    task_id: Id | None = None
    origin: Origin = "person"
    feedback_ids: tuple[Id, ...] = ()


class Demonstration(Record):
    """An answer worth copying: a person's edit, a reference answer, a liked reply."""

    prompt: Prompt
    response: Message
    weight: float = Field(default=1.0, gt=0)
    task_id: Id | None = None
    origin: Origin = "person"
    feedback_ids: tuple[Id, ...] = ()


class ProcessLabelled(Record):
    """A worked answer cut into steps, each marked -1, 0 or +1, or `None` where nobody marked it."""

    prompt: Prompt
    steps: Annotated[tuple[Text, ...], Field(min_length=1)]
    labels: tuple[int | None, ...]
    task_id: Id | None = None
    origin: Origin = "person"
    feedback_ids: tuple[Id, ...] = ()

    @model_validator(mode="after")
    def _one_label_a_step(self) -> ProcessLabelled:
        if len(self.steps) != len(self.labels):
            raise ValueError(
                f"has {len(self.steps)} steps and {len(self.labels)} labels; give one label (or null) a step"
            )
        if any(label not in (-1, 0, 1, None) for label in self.labels):
            raise ValueError("labels must be -1, 0, 1 or null")
        return self


class Transition(Record):
    """One step for reinforcement learning. `reward=None` is unknown, not 0. `next_state=None` only after the last step."""

    state: Prompt
    action: Message
    reward: float | None
    next_state: tuple[Message, ...] | None
    terminated: bool
    truncated: bool
    episode_id: Id
    index: int = Field(ge=0)
    policy_version: Id | None = None
    behaviour_logp: float | None = None
    feedback_ids: tuple[Id, ...] = ()


class Update(Record):
    """One weight change: from which parent, on which data, with which settings, to which checkpoint."""

    id: Id
    kind: Id
    parent: Id | None
    checkpoint: str
    snapshot: Id
    config_hash: Id
    metrics: dict[str, float] = Field(default_factory=dict)
    feedback_ids: tuple[Id, ...] = ()
    at: Time


class Figure(Record):
    """One measured number, with its interval where it has one. `None` is "not measured", with the reason in `note`."""

    name: Id
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""
    note: str = ""


class Gate(Record):
    """One condition for release: the figure, the bound, and whether it held; `why` reads aloud."""

    name: Id
    passed: bool
    value: float | None
    bound: float | None
    why: str


class Report(Record):
    """May it ship? Figures with intervals, gates, verdict."""

    id: Id
    policy: Id
    parent: Id
    verdict: Literal["promote", "hold"]
    figures: tuple[Figure, ...]
    gates: tuple[Gate, ...]
    seed: int
    seconds: float
    simulated: bool = False
    at: Time
    details: dict[str, JsonValue] = Field(default_factory=dict)

    def figure(self, name: str) -> Figure | None:
        """The figure of that name, or `None`."""
        return next((figure for figure in self.figures if figure.name == name), None)
