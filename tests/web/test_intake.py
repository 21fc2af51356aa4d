"""Steps and feedback in, over real HTTP into a real file (F1-F5, S4)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import quote

import httpx
import pytest

from tests.web.rows import EVERY_KIND, rating, step, thumb
from thumbwheel.config import RedactSettings, ServerSettings, Settings
from thumbwheel.errors import RegistryError, SettingError
from thumbwheel.feedback import kinds
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running


def test_new_then_again_then_changed(http, store):
    """F4: 201 for new, 200 for the same again, 409 for another payload under the id; the first one is kept."""
    assert http.post("/v1/steps", json=step()).status_code == 201
    again = http.post("/v1/steps", json=step())
    assert (again.status_code, again.json()) == (200, {"id": "s1", "status": "duplicate"})
    changed = http.post("/v1/steps", json=step(surface="other"))
    assert changed.status_code == 409
    assert changed.json()["error"]["field"] == "id"
    assert store.step("s1").surface is None


def test_every_kind_was_thought_of():
    """F1, F2: the round trip below covers every registered kind."""
    assert set(EVERY_KIND) == {name for name in kinds if not name.startswith("test_")}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_round_trips(shared_http, kind):
    """F1, F2, F3: what comes out is what went in."""
    sent = EVERY_KIND[kind]
    assert shared_http.post("/v1/steps", json=step()).is_success
    answer = shared_http.post("/v1/feedback", json=sent)
    assert (answer.status_code, answer.json()) == (201, {"id": kind, "status": "stored"})
    got = shared_http.get(f"/v1/feedback/{kind}").json()
    assert {name: got[name] for name in sent if name != "target"} == {n: v for n, v in sent.items() if n != "target"}
    assert {name: id for name, id in got["target"].items() if id} == sent["target"]


def test_received_at_is_the_servers(http, clock):
    """F3: a client's `received_at` is not believed, its `at` is kept."""
    http.post("/v1/feedback", json=thumb(received_at="1999-01-01T00:00:00Z"))
    got = http.get("/v1/feedback/f1").json()
    assert datetime.fromisoformat(got["received_at"]) == clock.time
    assert datetime.fromisoformat(got["at"]) == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("target", [{"step_id": "s1"}, {"episode_id": "e1"}, {"task_id": "t1"}])
def test_thumb_before_its_response(http, store, target):
    """F4: accepted at once as waiting, joined when the response arrives, never "does not exist"."""
    early = http.post("/v1/feedback", json=thumb(target=target))
    assert (early.status_code, early.json()["status"]) == (201, "waiting")
    assert http.get("/v1/counts").json()["counts"]["waiting"] == 1
    assert http.post("/v1/steps", json=step()).status_code == 201
    assert http.get("/v1/counts").json()["counts"]["waiting"] == 0
    assert [f.id for episode in store.episodes() for f in episode.feedback] == ["f1"]


def test_the_same_webhook_replayed_concurrently(http, store):
    """F4: one row; a different payload under the same key is 409 and changes nothing."""
    payloads = [thumb()] * 24 + [thumb(value={"up": False})] * 8

    def post(payload):
        return http.post("/v1/feedback", json=payload).status_code

    http.post("/v1/feedback", json=thumb())
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(post, payloads))
    assert statuses == [200] * 24 + [409] * 8
    assert [f.value for f in store.all_feedback()] == [{"up": True}]


def test_first_sending_raced(http, store):
    """F4: of many first sendings at once exactly one is new."""
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: http.post("/v1/feedback", json=thumb()).status_code, range(32)))
    assert sorted(statuses) == [200] * 31 + [201]
    assert store.counts()["feedback"] == 1


def test_batch_keeps_the_good_rows(http, store):
    """A bad row costs only itself; every row gets its own result, in order."""
    rows = [thumb("a"), thumb("b", kind="thum"), {"id": "c"}, thumb("a"), thumb("a", value={"up": False}), 7]
    http.post("/v1/steps", json=step())
    answer = http.post("/v1/feedback/batch", json={"feedback": rows})
    assert answer.status_code == 207
    body = answer.json()
    assert [(r["id"], r["status"]) for r in body["results"]] == [
        ("a", "stored"),
        ("b", "invalid"),
        ("c", "invalid"),
        ("a", "duplicate"),
        ("a", "conflict"),
        (None, "invalid"),
    ]
    assert [r.get("error", {}).get("field") for r in body["results"]] == [None, "kind", "target", None, "id", None]
    assert {name: body[name] for name in ("stored", "waiting", "duplicate", "conflict", "invalid")} == {
        "stored": 1,
        "waiting": 0,
        "duplicate": 1,
        "conflict": 1,
        "invalid": 3,
    }
    assert store.counts()["feedback"] == 1


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([step("a"), step("b")], 200),
        ([step("s1"), step("s1")], 200),
        ([step("a"), {}], 207),
        ([{}, {}], 422),
        ([step("s1", surface="x")], 409),
        ([step("s1", surface="x"), {}], 422),
    ],
)
def test_batch_status(http, rows, status):
    """2xx only where something is on disk: 200 all of it, 207 some of it, else 4xx."""
    http.post("/v1/steps", json=step("s1"))
    answer = http.post("/v1/steps/batch", json={"steps": rows})
    assert answer.status_code == status
    assert len(answer.json()["results"]) == len(rows)


