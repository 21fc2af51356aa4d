"""Steps and feedback to episodes, in whatever order they came; and which feedback is in force.

The same rules as a store's, without a store: for imported files and for tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from thumbwheel.errors import ConflictError
from thumbwheel.records import Episode, Feedback, Step

R = TypeVar("R", Step, Feedback)


@dataclass(frozen=True)
class Joined:
    """Episodes in the order of their first step; `waiting` is feedback whose target is not among the steps."""

    episodes: list[Episode]
    waiting: list[Feedback]


def in_force(feedback: Iterable[Feedback]) -> list[Feedback]:
    """What stands once corrections and retractions are taken into account; the order they came in does not matter.

    Out of force: a retraction itself, and what another feedback of the same person (`who`) names in `supersedes`, even
    where that one was superseded or retracted later. What names another person's feedback corrects nothing.
    The same id twice counts once. Order is kept.
    """
    unique = _by_id(feedback, "feedback")
    corrected = {(later.supersedes, later.who) for later in unique.values() if later.supersedes not in (None, later.id)}
    return [item for item in unique.values() if not item.retracts and (item.id, item.who) not in corrected]


def join(steps: Iterable[Step], feedback: Iterable[Feedback]) -> Joined:
    """Episodes with the feedback in force that belongs to them, each in order of (at, id).

    Feedback belongs to the episode of the step it names; else to the episode it names; else to every episode of the task
    it names. Raises ConflictError where an id came twice with different payloads.
    """
    by_step = _by_id(steps, "step")
    of_episode: defaultdict[str, list[Step]] = defaultdict(list)
    of_task: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for step in by_step.values():
        of_episode[step.episode_id].append(step)
        of_task[step.task_id][step.episode_id] = None
    said: defaultdict[str, list[Feedback]] = defaultdict(list)
    waiting = []
    for item in in_force(feedback):
        target = item.target
        homes: Sequence[str]
        if target.step_id is not None:
            homes = [by_step[target.step_id].episode_id] if target.step_id in by_step else []
        elif target.episode_id is not None:
            homes = [target.episode_id] if target.episode_id in of_episode else []
        else:
            homes = list(of_task.get(target.task_id or "", ()))
        for home in homes:
            said[home].append(item)
        if not homes:
            waiting.append(item)
    return Joined([Episode.of(steps, said[id]) for id, steps in of_episode.items()], waiting)


def _by_id(records: Iterable[R], noun: str) -> dict[str, R]:
    unique: dict[str, R] = {}
    for record in records:
        known = unique.setdefault(record.id, record)
        if known is not record and known.digest() != record.digest():
            raise ConflictError(f"The {noun} id '{record.id}' came twice with different content. Give each its own id.")
    return unique
