"""Labelled answers, demonstrations, process labels, transitions (S2)."""

from __future__ import annotations

from typing import Any

import pytest
from made_episodes import answer, episode, said, user

from thumbwheel.config import FeedbackSettings
from thumbwheel.records import Feedback, Message, Origin, Step
from thumbwheel.signals.views import demonstrations, labelled, process_labelled, transitions, views

SETTINGS = FeedbackSettings()
A, B = answer("A", "4"), answer("B", "five", attempt=1)


@pytest.mark.parametrize(
    ("kind", "value", "label", "weight", "noise"),
    [
        ("thumb", {"up": True}, 1.0, 1.0, 0.1),
        ("thumb", {"up": False}, -1.0, 1.0, 0.1),
        ("stars", {"stars": 4}, 0.5, 1.0, 0.1),
        ("scores", {"scores": {"fluency": 5, "truth": 0}}, 0.0, 1.0, 0.05),
        ("outcome", {"reward": 0.3}, 0.3, 1.0, 0.05),
        ("edit", {"text": "vier"}, -0.5, 2.0, 0.02),
        ("demonstration", {}, 1.0, 1.0, 0.02),
    ],
)
def test_each_kind_labels_its_answer(kind: str, value: Any, label: float, weight: float, noise: float) -> None:
    """S2, F1: unpaired labelled answers, with the kind's own weight and noise rate."""
    (row,) = labelled([episode(A, feedback=[said("f", kind, value)])], SETTINGS).rows
    assert (row.response.content, row.value, row.weight, row.noise_rate) == ("4", label, weight, noise)
    assert row.feedback_ids == ("f",)


def test_labels_of_several_people_are_averaged_by_weight() -> None:
    """An expert (4) likes it, two end users (1 each) do not: (4 - 2) / 6."""
    feedback = [
        said("x", "thumb", {"up": True}, role="expert"),
        said("y", "thumb", {"up": False}, reasons=("wrong",)),
        said("z", "thumb", {"up": False}, reasons=("rude", "wrong")),
    ]
    (row,) = labelled([episode(A, feedback=feedback)], SETTINGS).rows
    assert row.value == pytest.approx(1 / 3)
    assert (row.weight, row.reasons) == (6.0, ("wrong", "rude"))


def test_both_bad_labels_every_answer_shown() -> None:
    feedback = [said("c", "choice", {"both_bad": True}, shown=("A", "B"))]
    result = labelled([episode(A, B, feedback=feedback)], SETTINGS)
    assert [(row.response.content, row.value) for row in result.rows] == [("4", -1.0), ("five", -1.0)]
    assert (result.account.read, result.account.kept) == (1, 1)


def test_neutral_labels_count_as_ties() -> None:
    account = labelled([episode(A, feedback=[said("s", "stars", {"stars": 3})])], SETTINGS).account
    assert (account.kept, account.ties) == (1, 1)


def test_simulated_and_implicit_labels_keep_their_own_rows() -> None:
    """F2: never mixed silently with explicit labels."""
    origins: list[Origin] = ["person", "simulated"]
    feedback = [said(o, "thumb", {"up": o == "person"}, origin=o) for o in origins] + [
        said("d", "dwell", {"dwell_s": 60.0})
    ]
    rows = labelled([episode(A, feedback=feedback)], FeedbackSettings(use_implicit=True)).rows
    assert [(row.origin, row.value, row.weight, row.noise_rate) for row in rows] == [
        ("person", 1.0, 1.0, 0.1),
        ("simulated", -1.0, 1.0, 0.1),
        ("person", 1.0, 0.1, 0.4),
    ]
    assert len(labelled([episode(A, feedback=feedback)], SETTINGS).rows) == 2


@pytest.mark.parametrize(
    ("feedback", "note"),
    [
        (said("c", "comment", {"text": "hm"}), "no verdict"),
        (said("c", "choice", {"chosen": "A"}, shown=("A", "B")), "compares answers, labels none"),
        (said("c", "step_mark", {"mark": 1}, step="A"), "a mark on a step of a trace"),
        (said("c", "thumb", {"up": True}), "about an episode of several steps"),
    ],
)
def test_what_labels_no_answer_is_noted(feedback: Feedback, note: str) -> None:
    result = labelled([episode(A, B, feedback=[feedback])], SETTINGS)
    assert (result.rows, result.account.notes) == ([], {note: 1})


def test_a_click_is_about_a_passage_and_labels_no_answer() -> None:
    feedback = [said("c", "click", {"passage_id": "p", "position": 1}, step="A")]
    assert labelled([episode(A, feedback=feedback)], FeedbackSettings(use_implicit=True)).rows == []


def test_demonstrations_are_shown_answers_edits_and_liked_ones() -> None:
    """S2: a 4-star answer (+0.5) is not liked enough at the default 0.9."""
    steps = [answer(id, f"text {id}", attempt=i) for i, id in enumerate("ABCDE")]
    feedback = [
        said("d", "demonstration", {}, step="A"),
        said("e", "edit", {"text": "mended"}, step="B"),
        said("u", "thumb", {"up": True}, step="C"),
        said("s", "stars", {"stars": 4}, step="D"),
        said("n", "thumb", {"up": False}, step="E"),
    ]
    result = demonstrations([episode(*steps, feedback=feedback)], SETTINGS)
    assert [(row.response.content, row.weight) for row in result.rows] == [
        ("text A", 1.0),
        ("mended", 2.0),
        ("text C", 1.0),
    ]
    assert (result.account.kept, result.account.unscored) == (3, 2)
    lower = demonstrations([episode(*steps, feedback=feedback)], FeedbackSettings(demonstrate_from=0.5))
    assert len(lower.rows) == 4


