"""Groups out of choices and rankings: one prompt, the answers shown, a reward each. What GRPO and its family learn from picks.

Of several votes on one group, with weight w_v and rewards r_v, each answer has the mean over the votes that say something of it:

    r_i = Σ_v w_v r_vi / Σ_v w_v

Votes of different origin (person, simulated, rule, model) never share a group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from thumbwheel.config import FeedbackSettings
from thumbwheel.feedback import Choice, Ranking
from thumbwheel.formulas.advantages import from_choice, from_ranking
from thumbwheel.grouped import Grouped, GroupedAnswer, Sampling
from thumbwheel.records import Episode, Origin, Step
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.verdicts import AnswerKey, Evidence, Verdict, answer_key, gather

UNKNOWN_STEP = "names a step that has not arrived"
OTHER_PROMPT = "answers to different prompts"
ALONE = "a group of one answer"
TIE, ALL_BAD = "a tie: no answer has a reward", "all shown are bad: labelled, not rewarded"


@dataclass
class _Group:
    """The votes on answers to one prompt so far."""

    origin: Origin
    steps: dict[str, Step] = field(default_factory=dict)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    weight: float = 0.0
    feedback_ids: dict[str, None] = field(default_factory=dict)

    def vote(self, steps: Sequence[Step], rewards: Sequence[float], verdict: Verdict) -> None:
        """One vote: (n,) rewards, NaN where it says nothing of that answer."""
        for step, reward in zip(steps, rewards, strict=True):
            self.steps.setdefault(step.id, step)
            if not math.isnan(reward):
                value, weight = self.sums.get(step.id, (0.0, 0.0))
                self.sums[step.id] = value + verdict.weight * reward, weight + verdict.weight
        self.weight += verdict.weight
        self.feedback_ids[verdict.feedback.id] = None

    def row(self) -> Grouped:
        first = next(iter(self.steps.values()))
        return Grouped(
            prompt=first.state,
            answers=tuple(answer_of(step, self._reward(id)) for id, step in self.steps.items()),
            votes=len(self.feedback_ids),
            weight=self.weight,
            task_id=first.task_id,
            origin=self.origin,
            feedback_ids=tuple(self.feedback_ids),
        )

    def _reward(self, id: str) -> float | None:
        value, weight = self.sums.get(id, (0.0, 0.0))
        return min(1.0, value / weight) if weight else None


def groups(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[Grouped]:
    """One row a prompt and origin, in the order of their first vote; every answer that was shown is in it.

    - choice: 1 for the picked answer, 0 for the others shown (`from_choice`); a tie and "both bad" give no answer a reward
      and are set aside with a count: what a person liked as little as the rest is no lesson;
    - ranking: the share of the other ranked answers that this one beat (`from_ranking`); shown and not ranked is None;
    - answers of the same text have the mean of their rewards.

    The account counts feedback; ties are rows whose known rewards are all equal. Raises SettingError for weights out of range.
    """
    evidence = gather(episodes, settings)
    found: dict[tuple[object, ...], _Group] = {}
    for verdict in evidence.verdicts:
        if not isinstance(verdict.kind, Choice | Ranking):
            evidence.tally.aside(verdict.feedback.id, "compares no answers")
            continue
        if isinstance(verdict.kind, Choice) and verdict.kind.chosen is None:
            evidence.tally.aside(verdict.feedback.id, TIE if verdict.kind.tie else ALL_BAD)
            continue
        steps = _shown(verdict.kind, verdict, evidence)
        if steps:
            key = (steps[0].state, steps[0].task_id, verdict.feedback.origin)
            group = found.setdefault(key, _Group(verdict.feedback.origin))
            group.vote(steps, _rewards(verdict.kind, steps), verdict)
            evidence.tally.use([verdict.feedback.id])
    rows = [group.row() for group in found.values()]
    return Accounted(rows, evidence.tally.account(ties=sum(_level(row) for row in rows)))


def answer_of(step: Step, reward: float | None) -> GroupedAnswer:
    """A step as an answer of a group."""
    return GroupedAnswer(
        step_id=step.id,
        response=step.action,
        reward=reward,
        ended=not step.truncated,
        token_ids=step.token_ids,
        token_logps=step.token_logps,
        behaviour_logp=step.behaviour_logp,
        tokenizer=step.tokenizer,
        policy_version=step.policy_version,
        sampling=sampling_of(step.tags),
    )


def sampling_of(tags: dict[str, str]) -> Sampling | None:
    """How a step was sampled, from its tags `temperature`, `top_p`, `top_k` and `template`; None where they do not say."""
    try:
        return Sampling(
            temperature=float(tags["temperature"]),
            top_p=float(tags["top_p"]),
            top_k=int(tags["top_k"]),
            template=tags["template"],
        )
    except (KeyError, ValueError):
        return None


def _shown(kind: Choice | Ranking, verdict: Verdict, evidence: Evidence) -> list[Step]:
    """The answers that stood to choice; none, refused with a count, where they cannot be compared."""
    ranked = [step for place in kind.order for step in place] if isinstance(kind, Ranking) else []
    ids = list(dict.fromkeys(verdict.feedback.shown or ranked))
    steps = [evidence.steps[id] for id in ids if id in evidence.steps]
    reason = None
    if len(steps) < len(ids):
        reason = UNKNOWN_STEP
    elif len(steps) < 2:
        reason = ALONE
    elif any(step.state != steps[0].state for step in steps):
        reason = OTHER_PROMPT
    if reason:
        evidence.tally.refuse([verdict.feedback.id], reason)
        return []
    return steps


def _rewards(kind: Choice | Ranking, steps: Sequence[Step]) -> list[float]:
    """(n,) by the formulas; answers of the same text share theirs."""
    place = {step.id: index for index, step in enumerate(steps)}
    if isinstance(kind, Choice):
        rewards = from_choice(place[kind.chosen or ""], len(steps))
    else:
        rewards = from_ranking([[place[id] for id in tied] for tied in kind.order], len(steps))
    same: dict[AnswerKey, list[int]] = {}
    for index, step in enumerate(steps):
        same.setdefault(answer_key(step.action), []).append(index)
    for places in same.values():
        known = rewards[places][~np.isnan(rewards[places])]
        if len(places) > 1 and len(known):
            rewards[places] = known.mean()
    return [float(reward) for reward in rewards]


def _level(row: Grouped) -> bool:
    known = Counter(answer.reward for answer in row.answers if answer.reward is not None)
    return len(known) == 1
