"""F1, F2, F3: every kind of feedback has a schema and a signal; corrections supersede; bad values name their field."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from thumbwheel.errors import RecordError, RegistryError
from thumbwheel.feedback import Kind, check, kinds, parse, signal_of, value_of
from thumbwheel.records import Feedback, Target

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def say(kind: str, value: Any = None, **more: Any) -> Feedback:
    return Feedback(id="f1", target=Target(step_id="s1"), kind=kind, value=value, at=AT, **more)


# By hand, from the table in the module's docstring.
SIGNALS = [
    ("thumb", {"up": True}, 1.0),
    ("thumb", {"up": False}, -1.0),
    ("stars", {"stars": 1}, -1.0),
    ("stars", {"stars": 3}, 0.0),
    ("stars", {"stars": 5}, 1.0),
    ("scores", {"scores": {"fluency": 5, "noise": 0}}, 0.0),
    ("scores", {"scores": {"x": 7}, "low": 1, "high": 7}, 1.0),
    ("edit", {"text": "better"}, -0.5),
    ("demonstration", {}, 1.0),
    ("demonstration", None, 1.0),
    ("comment", {"text": "hm"}, None),
    ("tags", {"tags": ["tone_stiff"]}, None),
    ("step_mark", {"mark": -1}, -1.0),
    ("outcome", {"success": True}, 1.0),
    ("outcome", {"success": False}, -1.0),
    ("outcome", {"reward": 0.25}, 0.25),
    ("dwell", {"dwell_s": 30}, 0.5),
    ("dwell", {"dwell_s": 3600}, 1.0),
    ("copy", {"share": 0.5}, 0.5),
    ("follow_up", {"rephrased": True}, -0.5),
    ("follow_up", {"rephrased": False}, 0.2),
    ("abandon", None, -0.3),
    ("click", {"passage_id": "d", "position": 1}, 1.0),
    ("skip", {"passage_id": "d", "position": 2}, -1.0),
]


@pytest.mark.parametrize(("kind", "value", "expected"), SIGNALS)
def test_each_kind_is_worth_its_signal(kind: str, value: Any, expected: float | None) -> None:
    signal = signal_of(say(kind, value))
    assert signal.value == expected
    assert signal.weight > 0
    assert 0 <= signal.noise_rate < 0.5


def test_every_kind_but_choice_and_ranking_is_in_the_table_above() -> None:
    assert {kind for kind, _, _ in SIGNALS} == set(kinds) - {"choice", "ranking"}


def test_implicit_kinds_weigh_less_and_are_marked() -> None:
    """F2: what survives of implicit feedback is a weak label."""
    implicit = {name for name in kinds if kinds.get(name).implicit}
    assert implicit == {"dwell", "copy", "follow_up", "abandon", "click", "skip"}
    explicit = [kinds.get(name).default_weight for name in kinds if name not in implicit]
    assert max(kinds.get(name).default_weight for name in implicit) < min(explicit)


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        ("stars", {"stars": 6}, "value.stars"),
        ("stars", {"stars": 3.5}, "value.stars"),
        ("stars", {}, "value.stars"),
        ("thumb", {"up": True, "down": False}, "value.down"),
        ("thumb", [], "value"),
        ("edit", {"text": ""}, "value.text"),
        ("scores", {"scores": {"x": 9}}, "value"),
        ("scores", {"scores": {}}, "value.scores"),
        ("dwell", {"dwell_s": float("nan")}, "value.dwell_s"),
        ("outcome", {"success": True, "reward": 1.0}, "value"),
        ("outcome", {}, "value"),
        ("step_mark", {"mark": 2}, "value.mark"),
        ("click", {"passage_id": "d", "position": 0}, "value.position"),
    ],
)
def test_a_bad_value_names_its_field(kind: str, value: Any, field: str) -> None:
    feedback = say(kind).model_copy(update={"value": value})
    with pytest.raises(RecordError) as caught:
        parse(feedback)
    assert caught.value.field == field
    assert "Allowed:" in str(caught.value)


def test_an_unknown_kind_suggests_the_known_one() -> None:
    with pytest.raises(RegistryError, match="Did you mean 'thumb'"):
        parse(say("thumbs", {"up": True}))


class TestChoice:
    def test_one_of_the_shown_is_chosen(self) -> None:
        parse(say("choice", {"chosen": "a"}, shown=("b", "a")))

    @pytest.mark.parametrize("value", [{"tie": True}, {"both_bad": True}])
    def test_none_is_better(self, value: Any) -> None:
        parse(say("choice", value, shown=("a", "b")))

    @pytest.mark.parametrize("value", [{}, {"chosen": "a", "tie": True}, {"tie": True, "both_bad": True}])
    def test_exactly_one_verdict(self, value: Any) -> None:
        with pytest.raises(RecordError, match="exactly one"):
            parse(say("choice", value, shown=("a", "b")))

    def test_what_was_shown_must_be_said(self) -> None:
        with pytest.raises(RecordError) as caught:
            parse(say("choice", {"chosen": "a"}, shown=("a",)))
        assert caught.value.field == "shown"

    def test_a_stranger_cannot_win(self) -> None:
        with pytest.raises(RecordError, match="not shown"):
            parse(say("choice", {"chosen": "c"}, shown=("a", "b")))


class TestRanking:
    def test_ties_share_a_place(self) -> None:
        parse(say("ranking", {"order": [["a"], ["b", "c"]]}, shown=("a", "b", "c")))

    @pytest.mark.parametrize("order", [[], [["a"]], [["a"], []], [["a"], ["a"]]])
    def test_malformed_orders_are_refused(self, order: Any) -> None:
        with pytest.raises(RecordError):
            parse(say("ranking", {"order": order}, shown=("a", "b")))


def test_a_kind_of_ones_own_is_one_class() -> None:
    @kinds.register("applause-for-test")
    class Applause(Kind):
        seconds: float

        def polarity(self) -> float:
            return min(1.0, self.seconds / 10)

    assert signal_of(say("applause-for-test", {"seconds": 5})).value == 0.5
    assert value_of(Applause(seconds=5)) == {"seconds": 5.0}
    kinds._things.pop("applause-for-test")


def test_a_retraction_needs_no_value_but_its_object() -> None:
    check(say("thumb", supersedes="f0", retracts=True))
    with pytest.raises(ValidationError, match="supersedes"):
        say("thumb", retracts=True)