def test_a_demonstrated_episode_demonstrates_each_of_its_steps() -> None:
    steps = (A, answer("Z", "22", prompt="2*11=", index=1))
    result = demonstrations([episode(*steps, feedback=[said("d", "demonstration", {})])], SETTINGS)
    assert [row.response.content for row in result.rows] == ["4", "22"]


def test_the_same_demonstration_twice_is_one_row_that_names_both() -> None:
    twice = [said("d1", "demonstration", {}, step="A"), said("d2", "thumb", {"up": True}, step="A")]
    (row,) = demonstrations([episode(A, feedback=twice)], SETTINGS).rows
    assert (row.weight, row.feedback_ids) == (2.0, ("d1", "d2"))


def test_an_empty_demonstration_is_refused() -> None:
    account = demonstrations([episode(answer("A", " "), feedback=[said("d", "demonstration", {})])], SETTINGS).account
    assert account.dropped == {"empty answer": 1}


def trace(*, retried: bool = False) -> list[Step]:
    steps = [answer("A", "think"), answer("B", "", prompt="2+2= think", index=1), answer("C", "4", prompt="…", index=2)]
    call = {"role": "assistant", "tool_calls": [{"id": "1", "name": "sum", "arguments": '{"a": 2}'}]}
    steps[1] = steps[1].model_copy(update={"action": Message.model_validate(call)})
    if retried:
        steps.append(answer("D", "5", prompt="…", index=2, attempt=1))
    return steps


def test_step_marks_become_process_labels_and_silence_stays_unknown() -> None:
    """S2: a step nobody marked is None, not 0."""
    feedback = [said("m1", "step_mark", {"mark": 1}, step="A"), said("m2", "step_mark", {"mark": -1}, step="C")]
    (row,) = process_labelled([episode(*trace(), feedback=feedback)], SETTINGS).rows
    assert row.steps == ("think", 'sum({"a": 2})', "4")
    assert row.labels == (1, None, -1)
    assert row.feedback_ids == ("m1", "m2")


def test_marks_that_differ_go_by_their_weighted_sum() -> None:
    marks: list[tuple[str, int, Any]] = [("x", 1, "expert"), ("y", -1, "end_user"), ("z", -1, "end_user")]
    feedback = [said(i, "step_mark", {"mark": m}, step="A", role=role) for i, m, role in marks]
    (row,) = process_labelled([episode(A, feedback=feedback)], SETTINGS).rows
    assert row.labels == (1,)
    (even,) = process_labelled(
        [episode(A, feedback=[f.model_copy(update={"role": "end_user"}) for f in feedback[:2]])], SETTINGS
    ).rows
    assert even.labels == (0,)


def test_marks_on_an_attempt_that_was_retried_are_dropped() -> None:
    feedback = [said("m", "step_mark", {"mark": 1}, step="C")]
    result = process_labelled([episode(*trace(retried=True), feedback=feedback)], SETTINGS)
    assert (result.rows, result.account.dropped) == ([], {"marks no step of the path taken": 1})


def test_transitions_leave_unknown_rewards_unknown_and_end_once() -> None:
    """S2, conventions: unknown is None, never 0; the ends stand on the last row only."""
    feedback = [said("o", "outcome", {"success": True})]
    rows = transitions([episode(*trace(), feedback=feedback)], SETTINGS).rows
    assert [row.reward for row in rows] == [None, None, 1.0]
    assert [(row.terminated, row.truncated) for row in rows] == [(False, False), (False, False), (True, False)]
    assert [row.next_state for row in rows] == [trace()[1].state, trace()[2].state, None]
    assert rows[2].feedback_ids == ("o",)


def test_a_truncated_run_keeps_its_final_observation_to_bootstrap_from() -> None:
    """Golden values: truncated bootstraps from the value of the final observation; the two ends are never or-ed."""
    seen = Message(role="tool", content="out of time", tool_call_id="1")
    step = A.model_copy(update={"result": (seen,)})
    result = transitions([episode(step, terminated=False, truncated=True)], SETTINGS)
    (row,) = result.rows
    assert (row.terminated, row.truncated, row.reward) == (False, True, None)
    assert row.next_state == (user("2+2="), step.action, seen)
    assert (result.account.truncated, result.account.notes) == (1, {"reward unknown": 1})


def test_terminated_wins_where_both_flags_are_set() -> None:
    """Golden values: nothing to bootstrap from after a task that ended by itself."""
    (row,) = transitions([episode(A, terminated=True, truncated=True)], SETTINGS).rows
    assert row.next_state is None


def test_a_superseded_attempt_is_no_transition() -> None:
    result = transitions([episode(*trace(retried=True))], SETTINGS)
    assert [row.action.content for row in result.rows] == ["think", "", "5"]
    assert (result.account.read, result.account.kept, result.account.dropped.total()) == (4, 3, 1)


def test_ratings_of_a_step_reward_that_step() -> None:
    feedback = [said("t", "thumb", {"up": False}, step="A"), said("o", "outcome", {"reward": 0.5})]
    assert [row.reward for row in transitions([episode(*trace(), feedback=feedback)], SETTINGS).rows] == [
        -1.0,
        None,
        0.5,
    ]


@pytest.mark.parametrize("name", ["preferences", "labelled", "demonstrations", "process_labelled", "transitions"])
def test_every_view_has_a_name_and_survives_no_data_and_no_feedback(name: str) -> None:
    view = views.get(name)
    assert view([], SETTINGS).rows == []
    assert len(view([episode(A)], SETTINGS).rows) == (1 if name == "transitions" else 0)
