"""F3, S2: records are frozen, closed, and equal JSON means equal digest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from thumbwheel.records import (
    Feedback,
    Figure,
    Message,
    Preference,
    ProcessLabelled,
    Step,
    Target,
    ToolCall,
    Transition,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
USER = Message(role="user", content="2+2=")


def step(**more: Any) -> Step:
    base: dict[str, Any] = {
        "id": "s1",
        "episode_id": "e1",
        "task_id": "t1",
        "state": (USER,),
        "action": Message(role="assistant", content="4"),
        "at": AT,
    }
    return Step(**{**base, **more})


def test_records_are_frozen_and_closed() -> None:
    one = step()
    with pytest.raises(ValidationError, match="frozen"):
        one.id = "s2"
    with pytest.raises(ValidationError, match="Extra inputs"):
        step(colour="red")


def test_a_time_without_a_zone_is_refused_and_others_become_utc() -> None:
    with pytest.raises(ValidationError, match="time zone"):
        step(at=datetime(2026, 1, 2, 3, 4, 5))
    assert step(at=datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))).at == AT


@pytest.mark.parametrize("bad", ["a\x00b", "half a pair: \ud83d"])
def test_text_that_no_database_keeps_is_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        Message(role="user", content=bad)


@pytest.mark.parametrize("text", ["Some text yeah 🚀 rocket", "e\u0301", "👨‍👩‍👧", "你好", "שלום"])
def test_any_other_text_survives_json(text: str) -> None:
    one = step(action=Message(role="assistant", content=text))
    assert Step.model_validate_json(one.model_dump_json()) == one


def test_tool_arguments_stay_the_string_the_policy_wrote() -> None:
    raw = '{"b": 1,   "a": null}'
    call = ToolCall(id="c1", name="look_up", arguments=raw)
    one = step(action=Message(role="assistant", tool_calls=(call,)))
    assert Step.model_validate_json(one.model_dump_json()).action.tool_calls[0].arguments == raw


def test_the_digest_ignores_only_the_stores_own_time_stamp() -> None:
    said = Feedback(id="f", target=Target(task_id="t"), kind="thumb", value={"up": True}, at=AT)
    assert said.digest() == said.model_copy(update={"received_at": AT}).digest()
    assert said.digest() != said.model_copy(update={"value": {"up": False}}).digest()
    # printf '{"high":null,"low":null,"n":null,"name":"x","note":"","unit":"","value":1.0}' | sha256sum
    known = "f0bb0bf7d0d62841fc0be4077ab1c17cb723fb2f56db9b3323e560966fa7d8f3"
    assert Figure(name="x", value=1.0).digest() == known


def test_a_target_names_something() -> None:
    with pytest.raises(ValidationError, match="at least one"):
        Target()


def test_unknown_is_none_and_nan_is_no_number() -> None:
    assert step().behaviour_logp is None
    with pytest.raises(ValidationError):
        step(behaviour_logp=float("nan"))
    Transition(
        state=(USER,),
        action=USER,
        reward=None,
        next_state=None,
        terminated=False,
        truncated=True,
        episode_id="e",
        index=0,
    )


def test_a_soft_label_is_a_probability() -> None:
    with pytest.raises(ValidationError):
        Preference(prompt=(USER,), chosen=USER, rejected=USER, p=1.5)
    with pytest.raises(ValidationError):
        Preference(prompt=(), chosen=USER, rejected=USER)


def test_marks_go_with_steps() -> None:
    with pytest.raises(ValidationError, match="one label"):
        ProcessLabelled(prompt=(USER,), steps=("a", "b"), labels=(1,))
    with pytest.raises(ValidationError, match="-1, 0, 1"):
        ProcessLabelled(prompt=(USER,), steps=("a",), labels=(2,))
    ProcessLabelled(prompt=(USER,), steps=("a",), labels=(None,))
