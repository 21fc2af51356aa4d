"""States out, and what the API says about itself."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.web.rows import rating, step, thumb
from thumbwheel.feedback import kinds
from thumbwheel.stores.base import PolicyVersion
from thumbwheel.web import openapi


def test_a_vote_is_shown_again_after_reload(http):
    """The same state after a reload: one's own, not another's."""
    http.post("/v1/steps", json=step())
    http.post("/v1/feedback", json=thumb("mine", who="u1"))
    http.post("/v1/feedback", json=thumb("theirs", who="u2", value={"up": False}))
    http.post("/v1/feedback", json=rating("stars", {"stars": 2}, id="stars", who="u1"))
    for params in ({"task_id": "t1"}, {"episode_id": "e1"}):
        seen = http.get("/v1/feedback", params={**params, "who": "u1", "kind": "thumb"}).json()
        assert [f["id"] for f in seen["feedback"]] == ["mine"]
        assert len(http.get("/v1/feedback", params=params).json()["feedback"]) == 3
    assert http.get("/v1/feedback", params={"task_id": "t9"}).json() == {"feedback": [], "more": False}


def test_orphans_after_n_hours(http, clock):
    """F4: feedback whose target does not come is listed once it has waited longer than the setting (24 h)."""
    http.post("/v1/feedback", json=thumb("lost"))
    http.post("/v1/feedback", json=thumb("lost2"))
    assert http.get("/v1/orphans").json()["feedback"] == []
    clock.time += timedelta(hours=23)
    assert http.get("/v1/orphans").json()["feedback"] == []
    assert len(http.get("/v1/orphans", params={"older_than_h": 22}).json()["feedback"]) == 2
    clock.time += timedelta(hours=2)
    assert [f["id"] for f in http.get("/v1/orphans").json()["feedback"]] == ["lost", "lost2"]
    cut = http.get("/v1/orphans", params={"limit": 1}).json()
    assert ([f["id"] for f in cut["feedback"]], cut["more"]) == (["lost"], True)
    http.post("/v1/steps", json=step())
    assert http.get("/v1/orphans").json()["feedback"] == []


def test_the_live_policy(http, store):
    """W3: the id that belongs into the next steps' `policy_version`."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    store.add_version(PolicyVersion("p1", "policy", None, "folder", "candidate", None, None, at))
    assert http.get("/v1/policy").status_code == 404
    store.promote("p1", now=at)
    assert http.get("/v1/policy").json()["id"] == "p1"


def test_health_says_what_it_tried(http, clock):
    body = http.get("/health").json()
    assert body["status"] == "ok"
    assert body["store"]["writable"] is True
    assert body["store"]["schema_version"]
    assert datetime.fromisoformat(body["time"]) == clock.time


def test_health_of_a_store_that_cannot_write(http, store):
    store.close()
    answer = http.get("/health")
    assert answer.status_code == 503
    assert "closed" in answer.json()["error"]["what"]


def test_openapi_is_whole(shared_http):
    """Every reference leads somewhere, every call has an id of its own, a summary and its responses."""
    document = shared_http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference
    calls = {(method, path): call for path, methods in document["paths"].items() for method, call in methods.items()}
    assert {path for _, path in calls} == {
        "/health",
        "/v1/counts",
        "/v1/feedback",
        "/v1/feedback/batch",
        "/v1/feedback/{id}",
        "/v1/orphans",
        "/v1/policy",
        "/v1/steps",
        "/v1/steps/batch",
        "/v1/steps/{id}",
    }
    ids = [call["operationId"] for call in calls.values()]
    assert len(set(ids)) == len(ids)
    for (method, path), call in calls.items():
        assert call["summary"], path
        assert call["responses"], path
        assert ("requestBody" in call) == (method == "post"), path


def _references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


@pytest.mark.parametrize("path", ["/v1/steps", "/v1/feedback", "/v1/steps/batch", "/v1/feedback/batch"])
def test_every_example_is_accepted(shared_http, path):
    document = shared_http.get("/openapi.json").json()
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert content["examples"]
    for name, example in content["examples"].items():
        assert shared_http.post(path, json=example["value"]).status_code in (200, 201), name


def test_every_kind_has_an_example():
    assert set(openapi.VALUES) == {name for name in kinds if not name.startswith("test_")}


def test_every_status_that_can_come_is_documented(shared_http):
    """What the tests of errors provoke is in the document."""
    calls = shared_http.get("/openapi.json").json()["paths"]
    assert {"200", "201", "400", "409", "413", "415", "422", "503"} <= set(calls["/v1/feedback"]["post"]["responses"])
    assert {"200", "207", "400", "409", "413", "415", "422", "503"} <= set(
        calls["/v1/steps/batch"]["post"]["responses"]
    )


def test_the_page_for_people_needs_no_other_site(shared_http):
    page = shared_http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert "POST /v1/feedback" in page.text
    assert "step_mark" in page.text
    assert shared_http.get("/", follow_redirects=True).text == page.text
