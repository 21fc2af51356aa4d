"""The server as a process: it starts without torch, stops in peace, and loses nothing when it is killed (S4, X4)."""

import json
import resource
import socket
import subprocess
import sys
import threading
from time import perf_counter

import httpx
import pytest

from tests.web.rows import step, thumb
from thumbwheel.config import Settings
from thumbwheel.errors import SettingError
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.server import server_process
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import listen, running, url_of


def test_starts_without_the_training_libraries():
    """Server, store and client import none of them, not even where they are installed."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'peft', 'sklearn', 'matplotlib', 'gymnasium', 'vllm'):\n"
        "    sys.modules[name] = None\n"
        "import thumbwheel.web.serve, thumbwheel.client\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_client_needs_no_server_libraries():
    """F5: an application that only sends needs httpx and pydantic."""
    code = (
        "import sys\n"
        "for name in ('torch', 'sqlalchemy', 'fastapi', 'uvicorn', 'numpy', 'alembic', 'jinja2', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"
        "import thumbwheel.client\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kill_9_loses_nothing_acknowledged(tmp_path):
    """S4: four clients post as fast as they can, the server is killed in the middle; every id that got a 2xx is there.

    Three rounds on the same file: the server must also start again on what the kill left.
    """
    acknowledged: set[str] = set()
    for round in range(3):
        with server_process(tmp_path / "t.db") as server:
            enough = threading.Event()

            def post(worker: int, round: int = round, url: str = server.url, enough: threading.Event = enough) -> None:
                with httpx.Client(base_url=url) as http:
                    for n in range(100_000):
                        id = f"{round}-{worker}-{n}"
                        try:
                            answer = http.post("/v1/feedback", json=thumb(id))
                        except httpx.TransportError:
                            return
                        assert answer.status_code == 201, answer.text
                        acknowledged.add(id)
                        if n == 20:
                            enough.set()

            workers = [threading.Thread(target=post, args=(n,)) for n in range(4)]
            for worker in workers:
                worker.start()
            assert enough.wait(60)
            server.kill()
            for worker in workers:
                worker.join()
    store = open_store(f"sqlite:///{tmp_path}/t.db", create=False)
    stored = {feedback.id for feedback in store.all_feedback()}
    store.close()
    assert len(acknowledged) >= 3 * 21
    assert acknowledged <= stored


def test_two_servers_share_a_file(tmp_path):
    """S4: writers in two processes while a third imports; no 500, no 503, none lost."""
    with server_process(tmp_path / "t.db") as one, server_process(tmp_path / "t.db") as two:
        statuses: list[int] = []

        def post(url: str, name: str) -> None:
            with httpx.Client(base_url=url, timeout=60) as http:
                statuses.extend(http.post("/v1/feedback", json=thumb(f"{name}-{n}")).status_code for n in range(25))

        def post_batches() -> None:
            with httpx.Client(base_url=one.url, timeout=60) as http:
                for start in range(0, 3000, 500):
                    rows = [step(f"s-{n}", task_id=f"t-{n}", episode_id=f"e-{n}") for n in range(start, start + 500)]
                    statuses.append(http.post("/v1/steps/batch", json={"steps": rows}).status_code)

        work = [threading.Thread(target=post, args=(url, name)) for url, name in ((one.url, "a"), (two.url, "b"))]
        work.append(threading.Thread(target=post_batches))
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert sorted(statuses) == [200] * 6 + [201] * 50
        counts = httpx.get(f"{two.url}/v1/counts").json()["counts"]
        assert (counts["feedback"], counts["steps"]) == (50, 3000)


def test_a_term_signal_stops_in_peace(tmp_path):
    """Exit status 0, and the store was closed: SQLite leaves no log file behind."""
    with server_process(tmp_path / "t.db") as server:
        assert httpx.post(f"{server.url}/v1/feedback", json=thumb()).status_code == 201
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["t.db"]


def test_a_full_disk_is_503_and_writing_goes_on_once_there_is_space(tmp_path):
    """S4: with the file at its size limit nothing is acknowledged and health says so; afterwards all is well again."""
    with server_process(tmp_path / "t.db") as server, httpx.Client(base_url=server.url) as http:
        assert http.post("/v1/feedback", json=thumb("before")).status_code == 201
        pid = server.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        answer = http.post("/v1/steps", json=step(action={"role": "assistant", "content": "x" * 100_000}))
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["what"]
        assert http.get("/health").status_code == 503
        assert http.get("/v1/steps/s1").status_code == 404
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert http.get("/health").status_code == 200
        assert http.post("/v1/steps", json=step()).status_code == 201
        assert http.get("/v1/feedback/before").status_code == 200


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(SettingError, match="cannot listen") as raised:
            listen("127.0.0.1", other.getsockname()[1])
        assert raised.value.field == "server.port"


def test_url_of_a_socket_open_to_all():
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_answer_waits_for_no_acknowledgement(store):
    """Head and body of an answer leave at once: without TCP_NODELAY every answer takes 40 ms longer."""
    with running(create_app(store, Settings())) as url, httpx.Client(base_url=url) as http:
        assert http.get("/v1/steps/absent").status_code == 404
        took = []
        for _ in range(20):
            start = perf_counter()
            http.get("/v1/steps/absent")
            took.append(perf_counter() - start)
    assert min(took) < 0.035


def test_a_client_that_hangs_up_loses_nothing(store):
    """The write goes on though nobody waits for the answer, and the next request is served."""
    with running(create_app(store, Settings())) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(thumb()).encode()
        head = f"POST /v1/feedback HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        for _ in range(20):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(head.encode() + body)
        assert httpx.post(f"{url}/v1/feedback", json=thumb("other")).status_code == 201
        assert httpx.post(f"{url}/v1/feedback", json=thumb()).status_code == 200
