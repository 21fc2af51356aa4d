"""The client against a real server: both sorts, retries over a lost answer, a server that dies and comes back (F4, F5)."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from thumbwheel.client import AsyncClient, Client
from thumbwheel.config import Settings
from thumbwheel.errors import ConflictError, NotFound, RecordError, SettingError, Undelivered
from thumbwheel.recorder import Recorder
from thumbwheel.records import Target
from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import listen, running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    yield store
    store.close()


@pytest.fixture
def url(store: SqlStore) -> Iterator[str]:
    with running(create_app(store, Settings())) as url:
        yield url


def test_a_few_lines_are_enough(url, store):
    """F5: what is returned is what is stored, context included (F3)."""
    with Client(url, surface="chat", policy_version="p7") as client:
        step = client.step("How do I undo my last commit?", "Run `git reset --soft HEAD~1`.")
        thumb = client.thumb(step, up=True, who="u1")
        assert store.step(step.id) == step
        assert client.find_step(step.id) == step
        stored = client.find_feedback(thumb.id)
        assert stored.model_copy(update={"received_at": None}) == thumb
        assert stored.received_at is not None
        [episode] = store.episodes()
        assert [f.id for f in episode.feedback] == [thumb.id]


def test_a_rating_is_restored_corrected_and_retracted(url):
    with Client(url, who="u1") as client:
        step = client.step("q", "a")
        thumb = client.thumb(step, up=True)
        better = client.correct(thumb, {"up": False})
        [seen] = client.feedback_in_force(task_id=step.task_id, who="u1", kind="thumb")
        assert (seen.id, seen.value) == (better.id, {"up": False})
        client.retract(better)
        assert client.feedback_in_force(task_id=step.task_id) == []


def test_orphans_health_counts_and_the_live_policy(url):
    with Client(url) as client:
        lost = client.thumb(Target(task_id="never"), up=True)
        assert [f.id for f in client.orphans(older_than_h=0)] == [lost.id]
        assert client.orphans() == []
        assert client.counts()["waiting"] == 1
        assert client.health()["status"] == "ok"
        assert client.live_policy() is None


def test_a_batch_is_sent_together(url, store):
    with Client(url, batch_size=10) as client:
        with client.batch() as batch:
            for n in range(25):
                batch.thumb(batch.step(f"q{n}", "a"), up=n % 2 == 0)
            assert store.counts()["steps"] == 0
        assert (store.counts()["steps"], store.counts()["feedback"], store.counts()["waiting"]) == (25, 25, 0)
        with pytest.raises(RecordError), client.batch() as batch:
            batch.stars(batch.step("q", "a"), 6)
        assert store.counts()["steps"] == 25


def test_typed_errors_with_the_servers_words(url):
    with Client(url) as client:
        thumb = client.thumb("s1", up=True)
        with pytest.raises(ConflictError, match="stored already with another content"):
            client.thumb("s1", up=False, id=thumb.id)
        with pytest.raises(RecordError, match="no feedback kind 'their_pkg:Nod'") as raised:
            client.feedback("s1", "their_pkg:Nod", {})
        assert raised.value.field == "kind"
        with pytest.raises(NotFound, match="no step 'nope'"):
            client.find_step("nope")
        good = Recorder().thumb("s1", up=True)
        with pytest.raises(ConflictError, match="1 of 2 records were refused"):
            client.send([good, thumb.model_copy(update={"value": {"up": False}})])
        assert client.find_feedback(good.id)
        assert client.offer([good]).duplicate == (good.id,)


class Forgetful(httpx.HTTPTransport):
    """Sends the request, and loses the first answers."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.losses > 0:
            self.losses -= 1
            response.close()
            raise httpx.ReadError("connection reset", request=request)
        return response


def test_a_lost_answer_stores_once(url, store):
    """F4: the server had it on disk when the connection broke; the retry is a duplicate, not a second label."""
    with Client(url, transport=Forgetful(2), backoff_s=0.01) as client:
        client.thumb("s1", up=True)
    assert store.counts()["feedback"] == 1


def test_a_server_that_comes_back(store):
    """The call waits out the restart and then succeeds; without one it says so, and the record can be sent later."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    client = Client(f"http://127.0.0.1:{port}", retries=2, backoff_s=0.01)
    with client, pytest.raises(Undelivered, match="did not answer in 3 tries") as raised:
        client.thumb("s1", up=True)
    kept = raised.value.records
    made = []
    with Client(f"http://127.0.0.1:{port}", retries=12, backoff_s=0.05) as client:
        with running(create_app(store, Settings()), port=port):
            client.thumb("s1", up=True, id="before")
        caller = threading.Thread(target=lambda: made.append(client.thumb("s1", up=True, id="during")))
        caller.start()
        with running(create_app(store, Settings()), port=port):
            caller.join(60)
            assert client.send(kept).waiting == (kept[0].id,)
    assert [feedback.id for feedback in made] == ["during"]
    assert {feedback.id for feedback in store.all_feedback()} == {"before", "during", kept[0].id}


def test_one_client_in_many_threads(url, store):
    with Client(url) as client:
        threads = [threading.Thread(target=client.step, args=("q", f"a{n}")) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert store.counts()["steps"] == 16


def test_the_async_client_does_the_same(url, store):
    async def go() -> None:
        async with AsyncClient(url, who="u1", surface="chat") as client:
            step = await client.step("q", "a")
            thumbs = await asyncio.gather(*(client.thumb(step, up=True, who=f"u{n}") for n in range(8)))
            assert {f.id for f in await client.feedback_in_force(task_id=step.task_id)} == {f.id for f in thumbs}
            better = await client.correct(thumbs[0], {"up": False})
            assert (await client.find_feedback(better.id)).supersedes == thumbs[0].id
            async with client.batch() as batch:
                batch.choice(
                    [batch.step("q", "a", task_id="t"), batch.step("q", "b", task_id="t", attempt=1)], tie=True
                )
            with pytest.raises(ConflictError):
                await client.step("other", "a", id=step.id)
            with pytest.raises(NotFound):
                await client.find_step("nope")
            assert (await client.health())["status"] == "ok"
            assert await client.live_policy() is None
            assert (await client.counts())["steps"] == 3

    asyncio.run(go())
    assert store.counts()["feedback"] == 10


def test_the_async_client_gives_up_in_the_same_words():
    async def go() -> None:
        async with AsyncClient("http://127.0.0.1:9", retries=1, backoff_s=0.01) as client:
            with pytest.raises(Undelivered, match="2 tries") as raised:
                await client.thumb("s1", up=True)
            assert len(raised.value.records) == 1

    asyncio.run(go())


def test_both_clients_have_every_method_of_the_recorder():
    verbs = {name for name, thing in vars(Recorder).items() if callable(thing) and not name.startswith("_")}
    assert verbs <= {name for name in vars(AsyncClient) if not name.startswith("_")}
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public == {name for name in dir(AsyncClient) if not name.startswith("_")}


@pytest.mark.parametrize("url", ["localhost:8321", "", "ftp://x", "http://", "http://x:port", None])
def test_an_address_that_is_none(url):
    with pytest.raises(SettingError, match="address is not valid"):
        Client(url)


def test_a_trailing_slash_is_no_matter(url):
    with Client(url + "/") as client:
        assert client.counts()["steps"] == 0
