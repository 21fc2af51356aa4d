"""What was acknowledged stays: kill -9, several processes, a full disk, a locked file, a bad neighbour."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from thumbwheel.errors import StoreError
from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_step, a_thumb

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}

WRITE_UNTIL_KILLED = """
import os, sys, threading
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_thumb
store = open_store(sys.argv[1])
def write(worker):
    for number in range(10**9):
        id = f"{sys.argv[2]}-{worker}-{number}"
        store.add_feedback([a_thumb(id)], now=NOON)
        os.write(1, (id + "\\n").encode())  # one call a line: a shared text stream may flush another thread's line late
for worker in range(3):
    threading.Thread(target=write, args=(worker,)).start()
"""

WRITE_SHARED_AND_OWN = """
import sys
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_step, a_thumb
store = open_store(sys.argv[1])
new = 0
for number in range(30):
    new += len(store.add_feedback([a_thumb(f"shared-{number}")], now=NOON).inserted)
    store.add_steps([a_step(f"{sys.argv[2]}-{number}", episode=f"{sys.argv[2]}-{number}", task=sys.argv[2])])
store.close()
print(new)
"""

FILL_UNDER_A_LIMIT = """
import resource, sys
from thumbwheel.errors import StoreError
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_thumb
store = open_store(sys.argv[1])
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limit[1]))
kept, failures = [], []
for number in range(60):
    try:
        store.add_feedback([a_thumb(f"f{number}", comment="x" * 20_000)], now=NOON)
        kept.append(f"f{number}")
    except StoreError as error:
        failures.append(str(error))
assert kept and failures, (kept, failures)
assert all("Check the disk" in text or "Free some space" in text for text in failures), failures[0]
assert sorted(item.id for item in store.all_feedback()) == sorted(kept)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
store.add_feedback([a_thumb("after")], now=NOON)
kept.append("after")
store.close()
print(" ".join(kept))
"""


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs `script`."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with open_store(url) as opened:
        yield opened


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")
def test_kill_9_loses_nothing_acknowledged(url: str) -> None:
    """S4, X4."""
    dice = random.Random(11)
    acknowledged: list[str] = []
    for life in range(4):
        child = started(WRITE_UNTIL_KILLED, url, life)
        assert child.stdout is not None
        acknowledged.append(child.stdout.readline().strip())
        time.sleep(dice.uniform(0.02, 0.3))
        child.kill()
        rest, errors = child.communicate(timeout=30)
        assert errors == ""
        acknowledged += [line for line in rest.split("\n")[:-1] if line]
        with open_store(url, create=False) as store:
            stored = {item.id for item in store.all_feedback()}
        assert set(acknowledged) <= stored
        assert len(stored) - len(acknowledged) <= 3 * (life + 1)  # at most one write a thread was on its way
    assert len(acknowledged) > 4


def test_processes_share_one_file(url: str) -> None:
    """S1, F4. Opened (and migrated) by four processes at once; the replays among them are one row each."""
    children = [started(WRITE_SHARED_AND_OWN, url, f"p{number}") for number in range(4)]
    outcomes = [child.communicate(timeout=120) for child in children]
    assert [errors for _, errors in outcomes] == [""] * 4
    assert sum(int(out) for out, _ in outcomes) == 30
    with open_store(url, create=False) as store:
        counts = store.counts()
    assert (counts["feedback"], counts["steps"], counts["episodes"]) == (30, 120, 120)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_file_size_limit_fails_the_write_and_the_store_goes_on_when_it_is_lifted(url: str) -> None:
    """Pitfall: bad input, full disk: a clear error, nothing acknowledged is lost."""
    out, errors = started(FILL_UNDER_A_LIMIT, url).communicate(timeout=120)
    assert errors == ""
    with open_store(url, create=False) as store:
        assert sorted(item.id for item in store.all_feedback()) == sorted(out.split())


def test_a_full_database_says_so_and_goes_on(url: str) -> None:
    """S4. The limit of pages stands for the disk: SQLite reports both as full."""
    pages = 120

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(Engine, "connect", limit)
    try:
        with open_store(url) as store:
            kept = _fill(store)
            pages = 1_000_000
            store.add_feedback([a_thumb("after")], now=NOON)
    finally:
        event.remove(Engine, "connect", limit)
    with open_store(url) as store:
        assert [item.id for item in store.all_feedback()] == [*kept, "after"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_says_so_and_the_store_goes_on_when_space_returns(tiny_disk: Path) -> None:
    """S4."""
    ballast = tiny_disk / "ballast"
    with open_store(f"sqlite:///{tiny_disk}/store.db") as store:
        store.add_feedback([a_thumb("first")], now=NOON)
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(StoreError, match=r"full|Check the disk"):
            store.add_feedback([a_thumb("lost", comment="x" * 50_000)], now=NOON)
        assert [item.id for item in store.all_feedback()] == ["first"]
        ballast.unlink()
        store.add_feedback([a_thumb("second", comment="x" * 50_000)], now=NOON)
    with open_store(f"sqlite:///{tiny_disk}/store.db") as store:
        assert [item.id for item in store.all_feedback()] == ["first", "second"]


def test_a_lock_of_another_process_is_waited_for(store: SqlStore, url: str) -> None:
    """Pitfall: "database is locked", label missing. What gathered in the meantime is one commit."""
    commits: list[object] = []

    def count(connection: object) -> None:
        commits.append(connection)

    event.listen(Engine, "commit", count)
    try:
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        first = store.submit_feedback([a_thumb("f0")], now=NOON)
        time.sleep(0.2)  # the writer holds f0 and waits for the lock; the others gather behind it
        rest = [store.submit_feedback([a_thumb(f"f{number}")], now=NOON) for number in range(1, 65)]
        time.sleep(0.1)
        assert not first.done()
        other.execute("COMMIT")
        other.close()
        assert [future.result(30).inserted for future in [first, *rest]] == [(f"f{number}",) for number in range(65)]
        assert len(commits) == 2
    finally:
        event.remove(Engine, "commit", count)


def test_a_lock_that_is_never_released_is_told(store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4."""
    monkeypatch.setattr("thumbwheel.stores.engine.LOCK_WAIT_S", 0.2)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"locked by another process.*try again"):
        store.add_feedback([a_thumb("f1")], now=NOON)
    assert store.counts()["feedback"] == 0  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert store.add_feedback([a_thumb("f1")], now=NOON).inserted == ("f1",)


