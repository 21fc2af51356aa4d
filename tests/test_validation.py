"""Errors about outside data: the field, what is allowed, what was got, what next (F3, and the house's rule on errors)."""

import math

import pytest

from thumbwheel.errors import RecordError, RegistryError, ThumbwheelError
from thumbwheel.feedback import Kind, check
from thumbwheel.records import Feedback, Step
from thumbwheel.validation import read

THUMB = {"id": "f1", "target": {"task_id": "t1"}, "kind": "thumb", "value": {"up": True}, "at": "2026-01-01T00:00:00Z"}
STEP = {
    "id": "s1",
    "episode_id": "e1",
    "task_id": "t1",
    "state": [{"role": "user", "content": "2+2="}],
    "action": {"role": "assistant", "content": "4"},
    "at": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"id": ""}, "id", "a string of 1 to 200 characters"),
        ({"id": "x" * 201}, "id", "a string of 1 to 200 characters"),
        ({"at": "yesterday"}, "at", "a time with its zone, such as 2026-01-31T12:00:00Z"),
        ({"at": "2026-01-01T00:00:00"}, "at", "a time with its zone, such as 2026-01-31T12:00:00Z"),
        ({"at": "9999-12-31T23:59:59-12:00"}, "at", "a time with its zone, such as 2026-01-31T12:00:00Z"),
        ({"at": "0001-01-01T00:00:00+12:00"}, "at", "a time with its zone, such as 2026-01-31T12:00:00Z"),
        ({"target": {}}, "target", "an object with task_id, episode_id, step_id"),
        ({"role": "boss"}, "role", "one of 'end_user', 'practitioner', 'expert'"),
        ({"comment": "a\x00b"}, "comment", "a string, or null"),
        ({"comment": "\ud800"}, "comment", "a string, or null"),
        ({"value": {"up": math.inf}}, "value", None),
        ({"value": {"deep": [{"er": "a\x00"}]}}, "value", None),
        ({"value": {"a\x00": 1}}, "value", None),
        ({"value": {}}, "value.up", "true or false"),
        ({"kind": "stars", "value": {"stars": 6}}, "value.stars", "a whole number of 1 to 5"),
        ({"kind": "choice", "value": {"tie": True}, "shown": ["a"]}, "shown", "a list of two or more step ids"),
    ],
)
def test_feedback_errors_name_field_and_allowed(change, field, allowed):
    with pytest.raises(RecordError) as raised:
        check(read(Feedback, THUMB | change))
    assert raised.value.field == field
    assert raised.value.allowed == allowed
    assert raised.value.next
    assert field in str(raised.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"index": 2**31}, "index"),
        ({"attempt": -1}, "attempt"),
        ({"state": [{"role": "robot"}]}, "state.0.role"),
        ({"state": []}, "state"),
        ({"action": {"role": "assistant", "content": "a\x00"}}, "action.content"),
        ({"tags": {"k": "a\x00"}}, "tags.k"),
        ({"behaviour_logp": math.nan}, "behaviour_logp"),
    ],
)
def test_step_errors_name_the_field(change, field):
    with pytest.raises(RecordError) as raised:
        read(Step, STEP | change)
    assert raised.value.field == field


def test_unknown_field_gets_a_suggestion():
    with pytest.raises(RecordError, match=r"unknown field 'targt'.*Did you mean 'target'\?"):
        read(Feedback, THUMB | {"targt": 1})


def test_every_wrong_field_is_named():
    with pytest.raises(RecordError, match="also wrong: episode_id, task_id, state, action, at"):
        read(Step, {})


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_no_object_at_all(data):
    with pytest.raises(RecordError, match="it should be an object"):
        read(Step, data)


def test_unknown_kind_is_a_registry_error_with_a_suggestion():
    with pytest.raises(RegistryError, match="Did you mean 'thumb'"):
        check(read(Feedback, THUMB | {"kind": "thum"}))


def test_parts_and_message_agree():
    error = ThumbwheelError.of("It broke.", field="x", allowed=3, got="", next="Mend it.")
    assert str(error) == "It broke. Allowed: 3. Got: ''. Mend it."
    assert (error.what, error.field, error.allowed, error.got, error.next) == ("It broke.", "x", "3", "", "Mend it.")


def test_a_kind_of_ones_own_with_free_strings():
    """A custom kind may hold nested values; the error still names the place."""

    class Nested(Kind):
        marks: dict[str, list[int]]

    with pytest.raises(RecordError) as raised:
        read(Nested, {"marks": {"a": [1, "x"]}})
    assert raised.value.field == "marks.a.1"
