"""Snapshots: content-addressed, immutable, lazily read, byte for byte."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from thumbwheel.errors import DataError, NotFound, StoreError
from thumbwheel.records import Demonstration, Labelled, Message, ProcessLabelled, Record, ToolCall, Transition
from thumbwheel.stores import snapshots
from thumbwheel.testing.samples import a_preference, a_step

PROMPT = (Message(role="user", content="Q 🚀"),)
REPLY = Message(role="assistant", content="A é\u2028\n")


def one_of_each() -> list[Record]:
    return [
        a_preference(1, "f1", weight=2.0, margin=0.5),
        Labelled(prompt=PROMPT, response=REPLY, value=-1.0, noise_rate=0.1, feedback_ids=("f1",)),
        Demonstration(prompt=PROMPT, response=REPLY, task_id="t1"),
        ProcessLabelled(prompt=PROMPT, steps=("a", "b"), labels=(1, None)),
        Transition(
            state=PROMPT,
            action=REPLY,
            reward=None,
            next_state=None,
            terminated=True,
            truncated=False,
            episode_id="e",
            index=3,
        ),
    ]


@pytest.mark.parametrize("record", one_of_each(), ids=lambda record: type(record).__name__)
def test_every_view_comes_back_equal(record: Record, tmp_path: Path) -> None:
    """S2."""
    snapshot = snapshots.write([record, record], tmp_path)
    rows = snapshots.read(snapshot.path)
    assert list(rows) == [record, record]
    assert rows.text(0) == json.dumps(
        record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    rows.verify()


def test_two_tools_of_different_schemas_keep_their_json_byte_for_byte(tmp_path: Path) -> None:
    """Pitfall: null keys leaked from one row into another through Parquet."""
    arguments = ['{"city": "Rome",  "days":3}', '{"path":"/x","flags":{"deep":null}}', "not json {", "{}"]
    rows = [
        Demonstration(
            prompt=PROMPT,
            response=Message(role="assistant", tool_calls=(ToolCall(id=f"c{n}", name=f"tool{n}", arguments=text),)),
        )
        for n, text in enumerate(arguments)
    ]
    found = snapshots.read(snapshots.write(rows, tmp_path).path)
    assert [row.response.tool_calls[0].arguments for row in found if isinstance(row, Demonstration)] == arguments
    assert "city" not in found.text(1)


def test_the_hash_is_of_the_content_and_its_order(tmp_path: Path) -> None:
    """S3. Two of Python's own lines give the expected hash: kind and rows, one a line."""
    first, second = a_preference(1, "f1"), a_preference(2, "f2")
    one = snapshots.write([first, second], tmp_path / "a")
    same = snapshots.write([first, second], tmp_path / "b")
    turned = snapshots.write([second, first], tmp_path / "a")
    less = snapshots.write([first], tmp_path / "a")
    assert one.hash == same.hash
    assert len({one.hash, turned.hash, less.hash}) == 3
    assert one.path == tmp_path / "a" / f"{one.hash}.arrow"
    assert one.hash == _sha256_of_lines("preference", [first, second])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(
        f"{snapshot.hash}.arrow" for snapshot in (one, turned, less)
    )


def test_lineage_is_kept_for_each_row(tmp_path: Path) -> None:
    """S3."""
    pairs = [a_preference(1, "f1", "f2"), a_preference(2), a_preference(3, "f2", "f3")]
    snapshot = snapshots.write(pairs, tmp_path)
    rows = snapshots.read(snapshot.path)
    assert (snapshot.kind, snapshot.n, snapshot.feedback_ids) == ("preference", 3, ("f1", "f2", "f3"))
    assert [rows.feedback_ids_of(i) for i in range(3)] == [("f1", "f2"), (), ("f2", "f3")]
    assert rows.feedback_ids() == ("f1", "f2", "f3")
    rest = snapshots.without(snapshot.path, {"f3"})
    assert rest is not None
    assert list(snapshots.read(rest.path)) == pairs[:2]
    assert snapshots.without(rest.path, {"f1"}) == snapshots.write([pairs[1]], tmp_path)
    assert snapshots.without(snapshots.write([pairs[0]], tmp_path).path, {"f2"}) is None