def test_rows_of_a_batch_wait_for_each_other(http):
    """F4: a thumb and its step in two batches, the thumb first."""
    assert http.post("/v1/feedback/batch", json={"feedback": [thumb()]}).json()["waiting"] == 1
    http.post("/v1/steps/batch", json={"steps": [step()]})
    assert http.get("/v1/counts").json()["counts"]["waiting"] == 0


def test_a_correction_supersedes_and_a_retraction_takes_back(http):
    """F1: the rating restored on reload is the corrected one; a retracted one is gone; history stays readable."""
    http.post("/v1/steps", json=step())
    http.post("/v1/feedback", json=thumb("f1"))
    http.post("/v1/feedback", json=thumb("f2", value={"up": False}, supersedes="f1"))
    params = {"task_id": "t1", "who": "u1", "kind": "thumb"}
    assert [f["id"] for f in http.get("/v1/feedback", params=params).json()["feedback"]] == ["f2"]
    http.post("/v1/feedback", json=thumb("f3", value=None, supersedes="f2", retracts=True))
    assert http.get("/v1/feedback", params=params).json()["feedback"] == []
    assert http.get("/v1/feedback/f1").json()["value"] == {"up": True}


def test_text_of_all_kinds_survives(http):
    """Emoji, combining accents, right-to-left text, quotes and control characters come back as they went in."""
    text = 'Some text yeah 🚀 rocket, e\u0301, 👨\u200d👩\u200d👧, שלום, "q" \\ \t\n\x7f\u2028'
    http.post("/v1/feedback", json=rating("edit", {"text": text}, comment=text))
    got = http.get("/v1/feedback/edit").json()
    assert (got["value"]["text"], got["comment"]) == (text, text)


@pytest.mark.parametrize("id", ["a/b?c#d", "batch", "%2F", "ä 🚀", "x" * 200])
def test_any_id_can_be_asked_for(shared_http, id):
    assert shared_http.post("/v1/feedback", json=thumb(id)).status_code == 201
    assert shared_http.get(f"/v1/feedback/{quote(id, safe='')}").json()["id"] == id


def test_personal_details_are_taken_out_before_the_disk(store, tmp_path):
    """S4: with 'redact.enabled' no byte of them reaches the file, and a replay is still the same record."""
    settings = Settings(redact=RedactSettings(enabled=True))
    said = "write to jane.roe@example.org"
    action = {"role": "assistant", "content": said}
    with running(create_app(store, settings)) as url, httpx.Client(base_url=url) as http:
        assert http.post("/v1/steps", json=step(action=action)).status_code == 201
        assert http.post("/v1/steps", json=step(action=action)).status_code == 200
        rows = [rating("edit", {"text": said}, comment=said)]
        assert http.post("/v1/feedback/batch", json={"feedback": rows}).status_code == 200
        assert http.get("/v1/steps/s1").json()["action"]["content"] == "write to <email>"
        assert http.get("/v1/feedback/edit").json()["value"] == {"text": "write to <email>"}
    assert b"jane.roe" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_kind_from_the_settings(store, tmp_path, monkeypatch):
    """A kind of one's own is accepted under "module:attr" when the settings list it, and checked."""
    (tmp_path / "own_kinds.py").write_text(
        "from thumbwheel.feedback import Kind\nclass Nod(Kind):\n    nods: int\nnot_a_kind = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings(server=ServerSettings(kinds=("own_kinds:Nod",)))
    with running(create_app(store, settings)) as url:
        good = httpx.post(f"{url}/v1/feedback", json=rating("own_kinds:Nod", {"nods": 2}))
        bad = httpx.post(f"{url}/v1/feedback", json=rating("own_kinds:Nod", {"nods": "x"}, id="b"))
    assert (good.status_code, bad.status_code) == (201, 422)
    assert bad.json()["error"]["field"] == "value.nods"
    with pytest.raises(SettingError, match="no feedback kind"):
        create_app(store, Settings(server=ServerSettings(kinds=("own_kinds:not_a_kind",))))
    with pytest.raises(RegistryError):
        create_app(store, Settings(server=ServerSettings(kinds=("own_kinds:absent",))))


def test_a_stranger_cannot_make_the_server_import(http, tmp_path, monkeypatch):
    """A kind that names a module is refused without importing it."""
    (tmp_path / "intruder.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    answer = http.post("/v1/feedback", json=rating("intruder:X", {}))
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "kind"
