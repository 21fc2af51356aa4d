"""Requests, retries and errors, without a network: the plans are driven by hand."""

import httpx
import pytest

from thumbwheel.delivery import Call, Delivery, Pause
from thumbwheel.errors import ConflictError, NotFound, RecordError, Undelivered
from thumbwheel.recorder import Recorder

FAULT = {"what": "W", "field": "f", "allowed": "A", "got": "G", "next": "N", "message": "W. Allowed: A. Got: G. N"}


def delivery(**change):
    return Delivery(
        **{"url": "http://s", "retries": 3, "backoff_s": 0.5, "batch_size": 2, "dice": lambda: 0.0} | change
    )


def response(status, body=None, **headers):
    request = httpx.Request("POST", "http://s/x")
    return httpx.Response(status, json=body if body is not None else {}, headers=headers, request=request)


def drive(plan, outcomes):
    """(result or raised error, calls made, pauses taken) when the calls end as listed."""
    calls, pauses, answer, outcomes = [], [], None, iter(outcomes)
    try:
        while True:
            action = plan.send(answer)
            if isinstance(action, Pause):
                pauses.append(action.seconds)
                answer = None
            else:
                calls.append(action)
                answer = next(outcomes)
    except StopIteration as end:
        return end.value, calls, pauses
    except Exception as error:
        return error, calls, pauses


@pytest.fixture
def thumb():
    return Recorder().thumb("s1", up=True)


@pytest.mark.parametrize("failure", [httpx.ConnectError("no"), httpx.ReadTimeout("slow"), response(503), response(429)])
def test_the_same_request_again_after_growing_pauses(thumb, failure):
    """F4: the ids do not change, so whatever the first tries did is done once."""
    result, calls, pauses = drive(delivery().one(thumb), [failure] * 3 + [response(201)])
    assert result is None
    assert [call.body for call in calls] == [calls[0].body] * 4
    assert thumb.id.encode() in calls[0].body
    assert pauses == [0.5, 1.0, 2.0]


def test_pauses_are_spread_and_bounded_and_listen_to_the_server(thumb):
    _, _, pauses = drive(delivery(dice=lambda: 1.0).one(thumb), [httpx.ConnectError("no")] * 4)
    assert pauses == [0.75, 1.5, 3.0]
    _, _, pauses = drive(delivery(retries=9).one(thumb), [httpx.ConnectError("no")] * 10)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    _, _, pauses = drive(delivery().one(thumb), [response(503, **{"Retry-After": "7"}), response(201)])
    assert pauses == [7.0]
    _, _, pauses = drive(delivery().one(thumb), [response(503, **{"Retry-After": "86400"}), response(201)])
    assert pauses == [30.0]


def test_giving_up_hands_the_record_back(thumb):
    error, calls, _ = drive(delivery().one(thumb), [httpx.ConnectError("refused")] * 4)
    assert isinstance(error, Undelivered)
    assert error.records == (thumb,)
    assert len(calls) == 4
    assert "http://s" in str(error)
    assert "4 tries" in str(error)


def test_giving_up_on_a_full_disk_says_so(thumb):
    full = response(503, {"error": {**FAULT, "message": "The disk is full."}})
    error, _, _ = drive(delivery(retries=0).one(thumb), [full])
    assert isinstance(error, Undelivered)
    assert "The disk is full." in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RecordError),
        (404, NotFound),
        (409, ConflictError),
        (413, RecordError),
        (422, RecordError),
        (500, Undelivered),
    ],
)
def test_the_servers_error_in_our_words(thumb, status, kind):
    error, calls, _ = drive(delivery().one(thumb), [response(status, {"error": FAULT})])
    assert type(error) is kind
    assert str(error) == FAULT["message"]
    assert (error.what, error.field, error.allowed, error.got, error.next) == ("W", "f", "A", "G", "N")
    assert len(calls) == 1


@pytest.mark.parametrize("body", [[], "<html>", {"detail": "x"}])
def test_an_answer_of_a_stranger(thumb, body):
    error, _, _ = drive(delivery().one(thumb), [response(404, body)])
    assert isinstance(error, NotFound)
    assert "status 404" in str(error)


def _ok(*ids, status="stored"):
    return response(200, {"results": [{"id": id, "status": status} for id in ids]})


def test_batches_steps_first():
    recorder = Recorder()
    thumbs = [recorder.thumb("a", up=True, id=f"f{n}") for n in range(3)]
    steps = [recorder.step("q", "a", id=f"s{n}") for n in range(1)]
    sent, calls, _ = drive(delivery().send(thumbs + steps), [_ok("s0"), _ok("f0", "f1"), _ok("f2", status="waiting")])
    assert [call.path for call in calls] == ["/v1/steps/batch", "/v1/feedback/batch", "/v1/feedback/batch"]
    assert (sent.stored, sent.waiting) == (("s0", "f0", "f1"), ("f2",))


def test_a_batch_too_large_for_the_server_is_halved():
    thumbs = [Recorder().thumb("a", up=True, id=f"f{n}") for n in range(4)]
    too_large = response(413, {"error": FAULT})
    sent, calls, _ = drive(delivery(batch_size=4).send(thumbs), [too_large, _ok("f0", "f1"), _ok("f2", "f3")])
    assert sent.stored == ("f0", "f1", "f2", "f3")
    assert [call.body.count(b'"id"') for call in calls] == [4, 2, 2]
    error, _, _ = drive(delivery(batch_size=1).send(thumbs), [too_large])
    assert isinstance(error, RecordError)


def test_what_was_not_confirmed_is_handed_back():
    thumbs = [Recorder().thumb("a", up=True, id=f"f{n}") for n in range(5)]
    error, _, _ = drive(delivery(retries=0).send(thumbs), [_ok("f0", "f1"), httpx.ConnectError("gone")])
    assert isinstance(error, Undelivered)
    assert error.records == tuple(thumbs[2:])


def test_refusals_are_raised_after_the_rest_is_sent_or_returned_when_offered():
    thumbs = [Recorder().thumb("a", up=True, id=f"f{n}") for n in range(3)]
    results = [{"id": "f0", "status": "conflict", "error": FAULT}, {"id": "f1", "status": "stored"}]
    mixed = response(207, {"results": results})
    error, calls, _ = drive(delivery().send(thumbs), [mixed, _ok("f2")])
    assert isinstance(error, ConflictError)
    assert "1 of 3 records were refused" in str(error)
    assert len(calls) == 2
    sent, _, _ = drive(delivery().offer(thumbs), [mixed, _ok("f2")])
    assert sent.stored == ("f1", "f2")
    assert isinstance(sent.refused["f0"], ConflictError)


def test_nothing_to_send_is_no_request():
    sent, calls, _ = drive(delivery().send([]), [])
    assert (sent.stored, calls) == ((), [])


def test_reading_plans():
    result, calls, _ = drive(delivery().live_policy(), [response(404, {"error": FAULT})])
    assert result is None
    result, _, _ = drive(delivery().live_policy(), [response(200, {"id": "p1"})])
    assert result == "p1"
    _, calls, _ = drive(delivery().find_step("a/b?c"), [response(404, {"error": FAULT})])
    assert calls == [Call("GET", "/v1/steps/a%2Fb%3Fc")]
    _, calls, _ = drive(delivery().feedback_in_force(task_id="t", who="u"), [response(200, {"feedback": []})])
    assert calls[0].params == {"task_id": "t", "who": "u"}
