"""Noise rules: feedback that means nothing is void, each for a named reason.

The rules are data (`FeedbackSettings.rules()`); this file holds the tests they name. A test of your own is a function
`(trial) -> bool`, registered here or named "module:attr".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import RecordError, RegistryError, SettingError, explain
from thumbwheel.feedback import parse
from thumbwheel.records import Episode, Feedback, Step
from thumbwheel.registry import Registry


@dataclass(frozen=True)
class Trial:
    """What a test sees: the feedback, the value of the rule's field (None where absent), its bound, the target step."""

    feedback: Feedback
    value: JsonValue
    bound: float | str | bool | None
    step: Step | None


@dataclass(frozen=True)
class Dropped:
    """One feedback that does not count, and why."""

    feedback: Feedback
    reason: str


Test = Callable[[Trial], bool]
tests: Registry[Test] = Registry("noise test")


@tests.register("below")
def below(trial: Trial) -> bool:
    """The field is a number under the bound."""
    return _is_number(trial.value) and _number(trial.value) < _number(trial.bound)


@tests.register("above")
def above(trial: Trial) -> bool:
    """The field is a number over the bound."""
    return _is_number(trial.value) and _number(trial.value) > _number(trial.bound)


@tests.register("equals")
def equals(trial: Trial) -> bool:
    """The field is the bound."""
    return trial.value == trial.bound


@tests.register("blank")
def blank(trial: Trial) -> bool:
    """The field is text without a visible character."""
    return isinstance(trial.value, str) and not trial.value.strip()


@tests.register("always")
def always(trial: Trial) -> bool:
    """Every feedback of the kind."""
    return True


@tests.register("same_as_answer")
def same_as_answer(trial: Trial) -> bool:
    """The field is the target's own answer, but for outer white space."""
    same = isinstance(trial.value, str) and trial.step is not None
    return same and str(trial.value).strip() == (trial.step.action.content.strip() if trial.step else None)


@tests.register("not_shown")
def not_shown(trial: Trial) -> bool:
    """The field names a step that was not on screen."""
    return isinstance(trial.value, str) and trial.value not in trial.feedback.shown


def keep(feedback: Feedback, settings: FeedbackSettings, *, step: Step | None = None) -> Dropped | None:
    """None where the feedback counts; else why it does not. `step` is its target, where known.

    Void is what a rule of `settings.rules()` says is void, and what is not valid for its kind. A retraction always counts.
    Raises SettingError for a rule with a bound that its test cannot use, RegistryError for an unknown test.
    """
    if feedback.retracts:
        return None
    for rule in settings.rules():
        if rule.kind not in ("*", feedback.kind):
            continue
        value = feedback.value.get(rule.field) if isinstance(feedback.value, dict) else None
        if tests.get(rule.test)(Trial(feedback, value, rule.bound, step)):
            return Dropped(feedback, rule.reason)
    try:
        parse(feedback)
    except (RecordError, RegistryError):
        return Dropped(feedback, f"not a valid '{feedback.kind}'")
    return None


class NoiseFilter:
    """Takes the noise out of episodes as they stream by, and counts.

        quiet = NoiseFilter(settings)
        episodes = list(quiet(store.episodes()))
        print(quiet.line())

    An episode stays even where all its feedback is void: its steps still count.
    """

    def __init__(self, settings: FeedbackSettings) -> None:
        self._settings = settings
        self.read = 0
        self.dropped: Counter[str] = Counter()

    def __call__(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """The episodes with the feedback that counts."""
        for episode in episodes:
            kept = tuple(item for item in episode.feedback if self._counts(item, episode))
            yield episode if len(kept) == len(episode.feedback) else episode.model_copy(update={"feedback": kept})

    def _counts(self, feedback: Feedback, episode: Episode) -> bool:
        self.read += 1
        named = feedback.target.step_id
        step = next((step for step in episode.steps if step.id == named), None)
        if named is None and len(episode.steps) == 1:
            step = episode.steps[0]
        void = keep(feedback, self._settings, step=step)
        if void is not None:
            self.dropped[void.reason] += 1
        return void is None

    def line(self) -> str:
        """One line for people: feedback in, kept, void by reason."""
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.dropped.most_common())
        void = self.dropped.total()
        return f"feedback in {self.read}, kept {self.read - void}, void {void}" + (f" ({reasons})" if reasons else "")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise SettingError(
            explain("A noise rule with the test 'below' or 'above' needs a bound.", allowed="bound=<number>", got=value)
        )
    return float(value)