def test_a_bad_write_does_not_fail_its_neighbours(store: SqlStore, url: str) -> None:
    """S4. A trigger stands for whatever the database may refuse."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute(
        "CREATE TRIGGER no_bad BEFORE INSERT ON feedback WHEN NEW.id LIKE 'bad%' BEGIN SELECT RAISE(ABORT, 'not this'); END"
    )
    other.execute("BEGIN IMMEDIATE")
    names = ["f1", "bad1", "f2", "f3", "bad2", "f4"]
    futures = {name: store.submit_feedback([a_thumb(name)], now=NOON) for name in names}
    time.sleep(0.1)
    other.execute("COMMIT")
    other.close()
    for name, future in futures.items():
        if name.startswith("bad"):
            with pytest.raises(StoreError, match="not this"):
                future.result(30)
        else:
            assert future.result(30).inserted == (name,)
    assert sorted(item.id for item in store.all_feedback()) == ["f1", "f2", "f3", "f4"]


def test_a_cancelled_write_is_not_done(store: SqlStore, url: str) -> None:
    """S4. A client that went away before its turn was told nothing."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    first = store.submit_feedback([a_thumb("f1")], now=NOON)
    time.sleep(0.1)
    second = store.submit_feedback([a_thumb("f2")], now=NOON)
    assert second.cancel()
    assert not first.cancel()  # on its way already
    other.execute("COMMIT")
    other.close()
    assert first.result(30).inserted == ("f1",)
    assert store.add_feedback([a_thumb("f3")], now=NOON).inserted == ("f3",)
    assert [item.id for item in store.all_feedback()] == ["f1", "f3"]


def test_closing_writes_what_was_queued_and_refuses_more(url: str) -> None:
    """S4."""
    store = open_store(url)
    futures = [store.submit_steps([a_step(f"s{number}")]) for number in range(50)]
    store.close()
    store.close()
    assert all(future.result(0).inserted for future in futures)
    for act in (lambda: store.add_steps([a_step("late")]), lambda: store.promote("v1", now=NOON), store.counts):
        with pytest.raises(StoreError, match="closed"):
            act()
    with open_store(url) as again:
        assert again.counts()["steps"] == 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_open_its_own(store: SqlStore) -> None:
    """S4. Without this its write would wait for ever for a thread that did not survive the fork."""
    child = os.fork()
    if child == 0:
        try:
            store.submit_steps([a_step("s1")])
        except StoreError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_large_import_does_not_starve_single_writes(store: SqlStore) -> None:
    """Pitfall: 4 workers writing during a 30 MB import lost labels."""
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            store.add_steps([a_step(f"big{number}-{n}", text="x" * 1000, episode=f"b{number}") for n in range(500)])
            number += 1

    loading = threading.Thread(target=load)
    loading.start()
    waits = []
    for number in range(20):
        began = time.monotonic()
        store.add_feedback([a_thumb(f"f{number}")], now=NOON)
        waits.append(time.monotonic() - began)
    stop.set()
    loading.join()
    assert store.counts()["feedback"] == 20
    assert max(waits) < 5


def _fill(store: SqlStore) -> list[str]:
    """Write until it is refused; the ids that were acknowledged."""
    kept: list[str] = []

    def write() -> None:
        while True:
            store.add_feedback([a_thumb(f"f{len(kept)}", comment="x" * 5000)], now=NOON)
            kept.append(f"f{len(kept)}")

    with pytest.raises(StoreError, match=r"full .*Free some space"):
        write()
    assert kept
    return kept
