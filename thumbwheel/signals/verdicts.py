"""Feedback read once for every view: typed, weighed, tied to its step, and accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import RecordError, RegistryError, SettingError, explain
from thumbwheel.feedback import Kind, parse
from thumbwheel.records import Episode, Feedback, Message, Step
from thumbwheel.signals.accounts import Account

RATINGS = frozenset({"thumb", "stars", "scores", "outcome"})
ABOUT_PASSAGES = frozenset({"click", "skip"})

AnswerKey = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Verdict:
    """One feedback with its typed value, the step it is about (None: the whole episode) and how much it counts.

    `value` in [-1, 1] or None; `weight` > 0 = weight of its kind times that of the giver's role; `noise_rate` in [0, .5).
    """

    feedback: Feedback
    kind: Kind
    episode: Episode
    step: Step | None
    value: float | None
    weight: float
    noise_rate: float

    @property
    def implicit(self) -> bool:
        """True for dwell, copy and their like: weak, and never mixed with what people said."""
        return self.kind.implicit


class Tally:
    """Who was used, who was refused and why; `account` closes the books: read = kept + dropped + unscored."""

    def __init__(self) -> None:
        self._read: dict[str, None] = {}
        self._used: set[str] = set()
        self._refused: dict[str, str] = {}
        self._aside: dict[str, str] = {}
        self._refusals: list[tuple[frozenset[str], str]] = []

    def read(self, id: str) -> bool:
        """Count one feedback in; False where it was counted before."""
        if id in self._read:
            return False
        self._read[id] = None
        return True

    def use(self, ids: Iterable[str]) -> None:
        """These reached the result."""
        self._used.update(ids)

    def refuse(self, ids: Iterable[str], reason: str) -> None:
        """A row that would have come of these was refused."""
        among = frozenset(ids)
        self._refusals.append((among, reason))
        for id in among:
            self._refused.setdefault(id, reason)

    def aside(self, id: str, reason: str) -> None:
        """This one has nothing to say to the view."""
        self._aside.setdefault(id, reason)

    def account(self, *, ties: int = 0, truncated: int = 0) -> Account:
        """The account; what was never named is unscored as 'no use here'."""
        dropped: Counter[str] = Counter()
        notes: Counter[str] = Counter()
        kept = unscored = 0
        for id in self._read:
            if id in self._used:
                kept += 1
            elif id in self._refused:
                dropped[self._refused[id]] += 1
            else:
                unscored += 1
                notes[self._aside.get(id, "no use here")] += 1
        for among, reason in self._refusals:
            if among & self._used:
                notes[f"further rows refused: {reason}"] += 1
        return Account(len(self._read), kept, dropped, ties, unscored, truncated, notes)


@dataclass
class Evidence:
    """Every verdict of some episodes, the steps by id, and the tally of what could not be read."""

    verdicts: list[Verdict] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def of(self, *names: str) -> Iterator[Verdict]:
        """The verdicts of these kinds, in order."""
        return (verdict for verdict in self.verdicts if verdict.feedback.kind in names)


def gather(episodes: Iterable[Episode], settings: FeedbackSettings) -> Evidence:
    """Read every feedback of every episode once.

    Not valid for its kind, or of an unknown kind: dropped with the reason. Implicit without `use_implicit`, retractions
    and kinds of weight 0 are set aside. Raises SettingError for a weight or noise rate out of range.
    """
    _check(settings)
    evidence = Evidence()
    for episode in episodes:
        evidence.steps.update((step.id, step) for step in episode.steps)
        for feedback in episode.feedback:
            if not evidence.tally.read(feedback.id):
                continue
            verdict = _verdict(feedback, episode, settings, evidence.tally)
            if verdict is not None:
                evidence.verdicts.append(verdict)
    return evidence


def step_of(feedback: Feedback, episode: Episode) -> Step | None:
    """The step a feedback is about: the one it names, or the only one there is; None for the episode as a whole."""
    if feedback.target.step_id is not None:
        return next((step for step in episode.steps if step.id == feedback.target.step_id), None)
    return episode.steps[0] if len(episode.steps) == 1 else None


def answer_key(message: Message) -> AnswerKey:
    """What makes two answers the same: the text without outer white space, and the calls without their ids."""
    return message.content.strip(), tuple((call.name, call.arguments) for call in message.tool_calls)


def edited(answer: Message, text: str) -> Message:
    """The answer with its text replaced; its tool calls stay."""
    return answer.model_copy(update={"content": text})


def _verdict(feedback: Feedback, episode: Episode, settings: FeedbackSettings, tally: Tally) -> Verdict | None:
    if feedback.retracts:
        tally.aside(feedback.id, "retraction")
        return None
    try:
        kind = parse(feedback)
    except RecordError:
        tally.refuse([feedback.id], "value not valid for its kind")
        return None
    except RegistryError:
        tally.refuse([feedback.id], f"unknown kind '{feedback.kind}'")
        return None
    if kind.implicit and not settings.use_implicit:
        tally.aside(feedback.id, "implicit, not used")
        return None
    signal = kind.signal()
    weight = settings.weights.get(feedback.kind, signal.weight) * settings.role_weights.get(feedback.role, 1.0)
    if weight == 0:
        tally.aside(feedback.id, "weight 0")
        return None
    rate = settings.noise_rates.get(feedback.kind, signal.noise_rate)
    return Verdict(feedback, kind, episode, step_of(feedback, episode), signal.value, weight, rate)


def _check(settings: FeedbackSettings) -> None:
    for name, weights in (("weights", settings.weights), ("role_weights", settings.role_weights)):
        for key, weight in weights.items():
            if not weight >= 0:
                raise SettingError(
                    explain(f"The 'feedback.{name}.{key}' setting is out of range.", allowed="[0, inf)", got=weight)
                )
    for key, rate in settings.noise_rates.items():
        if not 0 <= rate < 0.5:
            raise SettingError(
                explain(f"The 'feedback.noise_rates.{key}' setting is out of range.", allowed="[0, 0.5)", got=rate)
            )
