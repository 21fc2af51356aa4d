"""Preferences out of what people did: choices, rankings, edits, and ratings of several answers to one prompt.

Votes on one pair become one row. With W_a and W_b the summed weights of the votes for each answer and W_t that of ties,

    p = (W_a + W_t / 2) / (W_a + W_b + W_t),    weight = W_a + W_b + W_t,

so that weight * [p * loss(a over b) + (1 - p) * loss(b over a)] is exactly the sum of the single votes' losses.
Votes of different origin (person, simulated, rule, model) and implicit votes never share a row with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from thumbwheel.config import FeedbackSettings
from thumbwheel.feedback import Choice, Edit, Ranking
from thumbwheel.records import Episode, Message, Origin, Passage, Preference, Step
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.verdicts import ABOUT_PASSAGES, AnswerKey, Evidence, Verdict, answer_key, edited, gather

IDENTICAL = "chosen and rejected are the same"
OTHER_PROMPT = "answers to different prompts"
UNKNOWN_STEP = "names a step that has not arrived"
# Kinds with a value that are no rating of an answer beside others; any other kind with a value is one, those of your own too.
NO_RATINGS = ABOUT_PASSAGES | {"edit", "demonstration", "step_mark"}


@dataclass(frozen=True)
class Answer:
    """One side of a pair. `step` is where it came from; an edit has the message of the person and no token ids."""

    message: Message
    step: Step
    token_ids: tuple[int, ...] | None = None

    @classmethod
    def of(cls, step: Step) -> Answer:
        """What the policy said at that step."""
        return cls(step.action, step, step.token_ids)


class PairKey(NamedTuple):
    """What makes two votes be about the same pair."""

    prompt: tuple[Message, ...]
    answers: frozenset[AnswerKey]
    origin: Origin
    implicit: bool


@dataclass
class _Pair:
    """The votes on one pair so far; `for_first + for_second + for_tie` > 0 once a vote is in."""

    first: Answer
    second: Answer
    origin: Origin
    for_first: float = 0.0
    for_second: float = 0.0
    for_tie: float = 0.0
    margins: list[tuple[float, float]] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)
    feedback_ids: dict[str, None] = field(default_factory=dict)

    def row(self) -> Preference:
        total = self.for_first + self.for_second + self.for_tie
        lead = self.for_first - self.for_second
        tie = abs(lead) <= 1e-12 * total
        chosen, rejected = (self.first, self.second) if lead >= 0 or tie else (self.second, self.first)
        tokenizer = _tokenizer(chosen, rejected)
        return Preference(
            prompt=chosen.step.state,
            chosen=chosen.message,
            rejected=rejected.message,
            weight=total,
            p=0.5 if tie else (max(self.for_first, self.for_second) + self.for_tie / 2) / total,
            margin=None if tie else self._margin(sign=1.0 if chosen is self.first else -1.0),
            tie=tie,
            reasons=tuple(self.reasons),
            passages=_passages(chosen.step, rejected.step),
            chosen_token_ids=chosen.token_ids if chosen.step.tokenizer == tokenizer else None,
            rejected_token_ids=rejected.token_ids if rejected.step.tokenizer == tokenizer else None,
            tokenizer=tokenizer,
            policy_version=_version(chosen.step, rejected.step),
            task_id=chosen.step.task_id,
            origin=self.origin,
            feedback_ids=tuple(self.feedback_ids),
        )

    def _margin(self, *, sign: float) -> float | None:
        """The weighted mean of the known margins towards the chosen answer, where it is above 0."""
        weight = sum(weight for weight, _ in self.margins)
        mean = sign * sum(weight * margin for weight, margin in self.margins) / weight if weight else 0.0
        return mean if mean > 0 else None


class _Ballot:
    """All pairs under vote."""

    def __init__(self, evidence: Evidence) -> None:
        self.pairs: dict[PairKey, _Pair] = {}
        self.evidence = evidence

    def vote(
        self,
        better: Answer,
        worse: Answer,
        verdicts: Sequence[Verdict],
        weight: float,
        *,
        tie: bool = False,
        margin: float | None = None,
    ) -> None:
        """One vote for `better`, or for a tie. Refused with a count where the two are the same or not comparable."""
        ids = [verdict.feedback.id for verdict in verdicts]
        tally = self.evidence.tally
        if better.step.state != worse.step.state:
            return tally.refuse(ids, OTHER_PROMPT)
        if answer_key(better.message) == answer_key(worse.message):
            return tally.refuse(ids, IDENTICAL)
        pair = self.pairs.setdefault(
            key_of(better, worse, verdicts[0]), _Pair(better, worse, verdicts[0].feedback.origin)
        )
        towards_first = answer_key(better.message) == answer_key(pair.first.message)
        if tie:
            pair.for_tie += weight
        elif towards_first:
            pair.for_first += weight
        else:
            pair.for_second += weight
        if margin is not None:
            pair.margins.append((weight, margin if towards_first else -margin))
        for verdict in verdicts:
            pair.reasons.update(dict.fromkeys(verdict.feedback.reasons))
            pair.feedback_ids[verdict.feedback.id] = None
        tally.use(ids)
        return None


def preferences(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[Preference]:
    """Pairs out of episodes, one row a pair, in the order of their first vote.

    - choice: the chosen answer over each other one shown; a tie ties every two of them; both bad makes no pair here
      (see `views.labelled`);
    - ranking: every pair it implies, ties within a place;
    - edit: the edited answer over the original;
    - ratings (thumb, stars, scores, outcome) of several answers to one prompt of one task: the better over the worse
      where their mean labels differ by `settings.min_margin`, with that difference as margin and the smaller of the two
      weights; not where the pair was compared directly.

    The account counts feedback: kept made at least one row. Raises SettingError for weights out of range.
    """
    evidence = gather(episodes, settings)
    ballot = _Ballot(evidence)
    for verdict in evidence.verdicts:
        match verdict.kind:
            case Choice() as choice:
                _choice(choice, verdict, ballot)
            case Ranking() as ranking:
                _ranking(ranking, verdict, ballot)
            case Edit() as edit:
                _edit(edit, verdict, ballot)
    _ratings(ballot, settings.min_margin)
    rows = [pair.row() for pair in ballot.pairs.values()]
    return Accounted(rows, evidence.tally.account(ties=sum(row.tie for row in rows)))


def key_of(one: Answer, other: Answer, verdict: Verdict) -> PairKey:
    """The key of the pair that a vote is about; which of the two is better does not matter."""
    answers = frozenset((answer_key(one.message), answer_key(other.message)))
    return PairKey(one.step.state, answers, verdict.feedback.origin, verdict.implicit)


def _choice(choice: Choice, verdict: Verdict, ballot: _Ballot) -> None:
    tally, id = ballot.evidence.tally, verdict.feedback.id
    if choice.both_bad:
        return tally.aside(id, "all shown are bad: labelled, not paired")
    shown = _answers(verdict.feedback.shown, verdict, ballot)
    if len(shown) < 2:
        return tally.refuse([id], IDENTICAL)
    if choice.tie:
        for one, other in combinations(shown.values(), 2):
            ballot.vote(one, other, [verdict], verdict.weight, tie=True)
    elif choice.chosen in shown:
        for step_id, other in shown.items():
            if step_id != choice.chosen:
                ballot.vote(shown[choice.chosen], other, [verdict], verdict.weight)
    return None


def _ranking(ranking: Ranking, verdict: Verdict, ballot: _Ballot) -> None:
    places = [_answers(place, verdict, ballot).values() for place in ranking.order]
    for place, answers in enumerate(places):
        for one, other in combinations(answers, 2):
            ballot.vote(one, other, [verdict], verdict.weight, tie=True)
        for lower in places[place + 1 :]:
            for better in answers:
                for worse in lower:
                    ballot.vote(better, worse, [verdict], verdict.weight)


def _edit(edit: Edit, verdict: Verdict, ballot: _Ballot) -> None:
    if verdict.step is None:
        return ballot.evidence.tally.refuse([verdict.feedback.id], "edit names no step")
    original = Answer.of(verdict.step)
    better = Answer(edited(verdict.step.action, edit.text), verdict.step)
    return ballot.vote(better, original, [verdict], verdict.weight)


def _answers(ids: Sequence[str], verdict: Verdict, ballot: _Ballot) -> dict[str, Answer]:
    """The answers behind step ids; an unknown one is refused with a count."""
    known = {id: Answer.of(ballot.evidence.steps[id]) for id in ids if id in ballot.evidence.steps}
    if len(known) < len(set(ids)):
        ballot.evidence.tally.refuse([verdict.feedback.id], UNKNOWN_STEP)
    return known


@dataclass
class _Rated:
    """One answer and the verdicts on it."""

    answer: Answer
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return sum(verdict.weight for verdict in self.verdicts)

    @property
    def value(self) -> float:
        return sum(verdict.weight * (verdict.value or 0.0) for verdict in self.verdicts) / self.weight


def _ratings(ballot: _Ballot, min_margin: float) -> None:
    """Votes out of ratings: answers to one prompt of one task, rated by people of one origin."""
    compared = set(ballot.pairs)
    groups: dict[tuple[object, ...], dict[AnswerKey, _Rated]] = {}
    for verdict in ballot.evidence.verdicts:
        if verdict.step is None or verdict.value is None or not _rates(verdict):
            continue
        step = verdict.step
        group = groups.setdefault((step.task_id, step.state, verdict.feedback.origin, verdict.implicit), {})
        group.setdefault(answer_key(step.action), _Rated(Answer.of(step))).verdicts.append(verdict)
    for group in groups.values():
        for one, other in combinations(group.values(), 2):
            _rated_pair(one, other, ballot, compared, min_margin)
        for rated in group.values():
            for verdict in rated.verdicts:
                reason = "no other answer to compare with" if len(group) == 1 else "rated alike, or compared directly"
                ballot.evidence.tally.aside(verdict.feedback.id, reason)


def _rated_pair(one: _Rated, other: _Rated, ballot: _Ballot, compared: set[PairKey], min_margin: float) -> None:
    if abs(one.value - other.value) < min_margin or key_of(one.answer, other.answer, one.verdicts[0]) in compared:
        return
    better, worse = (one, other) if one.value > other.value else (other, one)
    ballot.vote(
        better.answer,
        worse.answer,
        [*better.verdicts, *worse.verdicts],
        min(better.weight, worse.weight),
        margin=better.value - worse.value,
    )


def _rates(verdict: Verdict) -> bool:
    """Whether the kind gives an answer a value of its own: clicks are about passages, an edit is a pair already."""
    return verdict.feedback.kind not in NO_RATINGS


def _tokenizer(chosen: Answer, rejected: Answer) -> str | None:
    """The tokenizer of the recorded ids; where the two sides differ, the chosen side's."""
    return next((side.step.tokenizer for side in (chosen, rejected) if side.token_ids is not None), None)


def _version(chosen: Step, rejected: Step) -> str | None:
    """The policy version that gave both answers."""
    return chosen.policy_version if chosen.policy_version == rejected.policy_version else None


def _passages(*steps: Step) -> tuple[Passage, ...]:
    """What stood beside either answer, each passage once."""
    return tuple({passage.id: passage for step in steps for passage in step.passages}.values())
