"""Small records for tests: everything that a test does not care about has a value that never matters."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from thumbwheel.records import Feedback, Message, Preference, Report, Step, Target, Update
from thumbwheel.testing.clock import NOON


def a_step(id: str, *, episode: str = "e1", task: str = "t1", text: str = "An answer.", **fields: Any) -> Step:
    """A chat reply; `fields` go to `Step`."""
    given: dict[str, Any] = {"at": NOON, "state": (Message(role="user", content=f"Question of {task}?"),)} | fields
    return Step(id=id, episode_id=episode, task_id=task, action=Message(role="assistant", content=text), **given)


def a_thumb(
    id: str, *, step: str | None = None, episode: str | None = None, task: str | None = None, **fields: Any
) -> Feedback:
    """A thumbs-up on the target; `fields` go to `Feedback`. Without a target it is about step "s1"."""
    if step is None and episode is None and task is None:
        step = "s1"
    target = Target(step_id=step, episode_id=episode, task_id=task)
    given: dict[str, Any] = {"at": NOON, "kind": "thumb", "value": {"up": True}, "who": "ann"} | fields
    return Feedback(id=id, target=target, **given)


def a_retraction(id: str, *, of: str, **fields: Any) -> Feedback:
    """Takes `of` back and says nothing in its place."""
    return a_thumb(id, supersedes=of, retracts=True, value=None, **fields)


def a_preference(number: int, *feedback_ids: str, chosen: str = "Good.", **fields: Any) -> Preference:
    """A pair about question `number`."""
    return Preference(
        prompt=(Message(role="user", content=f"Question {number}?"),),
        chosen=Message(role="assistant", content=chosen),
        rejected=Message(role="assistant", content="Bad."),
        feedback_ids=feedback_ids,
        **fields,
    )


def an_update(id: str, *, snapshot: str, parent: str | None = None, at: datetime = NOON, **fields: Any) -> Update:
    """A weight change that learned from `snapshot`."""
    return Update(
        id=id,
        kind="dpo",
        parent=parent,
        checkpoint=f"checkpoints/{id}",
        snapshot=snapshot,
        config_hash="c0",
        at=at,
        **fields,
    )


def a_report(id: str, *, policy: str = "v1", at: datetime = NOON, **fields: Any) -> Report:
    """A verdict without figures."""
    given: dict[str, Any] = {"verdict": "promote", "figures": (), "gates": (), "seed": 0, "seconds": 1.0} | fields
    return Report(id=id, policy=policy, parent="base", at=at, **given)
