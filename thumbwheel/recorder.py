"""From friendly arguments to records. Pure: the clock and the maker of ids come in; nothing is sent.

    recorder = Recorder(clock=now, make_id=new_id, surface="chat")
    step = recorder.step("2+2=", "4")
    thumb = recorder.thumb(step, up=True, who="u-93f1")

Every method raises RecordError, naming the field, for what the server would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from uuid import uuid4

from pydantic import JsonValue

from thumbwheel.errors import RecordError
from thumbwheel.feedback import check, kinds
from thumbwheel.records import Feedback, Message, Origin, Passage, Role, Step, StopReason, Target
from thumbwheel.validation import read

Words = str | Message | Mapping[str, Any]
Subject = Step | Target | str
"""What feedback is about: a step, a target, or the id of a step."""
R = TypeVar("R", Step, Feedback)


class StepFields(TypedDict, total=False):
    """Further fields of a step, as `thumbwheel.records.Step` has them."""

    index: int
    attempt: int
    result: Sequence[Message | Mapping[str, Any]]
    passages: Sequence[Passage | Mapping[str, Any]]
    sampled: bool
    behaviour_logp: float | None
    token_ids: Sequence[int] | None
    token_logps: Sequence[float] | None
    tokenizer: str | None
    terminated: bool | None
    truncated: bool | None
    stop_reason: StopReason | None
    tags: Mapping[str, str]
    policy_version: str | None
    surface: str | None
    id: str
    at: datetime


class About(TypedDict, total=False):
    """Further fields of any feedback, as `thumbwheel.records.Feedback` has them. `supersedes` also takes the record."""

    who: str | None
    role: Role
    origin: Origin
    reasons: Sequence[str]
    comment: str | None
    guideline_version: str | None
    shown: Sequence[Step | str]
    surface: str | None
    supersedes: Feedback | str | None
    id: str
    at: datetime


def now_utc() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def new_id() -> str:
    """A random id."""
    return uuid4().hex


class Recorder:
    """Makes steps and feedback. What is given here is the default of every record's field of that name."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = now_utc,
        make_id: Callable[[], str] = new_id,
        who: str | None = None,
        role: Role = "end_user",
        origin: Origin = "person",
        surface: str | None = None,
        policy_version: str | None = None,
        guideline_version: str | None = None,
    ) -> None:
        self.clock = clock
        self.make_id = make_id
        self.policy_version = policy_version
        self.surface = surface
        self._defaults: About = {
            "who": who,
            "role": role,
            "origin": origin,
            "surface": surface,
            "guideline_version": guideline_version,
        }

    def _made(self, record: R) -> R:
        """Every record passes here once. A subclass may send it, or keep it."""
        return record

    def step(
        self,
        prompt: Words | Sequence[Words],
        response: Words,
        *,
        task_id: str | None = None,
        episode_id: str | None = None,
        **fields: Unpack[StepFields],
    ) -> Step:
        """One action of the agent: what it saw (a user's text, or messages), and what it answered.

        Without ids it is a task of its own. The episode defaults to the task's, so that a regenerated answer
        (`attempt=1, 2, …`) joins the first one; an agent's further steps (`index=1, 2, …`) name the same episode.
        """
        task_id = task_id or episode_id or self.make_id()
        messages = [prompt] if isinstance(prompt, str | Message | Mapping) else list(prompt)
        data: dict[str, Any] = {
            "id": fields["id"] if "id" in fields else self.make_id(),
            "task_id": task_id,
            "episode_id": episode_id or task_id,
            "state": [_message(message, "user") for message in messages],
            "action": _message(response, "assistant"),
            "at": fields["at"] if "at" in fields else self.clock(),
            "policy_version": self.policy_version,
            "surface": self.surface,
        }
        return self._made(read(Step, data | fields))

    def feedback(
        self, target: Subject, kind: str, value: Mapping[str, JsonValue] | None = None, **about: Unpack[About]
    ) -> Feedback:
        """Feedback of any kind, also of a kind that only the server knows."""
        return self._feedback(_target(target), kind, dict(value or {}), about)

    def thumb(self, target: Subject, *, up: bool, **about: Unpack[About]) -> Feedback:
        """👍 or 👎."""
        return self._feedback(_target(target), "thumb", {"up": up}, about)

    def stars(self, target: Subject, stars: int, **about: Unpack[About]) -> Feedback:
        """1 to 5 stars."""
        return self._feedback(_target(target), "stars", {"stars": stars}, about)

    def scores(
        self, target: Subject, scores: Mapping[str, float], *, low: float = 0, high: float = 5, **about: Unpack[About]
    ) -> Feedback:
        """Several named dimensions on one scale."""
        return self._feedback(_target(target), "scores", {"scores": dict(scores), "low": low, "high": high}, about)

    def edit(self, target: Subject, text: str, **about: Unpack[About]) -> Feedback:
        """The answer as it should have been."""
        return self._feedback(_target(target), "edit", {"text": text}, about)

    def demonstration(self, target: Subject, **about: Unpack[About]) -> Feedback:
        """The step is worth copying as it is."""
        return self._feedback(_target(target), "demonstration", {}, about)

    def comment(self, target: Subject, text: str, **about: Unpack[About]) -> Feedback:
        """Words only."""
        return self._feedback(_target(target), "comment", {"text": text}, about)

    def tags(self, target: Subject, *tags: str, **about: Unpack[About]) -> Feedback:
        """Reasons without a verdict."""
        return self._feedback(_target(target), "tags", {"tags": list(tags)}, about)

    def choice(
        self,
        answers: Sequence[Step | str],
        chosen: Step | str | None = None,
        *,
        tie: bool = False,
        both_bad: bool = False,
        strength: Literal["slight", "clear"] | None = None,
        target: Subject | None = None,
        **about: Unpack[About],
    ) -> Feedback:
        """Which of the answers on screen (in display order) was better: one of them, a tie, or all bad.

        The answers are attempts at one prompt: steps of one episode and index. Ids in place of steps are taken to be so.
        """
        value: dict[str, JsonValue] = {"chosen": None if chosen is None else _id(chosen)}
        value |= {"tie": tie, "both_bad": both_bad, "strength": strength}
        about.setdefault("shown", answers)
        return self._feedback(_common_target(answers, target), "choice", value, about)

    def ranking(
        self,
        order: Sequence[Step | str | Sequence[Step | str]],
        *,
        target: Subject | None = None,
        **about: Unpack[About],
    ) -> Feedback:
        """All answers, best first; a list inside the list is a tie. `shown` is the display order, where it is known."""
        places = [[place] if isinstance(place, Step | str) else list(place) for place in order]
        flat = [step for place in places for step in place]
        value: dict[str, JsonValue] = {"order": [[_id(step) for step in place] for place in places]}
        return self._feedback(_common_target(flat, target), "ranking", value, about)

    def step_mark(self, target: Subject, mark: Literal[-1, 0, 1], **about: Unpack[About]) -> Feedback:
        """-1, 0 or +1 on one step of a trace."""
        return self._feedback(_target(target), "step_mark", {"mark": mark}, about)

    def outcome(
        self, target: Subject, *, success: bool | None = None, reward: float | None = None, **about: Unpack[About]
    ) -> Feedback:
        """How the whole task ended: success or failure, or a number in [-1, 1]. A step stands for its episode."""
        value: dict[str, JsonValue] = {"reward": reward} if success is None else {"success": success}
        if success is not None and reward is not None:
            value["reward"] = reward
        whole = _target(target)
        if whole.episode_id is not None or whole.task_id is not None:
            whole = Target(task_id=whole.task_id, episode_id=whole.episode_id)
        return self._feedback(whole, "outcome", value, about)

    def dwell(self, target: Subject, dwell_s: float, **about: Unpack[About]) -> Feedback:
        """Seconds the answer was visible (implicit)."""
        return self._feedback(_target(target), "dwell", {"dwell_s": dwell_s}, about)

    def copy(self, target: Subject, share: float = 1.0, **about: Unpack[About]) -> Feedback:
        """Copied the answer, or a share of it (implicit)."""
        return self._feedback(_target(target), "copy", {"share": share}, about)

    def follow_up(self, target: Subject, *, rephrased: bool, **about: Unpack[About]) -> Feedback:
        """Asked on, or asked the same again in other words (implicit)."""
        return self._feedback(_target(target), "follow_up", {"rephrased": rephrased}, about)

    def abandon(self, target: Subject, **about: Unpack[About]) -> Feedback:
        """Left without a word (implicit)."""
        return self._feedback(_target(target), "abandon", {}, about)

    def click(self, target: Subject, passage_id: str, position: int, **about: Unpack[About]) -> Feedback:
        """Opened a retrieved document; `position` counts from 1 (implicit)."""
        return self._feedback(_target(target), "click", {"passage_id": passage_id, "position": position}, about)

    def skip(self, target: Subject, passage_id: str, position: int, **about: Unpack[About]) -> Feedback:
        """Passed a retrieved document over; `position` counts from 1 (implicit)."""
        return self._feedback(_target(target), "skip", {"passage_id": passage_id, "position": position}, about)

    def correct(self, feedback: Feedback, value: Mapping[str, JsonValue], **about: Unpack[About]) -> Feedback:
        """The same person's new value in place of an earlier one of the same kind."""
        return self._feedback(feedback.target, feedback.kind, dict(value), _kept(feedback) | about)

    def retract(self, feedback: Feedback, **about: Unpack[About]) -> Feedback:
        """Take an earlier feedback back, with nothing in its place."""
        return self._feedback(feedback.target, feedback.kind, None, _kept(feedback) | about, retracts=True)

    def _feedback(
        self, target: Target, kind: str, value: dict[str, JsonValue] | None, about: About, *, retracts: bool = False
    ) -> Feedback:
        fields: dict[str, Any] = {**self._defaults, **about}
        earlier = fields.get("supersedes")
        fields["supersedes"] = earlier.id if isinstance(earlier, Feedback) else earlier
        fields["shown"] = [_id(step) for step in fields.get("shown", ())]
        if "id" not in fields:
            fields["id"] = self.make_id()
        if "at" not in fields:
            fields["at"] = self.clock()
        record = read(Feedback, {**fields, "target": target, "kind": kind, "value": value, "retracts": retracts})
        return self._made(check(record) if kind in kinds else record)