def test_rows_are_a_sequence_over_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3."""
    monkeypatch.setattr(snapshots, "ROWS_PER_BATCH", 7)
    pairs = [
        a_preference(n, f"f{n}", weight=n + 1.0, tie=n % 2 == 0, margin=None if n % 3 else n / 2) for n in range(50)
    ]
    rows = snapshots.read(snapshots.write(pairs, tmp_path).path)
    assert len(rows) == 50
    assert [rows[i] for i in (0, 6, 7, 13, 14, 49, -1, -50)] == [pairs[i] for i in (0, 6, 7, 13, 14, 49, 49, 0)]
    assert rows[5:20:3] == pairs[5:20:3]
    assert list(rows) == pairs
    for wrong in (50, -51):
        with pytest.raises(IndexError):
            rows[wrong]
    np.testing.assert_array_equal(rows.column("weight"), np.arange(1.0, 51.0))
    np.testing.assert_array_equal(rows.column("margin")[:4], [0.0, np.nan, np.nan, 1.5])
    assert rows.column("tie")[:3].tolist() == [True, False, True]
    with pytest.raises(NotFound, match="weight"):
        rows.column("reward")


def test_reading_maps_the_file_and_parses_only_what_is_looked_at(tmp_path: Path) -> None:
    """S3: memory-mapped. 40 MB of rows cost no allocation until one is looked at."""
    rows_written = [a_preference(n, chosen=f"{n}" * 20_000) for n in range(100, 500)]
    path = snapshots.write(rows_written, tmp_path).path
    assert path.stat().st_size > 20_000_000
    before = pa.total_allocated_bytes()
    rows = snapshots.read(path)
    assert len(rows) == 400
    assert rows[250] == rows_written[250]
    assert pa.total_allocated_bytes() - before < 100_000


def test_a_snapshot_is_written_once_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: immutable, atomic."""
    pairs = [a_preference(1, "f1")]
    path = snapshots.write(pairs, tmp_path).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    was = path.stat().st_mtime_ns
    assert snapshots.write(pairs, tmp_path).path.stat().st_mtime_ns == was

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("thumbwheel.stores.files.sync_file", full)
        with pytest.raises(StoreError, match=r"No space left on device.*Free some space"):
            snapshots.write([a_preference(2)], tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_damage_is_seen_and_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    """Bad input."""
    pairs = [a_preference(n, chosen="A long enough answer.") for n in range(50)]
    path = snapshots.write(pairs, tmp_path).path
    whole = path.read_bytes()
    path.chmod(0o644)
    for content in (whole[: len(whole) // 2], b"", b"ARROW1 and then nothing"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"damaged or is no snapshot.*gather the data again"):
            snapshots.read(path)
    path.write_bytes(whole.replace(b"A long enough answer.", b"A wrong enough answer", 1))
    with pytest.raises(StoreError, match="hash"):
        snapshots.read(path).verify()
    snapshots.write(pairs, tmp_path)
    assert list(snapshots.read(path)) == pairs
    with pytest.raises(NotFound, match=r"none\.arrow"):
        snapshots.read(tmp_path / "none.arrow")


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    """S3."""
    with pytest.raises(DataError, match="at least one row"):
        snapshots.write([], tmp_path)
    with pytest.raises(DataError, match="Demonstration, Preference"):
        snapshots.write([a_preference(1), Demonstration(prompt=PROMPT, response=REPLY)], tmp_path)
    with pytest.raises(DataError, match="Step"):
        snapshots.write([a_step("s1")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def _sha256_of_lines(kind: str, records: list[Record]) -> str:
    lines = [
        json.dumps(it.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        for it in records
    ]
    return hashlib.sha256("\n".join([kind, *lines]).encode()).hexdigest()
