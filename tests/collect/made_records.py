"""Small steps and feedback for the tests of collection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from thumbwheel.records import Feedback, Message, Step, Target

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def step(id: str = "A", *, episode: str = "e", task: str = "t", text: str = "4", minute: int = 0, **more: Any) -> Step:
    more.setdefault("state", (Message(role="user", content="2+2="),))
    return Step(
        id=id,
        episode_id=episode,
        task_id=task,
        action=Message(role="assistant", content=text),
        at=AT + timedelta(minutes=minute),
        **more,
    )


def feedback(id: str, kind: str = "thumb", value: Any = None, *, minute: int = 0, **more: Any) -> Feedback:
    names = {key: more.pop(key) for key in ("step_id", "episode_id", "task_id") if key in more}
    value = {"up": True} if value is None and kind == "thumb" and not more.get("retracts") else value
    target = Target(**(names or {"step_id": "A"}))
    return Feedback(id=id, target=target, kind=kind, value=value, at=AT + timedelta(minutes=minute), **more)