def _message(words: Words, role: str) -> Message:
    if isinstance(words, str):
        return read(Message, {"role": role, "content": words})
    return read(Message, words)


def _id(step: Step | str) -> str:
    return step.id if isinstance(step, Step) else step


def _target(subject: Subject) -> Target:
    if isinstance(subject, Target):
        return subject
    if isinstance(subject, Step):
        return Target(task_id=subject.task_id, episode_id=subject.episode_id, step_id=subject.id)
    return read(Target, {"step_id": subject})


def _common_target(shown: Sequence[Step | str], target: Subject | None) -> Target:
    """The episode of the answers shown. Raises RecordError where they come from several tasks."""
    if target is not None:
        return _target(target)
    steps = [step for step in shown if isinstance(step, Step)]
    tasks = {step.task_id for step in steps}
    if len(tasks) > 1:
        raise RecordError.of(
            "The answers compared belong to several tasks.",
            field="shown",
            allowed="attempts at one prompt: steps with the same task_id, episode_id and index",
            got=sorted(tasks),
            next="Give the steps one task_id, or say with 'target' what the choice is about.",
        )
    if not shown:
        raise RecordError.of(
            "No answers were given to compare.",
            field="shown",
            allowed="two or more steps or step ids",
            got=[],
            next="Give the answers in the order in which they were on screen.",
        )
    if not steps:
        return read(Target, {"step_id": shown[0]})
    episodes = {step.episode_id for step in steps}
    return Target(task_id=steps[0].task_id, episode_id=episodes.pop() if len(episodes) == 1 else None)


def _kept(feedback: Feedback) -> About:
    """What a correction keeps of the feedback it corrects."""
    return {
        "who": feedback.who,
        "role": feedback.role,
        "origin": feedback.origin,
        "shown": feedback.shown,
        "surface": feedback.surface,
        "guideline_version": feedback.guideline_version,
        "supersedes": feedback,
    }
