"""Erasing a person: no byte of what they said is left in any file."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from thumbwheel.errors import NotFound, StoreError
from thumbwheel.records import Message
from thumbwheel.stores import snapshots
from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_preference, a_step, a_thumb, an_update

SECRET = "my-cat-is-called-Zebulon"
WHO = "pseudonym-of-zoe"


def files_with(folder: Path, text: str) -> list[str]:
    """Names of the files that hold the text's bytes anywhere."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes())


def crowd(store: SqlStore) -> list[str]:
    """1 500 comments of 30 people in random order, so that pages split; every 30th is the person's. Their ids."""
    numbers = list(range(1500))
    random.Random(2).shuffle(numbers)
    said = [
        a_thumb(
            f"id-{number * 7919 % 10007:05d}",
            step=f"s{number}",
            who=WHO if number % 30 == 0 else f"person-{number % 30}",
            comment=f"{SECRET if number % 30 == 0 else 'nothing'} {'x' * (number % 200)}",
        )
        for number in numbers
    ]
    for start in range(0, 1500, 100):
        store.add_feedback(said[start : start + 100], now=NOON)
    return [item.id for item in said if item.who == WHO]


def test_no_byte_is_left_in_the_file_nor_in_its_log(tmp_path: Path) -> None:
    """S3, pitfall: "delete, read, export, restart: still there"."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        ids = crowd(store)
        assert len(ids) == 50
        assert "store.db-wal" in files_with(tmp_path, SECRET)
        reading = store.all_feedback()
        next(reading)  # a stream that is half read keeps no old state alive
        assert store.erase_person(WHO, now=NOON).feedback == 50
        assert files_with(tmp_path, SECRET) == []
        assert files_with(tmp_path, WHO) == []
        assert store.counts()["feedback"] == 1450
    assert files_with(tmp_path, SECRET) == files_with(tmp_path, WHO) == []


def test_snapshots_lose_the_persons_rows_and_their_lineage_goes_on(tmp_path: Path) -> None:
    """S3. One snapshot keeps a row, one has none left, one was moved away by somebody."""
    folder = tmp_path / "snapshots"
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_feedback([a_thumb("f1", who=WHO), a_thumb("f2", who="bob"), a_thumb("f3", who=WHO)], now=NOON)
        mixed = snapshots.write([a_preference(1, "f1", "f2", chosen=SECRET), a_preference(2, "f2")], folder)
        alone = snapshots.write([a_preference(3, "f3", chosen=SECRET)], folder)
        moved = snapshots.write([a_preference(4, "f1", chosen=SECRET)], folder)
        others = snapshots.write([a_preference(5, "f2")], folder)
        for one in (mixed, alone, moved, others):
            store.record_snapshot(one.hash, str(one.path), one.feedback_ids, now=NOON)
        moved.path.unlink()
        store.record_update(an_update("u1", snapshot=mixed.hash))
        store.record_update(an_update("u2", snapshot=others.hash))
        store.record_update(an_update("u3", snapshot=others.hash, parent="u1"))

        erasure = store.erase_person(WHO, now=NOON)

        assert sorted(erasure.snapshots) == sorted([mixed.hash, alone.hash, moved.hash])
        assert erasure.models == ("u1", "u3")
        assert erasure.missing == (str(moved.path),)
        assert files_with(tmp_path, SECRET) == []
        left = sorted(path.name for path in folder.iterdir())
        rest = snapshots.write([a_preference(2, "f2")], folder)
        assert left == sorted([rest.path.name, others.path.name])
        assert store.must_retrain() == ["u1", "u3"]
        assert store.learned_from("f2") == ["u1", "u2", "u3"]
        store.record_update(an_update("u4", snapshot=rest.hash))
        assert store.must_retrain() == ["u1", "u3"]
        with pytest.raises(NotFound):
            snapshots.read(mixed.path)
        again = store.erase_person(WHO, now=NOON)
        assert (again.feedback, again.snapshots, again.models) == (0, (), ())


def test_an_erasure_that_was_cut_short_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, X4. Killed after the rows were deleted, before the snapshot's file and the free pages were."""
    folder = tmp_path / "snapshots"
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_feedback([a_thumb("f1", who=WHO, comment=SECRET)], now=NOON)
        one = snapshots.write([a_preference(1, "f1", chosen=SECRET)], folder)
        store.record_snapshot(one.hash, str(one.path), ["f1"], now=NOON)

        def killed(path: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(snapshots, "remove", killed)
            with pytest.raises(KeyboardInterrupt):
                store.erase_person(WHO, now=NOON)
        assert store.feedback("f1") is None
        assert one.path.name in files_with(tmp_path, SECRET)
        store.erase_person(WHO, now=NOON)
        assert files_with(tmp_path, SECRET) == []


def test_a_damaged_snapshot_stops_the_erasure_before_anything_is_lost(tmp_path: Path) -> None:
    """S3: what cannot be read cannot be cleaned; nothing is deleted until it is known what to do."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_feedback([a_thumb("f1", who=WHO)], now=NOON)
        store.record_snapshot("h1", str(tmp_path / "h1.arrow"), ["f1"], now=NOON)
        (tmp_path / "h1.arrow").write_bytes(b"no arrow")
        with pytest.raises(StoreError, match=r"h1\.arrow"):
            store.erase_person(WHO, now=NOON)
        assert store.counts()["feedback"] == 1
        (tmp_path / "h1.arrow").unlink()
        assert store.erase_person(WHO, now=NOON).feedback == 1


def test_a_reader_of_another_process_that_keeps_the_log_alive_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: never claim that it is gone while it is not."""
    monkeypatch.setattr("thumbwheel.stores.engine.LOCK_WAIT_S", 0.2)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_feedback([a_thumb("f1", who=WHO, comment=SECRET)], now=NOON)
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM feedback").fetchone()
        with pytest.raises(StoreError, match=r"reader of another process.*erase again"):
            store.erase_person(WHO, now=NOON)
        other.execute("ROLLBACK")
        other.close()
        store.erase_person(WHO, now=NOON)
    assert files_with(tmp_path, SECRET) == []


def test_what_others_said_and_the_conversation_stay(tmp_path: Path) -> None:
    """Pitfall: removing an annotator must not remove other labels."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step("s1", state=(Message(role="user", content="hello"),))])
        store.add_feedback(
            [a_thumb("f1", who=WHO), a_thumb("f2", who="bob", supersedes="f1"), a_thumb("f3", who=None)], now=NOON
        )
        store.erase_person(WHO, now=NOON)
        (episode,) = store.episodes()
        assert [item.id for item in episode.feedback] == ["f2", "f3"]


def test_a_step_may_have_the_id_of_erased_feedback(tmp_path: Path) -> None:
    """S3: ids of steps and of feedback are two things."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_feedback([a_thumb("x1", who=WHO)], now=NOON)
        store.erase_person(WHO, now=NOON)
        both = store.submit_steps([a_step("x1")]), store.submit_feedback([a_thumb("x1")], now=NOON)
        assert [future.result(30).inserted for future in both] == [("x1",), ()]
        assert list(both[1].result().conflicts) == ["x1"]
