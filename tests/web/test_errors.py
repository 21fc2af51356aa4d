"""Every way to send something wrong, and the one shape of the answer."""

import json
import sqlite3
from concurrent.futures import Future

import httpx
import pytest

from tests.web.rows import rating, step, thumb
from thumbwheel.config import ServerSettings, Settings
from thumbwheel.stores.base import Receipt
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

PARTS = {"what", "field", "allowed", "got", "next", "message"}
JSON = {"Content-Type": "application/json"}


def error_of(answer: httpx.Response, status: int) -> dict:
    """The error parts, after the shape was checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == PARTS
    assert body["error"]["what"]
    assert body["error"]["next"]
    for part in ("what", "allowed", "next"):
        assert (body["error"][part] or "") in body["error"]["message"]
    return body["error"]


def without(row: dict, field: str) -> dict:
    return {name: value for name, value in row.items() if name != field}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (without(thumb(), "id"), "id"),
        (without(thumb(), "target"), "target"),
        (without(thumb(), "kind"), "kind"),
        (without(thumb(), "at"), "at"),
        (thumb(id=7), "id"),
        (thumb(target={}), "target"),
        (thumb(target={"step": "s1"}), "target.step"),
        (thumb(kind="thum"), "kind"),
        (thumb(kind="os:getcwd"), "kind"),
        (thumb(value={"up": "perhaps"}), "value.up"),
        (thumb(value={"up": True, "down": False}), "value.down"),
        (thumb(value=[1]), "value"),
        (thumb(at="2026-01-01T00:00:00"), "at"),
        (thumb(at="9999-12-31T23:59:59-12:00"), "at"),
        (thumb(role="boss"), "role"),
        (thumb(retracts=True), None),
        (thumb(comment="a\x00b"), "comment"),
        (thumb(who="a\x00b"), "who"),
        (rating("edit", {"text": "a\x00b"}), "value"),
        (rating("stars", {"stars": 6}), "value.stars"),
        (rating("scores", {"scores": {"fluency": 7}}), "value"),
        (rating("choice", {"chosen": "s9"}, shown=["s1", "s2"]), "value"),
        (rating("choice", {"tie": True}), "shown"),
        (rating("ranking", {"order": [["s1"], ["s1"]]}), "value"),
        (rating("click", {"passage_id": "d", "position": 0}), "value.position"),
    ],
)
def test_bad_feedback_is_422_and_stored_nowhere(shared_http, row, field):
    """2xx means durable; otherwise 4xx with the field and the reason."""
    before = shared_http.get("/v1/counts").json()
    error = error_of(shared_http.post("/v1/feedback", json=row), 422)
    assert error["field"] == field
    assert shared_http.get("/v1/counts").json() == before


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (without(step(), "episode_id"), "episode_id"),
        (step(state=[]), "state"),
        (step(state=[{"role": "robot", "content": ""}]), "state.0.role"),
        (step(index=-1), "index"),
        (step(index=10**30), "index"),
        (step(token_ids=[3, 2**31]), "token_ids.1"),
        (step(token_ids=[-1]), "token_ids.0"),
        (step(action={"role": "assistant", "content": "a\x00"}), "action.content"),
        (step(tags={"a": "\x00"}), "tags.a"),
        (step(policy="p1"), "policy"),
        ([], None),
        ("text", None),
        (3, None),
    ],
)
def test_bad_step_is_422(shared_http, row, field):
    assert error_of(shared_http.post("/v1/steps", json=row), 422)["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"id": NaN}',
        b'{"id": -Infinity}',
        b'{"id": "\xff"}',
        b'{"id": "\\ud800"}',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"[" * 5000,
        b'{"index": ' + b"1" * 5000 + b"}",
    ],
    ids=[
        "empty",
        "cut",
        "NaN",
        "infinity",
        "latin-1",
        "surrogate",
        "raw surrogate",
        "BOM",
        "two",
        "deep",
        "huge number",
    ],
)
@pytest.mark.parametrize("path", ["/v1/steps", "/v1/feedback/batch"])
def test_no_json_is_400(shared_http, path, body):
    error_of(shared_http.post(path, content=body, headers=JSON), 400)


def test_a_number_too_large_for_a_float_is_no_number(shared_http):
    """1e999 is JSON and would become infinity, which not every database can hold."""
    body = json.dumps(rating("outcome", {"reward": 0.5})).replace("0.5", "1e999")
    error_of(shared_http.post("/v1/feedback", content=body, headers=JSON), 422)


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}]
)
def test_what_another_site_could_send_unasked_is_415(shared_http, headers):
    """Pages of other sites may post text/plain without asking the server first; JSON they may not."""
    error_of(shared_http.post("/v1/feedback", content=json.dumps(thumb()), headers=headers), 415)


def test_charset_is_no_matter(shared_http):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert shared_http.post("/v1/feedback", content=json.dumps(thumb()), headers=headers).status_code == 201


def test_no_other_origin_by_default(shared_http):
    answer = shared_http.options(
        "/v1/feedback", headers={"Origin": "https://x.test", "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in answer.headers


def test_origins_of_the_settings(store):
    settings = Settings(server=ServerSettings(allow_origins=("https://app.test",)))
    with running(create_app(store, settings)) as url:
        for origin, allowed in (("https://app.test", "https://app.test"), ("https://x.test", None)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            answer = httpx.options(f"{url}/v1/feedback", headers=headers)
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_limits(store):
    """413 over the body limit, announced or not, and over the batch limit; at the limit all is well."""
    settings = Settings(server=ServerSettings(max_body_bytes=2000, max_batch=3))
    fitting = json.dumps(step(action={"role": "assistant", "content": ""}))
    full = step(action={"role": "assistant", "content": "x" * (2000 - len(fitting))})
    with running(create_app(store, settings)) as url, httpx.Client(base_url=url) as http:
        body = json.dumps(full).encode()
        assert len(body) == 2000
        assert http.post("/v1/steps", content=body, headers=JSON).status_code == 201
        error = error_of(http.post("/v1/steps", content=body + b" ", headers=JSON), 413)
        assert "2000" in error["allowed"]
        error_of(http.post("/v1/steps", content=(part for part in [body, b" "]), headers=JSON), 413)
        error_of(http.post("/v1/feedback/batch", json={"feedback": [thumb()] * 4}), 413)
        assert http.post("/v1/feedback/batch", json={"feedback": [thumb()] * 3}).status_code == 200


@pytest.mark.parametrize(
    "body", [[], {}, {"feedback": []}, {"feedback": {}}, {"steps": [1]}, {"feedback": [1], "x": 1}]
)
def test_what_is_no_batch_is_422(shared_http, body):
    assert error_of(shared_http.post("/v1/feedback/batch", json=body), 422)["field"] == "feedback"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/steps/nope", 404),
        ("GET", "/v1/feedback/nope", 404),
        ("GET", "/v1/policy", 404),
        ("GET", "/nope", 404),
        ("GET", "/v1/steps/", 422),
        ("GET", "/v1/steps/a%00b", 422),
        ("GET", "/v1/feedback?task_id=a%00b", 422),
        ("GET", f"/v1/feedback?task_id={'x' * 201}", 422),
        ("GET", "/v1/orphans?older_than_h=nan", 422),
        ("DELETE", "/v1/steps", 405),
        ("GET", "/v1/feedback", 422),
        ("GET", "/v1/feedback?task_id=a&episode_id=b", 422),
        ("GET", "/v1/feedback?task_id=", 422),
        ("GET", "/v1/orphans?older_than_h=soon", 422),
        ("GET", "/v1/orphans?limit=0", 422),
    ],
)
def test_reading_errors_have_the_same_shape(shared_http, method, path, status):
    error_of(shared_http.request(method, path), status)


def test_a_browser_gets_a_page_with_nothing_of_its_own_in_it(shared_http):
    answer = shared_http.get("/<script>alert(1)</script>", headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script>" not in answer.text
    assert shared_http.get("/v1/steps/x", headers={"Accept": "text/html"}).headers["content-type"] == "application/json"


class BrokenStore:
    """A store whose every write fails with the given error, or never ends."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    def submit_steps(self, steps):
        future: Future[Receipt] = Future()
        if self.failure is not None:
            future.set_exception(self.failure)
        return future

    def submit_feedback(self, feedback, *, now):
        raise self.failure

    def counts(self):
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), sqlite3.OperationalError("disk I/O error")]
)
@pytest.mark.parametrize("path", ["/v1/steps", "/v1/steps/batch"])
def test_a_write_that_fails_is_503_with_the_reason(failure, path):
    """S4: never 2xx, never a 500 with the label lost: the client is told to come again."""
    body = step() if path == "/v1/steps" else {"steps": [step()]}
    with running(create_app(BrokenStore(failure), Settings())) as url:
        answer = httpx.post(url + path, json=body)
        error = error_of(answer, 503)
        assert str(failure) in error["what"]
        assert int(answer.headers["retry-after"]) > 0


def test_a_store_that_refuses_at_once_is_503_too():
    with running(create_app(BrokenStore(OSError("gone")), Settings())) as url:
        error_of(httpx.post(f"{url}/v1/feedback", json=thumb()), 503)


def test_a_store_that_never_confirms_is_503():
    settings = Settings(server=ServerSettings(write_timeout_s=0.1))
    with running(create_app(BrokenStore(None), settings)) as url:
        assert "may or may not" in error_of(httpx.post(f"{url}/v1/steps", json=step()), 503)["what"]


def test_a_bug_has_the_shape_too(caplog):
    with running(create_app(BrokenStore(None), Settings())) as url:
        error = error_of(httpx.get(f"{url}/v1/counts"), 500)
        assert "ZeroDivisionError" in error["what"]
    assert "a bug" in caplog.text
