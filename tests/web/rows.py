"""Payloads for tests, as a stranger would write them."""

from __future__ import annotations

from typing import Any

AT = "2026-01-31T12:00:00Z"


def step(id: str = "s1", **change: Any) -> dict[str, Any]:
    """A chat reply of task "t1", episode "e1"."""
    plain = {
        "id": id,
        "episode_id": "e1",
        "task_id": "t1",
        "state": [{"role": "user", "content": "2+2="}],
        "action": {"role": "assistant", "content": "4"},
        "at": AT,
    }
    return plain | change


def thumb(id: str = "f1", **change: Any) -> dict[str, Any]:
    """A thumbs-up of "u1" on step "s1"."""
    plain = {"id": id, "target": {"step_id": "s1"}, "kind": "thumb", "value": {"up": True}, "who": "u1", "at": AT}
    return plain | change


def rating(kind: str, value: Any, id: str | None = None, **change: Any) -> dict[str, Any]:
    """Feedback of any kind on step "s1"."""
    return thumb(id or kind, kind=kind, value=value, **change)


EVERY_KIND: dict[str, dict[str, Any]] = {
    "thumb": rating("thumb", {"up": False}),
    "stars": rating("stars", {"stars": 4}),
    "scores": rating("scores", {"scores": {"fluency": 4.5, "truth": 2}, "low": 0, "high": 5}),
    "edit": rating("edit", {"text": "Four. 🚀 e\u0301"}),
    "demonstration": rating("demonstration", {}),
    "comment": rating("comment", {"text": "right, but curt"}),
    "choice": rating("choice", {"chosen": "s2", "strength": "slight"}, shown=["s1", "s2"]),
    "ranking": rating("ranking", {"order": [["s2"], ["s1", "s3"]]}, shown=["s1", "s2", "s3"]),
    "tags": rating("tags", {"tags": ["tone_stiff", "unsafe"]}),
    "step_mark": rating("step_mark", {"mark": -1}),
    "outcome": rating("outcome", {"reward": 0.3}, target={"task_id": "t1"}),
    "dwell": rating("dwell", {"dwell_s": 12.5}),
    "copy": rating("copy", {"share": 0.5}),
    "follow_up": rating("follow_up", {"rephrased": True}),
    "abandon": rating("abandon", {}),
    "click": rating("click", {"passage_id": "d7", "position": 2}),
    "skip": rating("skip", {"passage_id": "d1", "position": 1}),
}
