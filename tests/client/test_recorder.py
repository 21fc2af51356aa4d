"""From friendly arguments to records (F1-F3, F5). Pure: the clock and the ids are given."""

from datetime import UTC, datetime
from itertools import count

import pytest

from thumbwheel.errors import RecordError
from thumbwheel.feedback import kinds, parse
from thumbwheel.recorder import Recorder
from thumbwheel.records import Feedback, Message, Step, Target

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def recorder():
    numbers = count(1)
    return Recorder(
        clock=lambda: AT,
        make_id=lambda: f"id{next(numbers)}",
        surface="chat",
        policy_version="p7",
        who="u1",
        role="expert",
    )


def test_a_chat_reply_in_one_line(recorder):
    step = recorder.step("2+2=", "4")
    assert step == Step(
        id="id2",
        task_id="id1",
        episode_id="id1",
        state=(Message(role="user", content="2+2="),),
        action=Message(role="assistant", content="4"),
        at=AT,
        surface="chat",
        policy_version="p7",
    )


def test_an_agents_step_with_everything(recorder):
    prompt = [{"role": "system", "content": "Be short."}, Message(role="user", content="Time?")]
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "clock", "arguments": "{}"}]}
    step = recorder.step(
        prompt,
        call,
        task_id="t",
        episode_id="e",
        index=3,
        attempt=1,
        result=[{"role": "tool", "content": "12:00", "tool_call_id": "c1"}],
        token_ids=[5, 6],
        tokenizer="tok",
        behaviour_logp=-1.5,
        truncated=False,
        policy_version="p8",
        tags={"lang": "en"},
        id="mine",
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert [message.role for message in step.state] == ["system", "user"]
    assert step.action.tool_calls[0].name == "clock"
    assert (step.id, step.task_id, step.episode_id, step.index, step.attempt) == ("mine", "t", "e", 3, 1)
    assert (step.token_ids, step.behaviour_logp, step.policy_version) == ((5, 6), -1.5, "p8")
    assert (step.at.year, step.at.month, step.result[0].content) == (2026, 1, "12:00")


def test_a_regenerated_answer_joins_the_first(recorder):
    first = recorder.step("q", "a")
    again = recorder.step("q", "b", task_id=first.task_id, attempt=1)
    assert again.episode_id == first.episode_id


def test_feedback_gets_the_defaults_and_the_target(recorder):
    step = recorder.step("q", "a")
    thumb = recorder.thumb(step, up=False, reasons=["tone_stiff"], comment="meh")
    assert thumb == Feedback(
        id="id3",
        target=Target(task_id="id1", episode_id="id1", step_id="id2"),
        kind="thumb",
        value={"up": False},
        reasons=("tone_stiff",),
        comment="meh",
        who="u1",
        role="expert",
        at=AT,
        surface="chat",
    )


def _every(recorder: Recorder) -> list[Feedback]:
    a = recorder.step("q", "a")
    b = recorder.step("q", "b", task_id=a.task_id, attempt=1)
    return [
        recorder.thumb(a, up=True),
        recorder.stars(a, 4),
        recorder.scores(a, {"fluency": 3.5}),
        recorder.edit(a, "A."),
        recorder.demonstration(a),
        recorder.comment(a, "words"),
        recorder.choice([a, b], b, strength="clear"),
        recorder.ranking([b, a]),
        recorder.tags(a, "x", "y"),
        recorder.step_mark(a, -1),
        recorder.outcome(a, success=False),
        recorder.dwell(a, 12.5),
        recorder.copy(a),
        recorder.follow_up(a, rephrased=True),
        recorder.abandon(a),
        recorder.click(a, "d1", 1),
        recorder.skip(a, "d2", 2),
    ]


def test_there_is_a_method_for_every_kind(recorder):
    """F1, F2: and each makes a value that its kind accepts."""
    made = _every(recorder)
    assert {feedback.kind for feedback in made} == {name for name in kinds if not name.startswith("test_")}
    for feedback in made:
        parse(feedback)


def test_choices(recorder):
    a = recorder.step("q", "a")
    b = recorder.step("q", "b", task_id=a.task_id, attempt=1)
    chosen = recorder.choice([a, b], b)
    assert chosen.shown == (a.id, b.id)
    assert chosen.target == Target(task_id=a.task_id, episode_id=a.episode_id)
    assert parse(chosen).chosen == b.id
    assert parse(recorder.choice([a, b], tie=True)).tie
    assert parse(recorder.choice([a, b], both_bad=True)).both_bad
    by_id = recorder.choice(["x", "y"], "y")
    assert by_id.target == Target(step_id="x")
    assert recorder.choice(["x", "y"], "y", target=Target(task_id="t")).target == Target(task_id="t")


def test_a_ranking_with_a_tie(recorder):
    ranking = recorder.ranking(["b", ["a", "c"]], shown=["a", "b", "c"])
    assert ranking.value == {"order": [["b"], ["a", "c"]]}
    assert ranking.shown == ("a", "b", "c")


def test_an_outcome_is_of_the_whole_task(recorder):
    step = recorder.step("q", "a", task_id="t", episode_id="e")
    assert recorder.outcome(step, reward=0.25).target == Target(task_id="t", episode_id="e")
    assert recorder.outcome("s9", success=True).target == Target(step_id="s9")


def test_correcting_and_retracting(recorder):
    """F1: corrections keep who said it and about what; nothing is overwritten."""
    thumb = recorder.thumb("s1", up=True, who="u2", role="end_user", shown=["s1"])
    better = recorder.correct(thumb, {"up": False}, comment="misclick")
    assert (better.supersedes, better.who, better.role, better.target) == (thumb.id, "u2", "end_user", thumb.target)
    assert (better.value, better.comment, better.shown) == ({"up": False}, "misclick", ("s1",))
    assert better.id != thumb.id
    gone = recorder.retract(better)
    assert (gone.retracts, gone.supersedes, gone.who) == (True, better.id, "u2")
    edit = recorder.edit("s1", "x", supersedes=thumb)
    assert edit.supersedes == thumb.id


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda r: r.thumb("s1", up="perhaps"), "value.up"),
        (lambda r: r.stars("s1", 6), "value.stars"),
        (lambda r: r.thumb("", up=True), "step_id"),
        (lambda r: r.choice(["a"], "a"), "shown"),
        (lambda r: r.choice([], "a"), "shown"),
        (lambda r: r.ranking([]), "shown"),
        (lambda r: r.choice(["a", "b"], "a", tie=True), "value"),
        (lambda r: r.choice([r.step("q", "a"), r.step("q", "b")], tie=True), "shown"),
        (lambda r: r.outcome("s1"), "value"),
        (lambda r: r.outcome("s1", success=True, reward=1.0), "value"),
        (lambda r: r.comment("s1", "a\x00"), "value"),
        (lambda r: r.thumb("s1", up=True, at=datetime(2026, 1, 1)), "at"),
        (lambda r: r.step([], "a"), "state"),
        (lambda r: r.step("\ud800", "a"), "content"),
        (lambda r: r.step("q", "a", index=-1), "index"),
        (lambda r: r.step("q", {"role": "robot"}), "role"),
    ],
)
def test_what_the_server_would_refuse_is_refused_here(recorder, make, field):
    with pytest.raises(RecordError) as raised:
        make(recorder)
    assert raised.value.field == field


def test_a_kind_that_only_the_server_knows(recorder):
    assert recorder.feedback("s1", "their_pkg:Nod", {"nods": 2}).value == {"nods": 2}
