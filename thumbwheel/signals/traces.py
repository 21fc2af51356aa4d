"""Runs of several steps: process labels out of step marks, and transitions for reinforcement learning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from thumbwheel.config import FeedbackSettings
from thumbwheel.feedback import StepMark
from thumbwheel.records import Episode, Message, ProcessLabelled, Step, Transition
from thumbwheel.signals.accounts import Account, Accounted
from thumbwheel.signals.verdicts import RATINGS, Verdict, gather


def process_labelled(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[ProcessLabelled]:
    """Traces with marks, one row per episode and origin.

    The steps of a row are those of the path taken (the last attempt at each index), as text: the answer, then each call
    as `name(arguments)`. A step nobody marked is None; several marks go by the sign of their weighted sum. Marks on other
    attempts are dropped with a count.
    """
    evidence = gather(episodes, settings)
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in evidence.verdicts:
        if isinstance(verdict.kind, StepMark):
            groups.setdefault((verdict.episode.id, verdict.feedback.origin), []).append(verdict)
        else:
            evidence.tally.aside(verdict.feedback.id, "no mark on a step")
    rows = []
    for group in groups.values():
        path = path_of(group[0].episode)
        marks: dict[str, float] = {}
        ids = []
        on_path = {step.id for step in path}
        for verdict in group:
            if verdict.step is None or verdict.step.id not in on_path:
                evidence.tally.refuse([verdict.feedback.id], "marks no step of the path taken")
                continue
            marks[verdict.step.id] = marks.get(verdict.step.id, 0.0) + verdict.weight * (verdict.value or 0.0)
            ids.append(verdict.feedback.id)
        evidence.tally.use(ids)
        if ids:
            rows.append(_process_row(path, marks, group[0], ids))
    return Accounted(rows, evidence.tally.account())


def _process_row(path: Sequence[Step], marks: dict[str, float], first: Verdict, ids: list[str]) -> ProcessLabelled:
    return ProcessLabelled(
        prompt=path[0].state,
        steps=tuple(_text(step.action) for step in path),
        labels=tuple(_sign(marks[step.id]) if step.id in marks else None for step in path),
        task_id=path[0].task_id,
        origin=first.feedback.origin,
        feedback_ids=tuple(ids),
    )


def transitions(episodes: Iterable[Episode], settings: FeedbackSettings) -> Accounted[Transition]:
    """One row per step of the path taken (the last attempt at each index).

    The reward of a step is the weighted mean of the ratings (thumb, stars, scores, outcome) that name it; ratings of the
    episode as a whole are the reward of its last step; with neither it is None, never 0. `terminated` and `truncated`
    stand on the last row only, as they are in the episode. `next_state` is the state of the following step; after the
    last one it is None where the task ended by itself, and else the final observation, to bootstrap from.
    The account counts steps; superseded attempts are dropped.
    """
    rows: list[Transition] = []
    read = unknown = truncated = 0
    dropped: Counter[str] = Counter()
    for episode in episodes:
        path = path_of(episode)
        rewards = _rewards(episode, path, settings)
        read += len(episode.steps)
        if len(episode.steps) > len(path):
            dropped["a later attempt took its place"] += len(episode.steps) - len(path)
        for place, step in enumerate(path):
            last = place == len(path) - 1
            verdicts = rewards.get(step.id, [])
            weight = sum(verdict.weight for verdict in verdicts)
            reward = sum(verdict.weight * (verdict.value or 0.0) for verdict in verdicts) / weight if weight else None
            unknown += reward is None
            rows.append(
                Transition(
                    state=step.state,
                    action=step.action,
                    reward=reward,
                    next_state=_after(episode, step) if last else path[place + 1].state,
                    terminated=episode.terminated and last,
                    truncated=episode.truncated and last,
                    episode_id=episode.id,
                    index=step.index,
                    policy_version=step.policy_version,
                    behaviour_logp=step.behaviour_logp,
                    feedback_ids=tuple(verdict.feedback.id for verdict in verdicts),
                )
            )
        truncated += episode.truncated
    notes = Counter({"reward unknown": unknown} if unknown else {})
    return Accounted(rows, Account(read, len(rows), dropped, truncated=truncated, notes=notes))


def path_of(episode: Episode) -> list[Step]:
    """The path taken: of each index the last attempt, in order of index."""
    latest: dict[int, Step] = {}
    for step in episode.steps:
        if step.index not in latest or step.attempt >= latest[step.index].attempt:
            latest[step.index] = step
    return [latest[index] for index in sorted(latest)]


def _rewards(episode: Episode, path: Sequence[Step], settings: FeedbackSettings) -> dict[str, list[Verdict]]:
    """The ratings by the step they reward."""
    found: dict[str, list[Verdict]] = {}
    for verdict in gather([episode], settings).of(*RATINGS):
        whole = verdict.feedback.target.step_id is None
        step = path[-1] if whole else verdict.step
        if step is not None:
            found.setdefault(step.id, []).append(verdict)
    return found


def _after(episode: Episode, step: Step) -> tuple[Message, ...] | None:
    return None if episode.terminated else (*step.state, step.action, *step.result)


def _text(action: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in action.tool_calls]
    return "\n".join([action.content, *calls] if action.content else calls)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
