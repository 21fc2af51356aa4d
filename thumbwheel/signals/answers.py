"""Single answers: labelled ones, and ones worth copying."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from thumbwheel.config import FeedbackSettings
from thumbwheel.feedback import Choice, Edit
from thumbwheel.records import Demonstration, Episode, Labelled, Message, Step
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.verdicts import RATINGS, Evidence, Verdict, answer_key, edited, gather

NO_STEP = "about an episode of several steps"
OTHER_VIEW = {
    "choice": "compares answers, labels none",
    "ranking": "compares answers, labels none",
    "step_mark": "a mark on a step of a trace",
    "click": "about a passage, not the answer",
    "skip": "about a passage, not the answer",
}


@dataclass
class _Labels:
    """The verdicts on one answer, each with the value it gives that answer."""

    step: Step
    verdicts: list[tuple[Verdict, float]] = field(default_factory=list)

    def row(self) -> Labelled:
        total = sum(verdict.weight for verdict, _ in self.verdicts)
        mean = sum(verdict.weight * value for verdict, value in self.verdicts) / total
        rates = [verdict.noise_rate for verdict, _ in self.verdicts]
        rate = sum(verdict.weight * verdict.noise_rate for verdict, _ in self.verdicts) / total
        return Labelled(
            prompt=self.step.state,
            response=self.step.action,
            value=max(-1.0, min(1.0, mean)),
            weight=total,
            noise_rate=max(min(rates), min(max(rates), rate)),  # rounding may step over the ends
            reasons=tuple(dict.fromkeys(r for verdict, _ in self.verdicts for r in verdict.feedback.reasons)),
            token_ids=self.step.token_ids,
            tokenizer=self.step.tokenizer,
            task_id=self.step.task_id,
            origin=self.verdicts[0][0].feedback.origin,
            feedback_ids=tuple(verdict.feedback.id for verdict, _ in self.verdicts),
        )


def labelled(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[Labelled]:
    """Answers with a label in [-1, 1]: one row per step and origin, the weighted mean of what was said of it.

    Thumbs, stars, scores, outcomes, edits (-0.5) and demonstrations (+1) label their step; "both bad" labels every answer
    shown -1. Implicit signals, where `settings.use_implicit`, make rows of their own. Rows of value 0 count as ties.
    """
    evidence = gather(episodes, settings)
    groups: dict[tuple[object, ...], _Labels] = {}
    for verdict in evidence.verdicts:
        for step, value in _labels_of(verdict, evidence):
            key = (step.id, verdict.feedback.origin, verdict.implicit)
            groups.setdefault(key, _Labels(step)).verdicts.append((verdict, value))
            evidence.tally.use([verdict.feedback.id])
    rows = [group.row() for group in groups.values()]
    return Accounted(rows, evidence.tally.account(ties=sum(row.value == 0 for row in rows)))


def _labels_of(verdict: Verdict, evidence: Evidence) -> list[tuple[Step, float]]:
    """The steps a verdict labels, each with its value in [-1, 1]."""
    name, id = verdict.feedback.kind, verdict.feedback.id
    if isinstance(verdict.kind, Choice) and verdict.kind.both_bad:
        shown = [evidence.steps[step] for step in dict.fromkeys(verdict.feedback.shown) if step in evidence.steps]
        if not shown:
            evidence.tally.refuse([id], "names no step that has arrived")
        return [(step, -1.0) for step in shown]
    if verdict.value is None or name in OTHER_VIEW:
        evidence.tally.aside(id, OTHER_VIEW.get(name, "no verdict"))
    elif verdict.step is None:
        evidence.tally.aside(id, NO_STEP)
    else:
        return [(verdict.step, verdict.value)]
    return []


@dataclass
class _Shown:
    """One answer worth copying and the verdicts that say so."""

    step: Step
    answer: Message
    verdicts: list[Verdict] = field(default_factory=list)

    def row(self) -> Demonstration:
        return Demonstration(
            prompt=self.step.state,
            response=self.answer,
            weight=sum(verdict.weight for verdict in self.verdicts),
            task_id=self.step.task_id,
            origin=self.verdicts[0].feedback.origin,
            feedback_ids=tuple(dict.fromkeys(verdict.feedback.id for verdict in self.verdicts)),
        )


def demonstrations(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[Demonstration]:
    """Answers worth copying, each (prompt, answer, origin) once.

    A demonstration copies its step (or every step of the episode it names); an edit copies the edited answer; an answer
    whose mean rating is at least `settings.demonstrate_from` is copied too. Implicit signals never are.
    """
    evidence = gather(episodes, settings)
    groups: dict[tuple[object, ...], _Shown] = {}
    for step, answer, verdicts in [*_shown_on_purpose(evidence), *_liked(evidence, settings.demonstrate_from)]:
        if not answer.content.strip() and not answer.tool_calls:
            evidence.tally.refuse((verdict.feedback.id for verdict in verdicts), "empty answer")
            continue
        key = (step.state, answer_key(answer), verdicts[0].feedback.origin)
        groups.setdefault(key, _Shown(step, answer)).verdicts.extend(verdicts)
        evidence.tally.use(verdict.feedback.id for verdict in verdicts)
    return Accounted([group.row() for group in groups.values()], evidence.tally.account())


def _shown_on_purpose(evidence: Evidence) -> Iterator[tuple[Step, Message, list[Verdict]]]:
    """Demonstrations and edits."""
    for verdict in evidence.of("demonstration", "edit"):
        named = verdict.feedback.target.step_id is not None
        if isinstance(verdict.kind, Edit) and verdict.step is not None:
            yield verdict.step, edited(verdict.step.action, verdict.kind.text), [verdict]
        elif isinstance(verdict.kind, Edit) or (named and verdict.step is None):
            evidence.tally.refuse([verdict.feedback.id], "names no step of the episode")
        else:
            for step in (verdict.step,) if verdict.step is not None else verdict.episode.steps:
                yield step, step.action, [verdict]


def _liked(evidence: Evidence, bound: float) -> Iterator[tuple[Step, Message, list[Verdict]]]:
    """Answers whose mean rating (weighted, per origin) is at least `bound`."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in evidence.of(*RATINGS):
        if verdict.step is not None:
            groups.setdefault((verdict.step.id, verdict.feedback.origin), []).append(verdict)
    for group in groups.values():
        weight = sum(verdict.weight for verdict in group)
        mean = sum(verdict.weight * (verdict.value or 0.0) for verdict in group) / weight
        step = group[0].step
        if step is not None and mean >= bound:
            yield step, step.action, group
        else:
            for verdict in group:
                evidence.tally.aside(verdict.feedback.id, "not liked enough to copy")
