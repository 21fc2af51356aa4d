"""Small episodes for the tests of signals: answers to one prompt, and feedback on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from thumbwheel.records import Episode, Feedback, Message, Step, Target

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def answer(id: str, text: str, *, prompt: str = "2+2=", episode: str = "e", task: str = "t", **more: Any) -> Step:
    return Step(
        id=id,
        episode_id=episode,
        task_id=task,
        state=(user(prompt),),
        action=Message(role="assistant", content=text),
        at=AT,
        **more,
    )


def said(id: str, kind: str, value: Any = None, *, step: str | None = None, **more: Any) -> Feedback:
    """Feedback on a step, or on episode "e" where no step is named."""
    target = Target(step_id=step) if step else Target(episode_id=more.pop("episode", "e"))
    return Feedback(id=id, target=target, kind=kind, value=value, at=AT, **more)


def episode(
    *steps: Step, feedback: list[Feedback] | None = None, id: str = "e", task: str = "t", **more: Any
) -> Episode:
    return Episode(id=id, task_id=task, steps=steps, feedback=tuple(feedback or ()), **more)
