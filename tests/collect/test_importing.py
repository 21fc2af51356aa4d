"""Imports: every row accounted for, each once, bad rows to a reject file, resumable, in flat memory (F6)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import NOW, Memory, jsonl, load

from thumbwheel.collect.formats import ImportResult, import_file
from thumbwheel.collect.redact import Redactor
from thumbwheel.errors import DataError, StoreError
from thumbwheel.records import Step
from thumbwheel.stores.sql import open_store

ROW = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}


def rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"prompt": f"{n}+2=", "chosen": f"{n + 2}", "rejected": "?"} for n in range(start, start + count)]


def test_the_same_row_twice_is_a_duplicate(tmp_path: Path) -> None:
    _, result = load(jsonl(tmp_path / "f.jsonl", ROW, ROW, {**ROW, "id": 9}, {**ROW, "chosen": "IV"}))
    assert (result.read, result.imported, result.duplicate, result.rejected) == (4, 2, 2, 0)
    assert (result.steps, result.feedback) == (4, 2)


def test_it_is_a_duplicate_in_another_file_container_and_format_too(tmp_path: Path) -> None:
    memory = Memory()
    files = [
        jsonl(tmp_path / "a.jsonl", ROW),
        jsonl(tmp_path / "b.json", json.dumps([ROW])),
        jsonl(tmp_path / "c.csv", "prompt,chosen,rejected", "2+2=,4,5"),
        jsonl(
            tmp_path / "d.jsonl",
            {"chosen": "\n\nHuman: 2+2=\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2=\n\nAssistant: 5"},
        ),
        jsonl(tmp_path / "e.jsonl.gz", {"question": "2+2=", "chosen": "4", "rejected": "5", "source": "x"}),
    ]
    results = [import_file(path, memory.add_steps, memory.add_feedback, now=NOW) for path in files]
    assert [(result.imported, result.duplicate) for result in results] == [(1, 0)] + [(0, 1)] * 4
    assert len(memory.feedback) == 1


@pytest.mark.parametrize(
    "other", [{"annotator": "t2"}, {"time": "2026-01-01"}, {"origin": "simulated"}, {"comment": "hm"}]
)
def test_another_person_time_origin_or_word_is_another_row(other: dict[str, str], tmp_path: Path) -> None:
    _, result = load(jsonl(tmp_path / "f.jsonl", ROW, ROW | other))
    assert result.imported == 2


def test_rejected_rows_are_written_with_line_reason_and_text(tmp_path: Path) -> None:
    """F6: every bad row is reported with its line number and reason."""
    path = jsonl(tmp_path / "f.jsonl", ROW, "{oops", "", {"prompt": "a", "chosen": "b"}, '{"prompt": "\\ud800"}')
    _, result = load(path, reject_path=tmp_path / "r.jsonl")
    found = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(item["line"], item["raw"]) for item in found] == [
        (2, "{oops"),
        (4, '{"prompt": "a", "chosen": "b"}'),
        (5, '{"prompt": "\\ud800"}'),
    ]
    assert found[1]["reason"].startswith("The column 'rejected' is missing or null")
    assert result.rejects == tmp_path / "r.jsonl"
    assert "rejected rows are in" in result.line()
    assert "read 4 = imported 1 + duplicate 0 + rejected 3" in result.line()


def test_without_rejects_there_is_no_reject_file_and_an_old_one_goes(tmp_path: Path) -> None:
    old = jsonl(tmp_path / "r.jsonl", "old")
    _, result = load(jsonl(tmp_path / "f.jsonl", ROW), reject_path=old)
    assert not old.exists()
    assert result.rejects is None


def test_the_reject_file_is_never_the_file_itself(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "f.jsonl", ROW)
    with pytest.raises(DataError, match="another file"):
        load(path, reject_path=path)
    assert path.read_text() == json.dumps(ROW) + "\n"


def test_a_reject_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        load(jsonl(tmp_path / "f.jsonl", ROW, "{oops"), reject_path=tmp_path / "nowhere" / "r.jsonl")


def test_a_store_that_fails_keeps_what_it_had_and_the_import_goes_on_from_there(tmp_path: Path) -> None:
    """X4, F4: nothing lost, nothing twice."""
    memory = Memory()
    path = jsonl(tmp_path / "f.jsonl", *rows(1000))

    def full(steps: Sequence[Step]) -> Any:
        if len(memory.steps) >= 1024:
            raise StoreError("The disk is full.")
        return memory.add_steps(steps)

    with pytest.raises(StoreError, match="disk is full") as caught:
        import_file(path, full, memory.add_feedback, now=NOW)
    assert caught.value.__notes__[0].startswith("512 rows of")
    again = import_file(path, memory.add_steps, memory.add_feedback, now=NOW)
    assert (again.imported, again.duplicate, len(memory.feedback)) == (488, 512, 1000)


def test_steps_that_came_without_their_feedback_are_completed(tmp_path: Path) -> None:
    """Killed between the two writes: the row counts as imported the second time."""
    path = jsonl(tmp_path / "f.jsonl", ROW)
    memory = Memory()

    def killed(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(path, memory.add_steps, killed, now=NOW)
    again = import_file(path, memory.add_steps, memory.add_feedback, now=NOW)
    assert (again.imported, len(memory.steps), len(memory.feedback)) == (1, 2, 1)


def test_progress_grows_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def watch(result: ImportResult, share: float) -> None:
        seen.append((result.read, share))

    load(jsonl(tmp_path / "f.jsonl", *rows(600)), progress=watch)
    assert [read for read, _ in seen] == [256, 512, 600]
    assert seen[-1][1] == 1.0
    assert [share for _, share in seen] == sorted(share for _, share in seen)


def test_personal_details_are_taken_out_before_anything_is_stored(tmp_path: Path) -> None:
    """S4: the ids stay those of the original, so importing again adds nothing."""
    path = jsonl(tmp_path / "f.jsonl", {**ROW, "chosen": "ask a@b.de"})
    memory, result = load(path, redactor=Redactor())
    assert result.redacted == {"email": 1}
    assert not any("a@b.de" in step.model_dump_json() for step in memory.steps.values())
    assert import_file(path, memory.add_steps, memory.add_feedback, now=NOW, redactor=Redactor()).duplicate == 1


def test_a_real_store_takes_an_import_and_knows_it_again(tmp_path: Path) -> None:
    """F6, S1: through the database; a second file with the same rows at other lines adds nothing."""
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        add_steps = lambda steps: store.submit_steps(steps).result()  # noqa: E731
        add_feedback = lambda feedback: store.submit_feedback(feedback, now=NOW).result()  # noqa: E731
        first = import_file(jsonl(tmp_path / "a.jsonl", *rows(300)), add_steps, add_feedback, now=NOW)
        second = import_file(jsonl(tmp_path / "b.jsonl", "", *rows(310)), add_steps, add_feedback, now=NOW)
        assert (first.imported, second.imported, second.duplicate) == (300, 10, 300)
        assert sum(len(episode.feedback) for episode in store.episodes()) == 310
    finally:
        store.close()


LINES = st.one_of(
    st.builds(lambda n: json.dumps({"prompt": str(n), "chosen": "a", "rejected": "b"}), st.integers(0, 5)),
    st.sampled_from(["", "{", "null", '{"prompt": "x"}', '{"prompt": "x", "chosen": "y", "rejected": "y"}', "NaN"]),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(LINES, max_size=20))
def test_whatever_the_lines_every_row_is_accounted_for(tmp_path: Path, lines: list[str]) -> None:
    """F6, property: read = imported + duplicate + rejected = lines that are not blank."""
    path = jsonl(tmp_path / "f.jsonl", json.dumps(ROW), *lines)
    _, result = load(path, reject_path=tmp_path / "r.jsonl", container="jsonl", format="preference")
    written = sum(1 for line in lines if line.encode().strip()) + 1
    assert result.read == written
    rejects = (tmp_path / "r.jsonl").read_text().splitlines() if result.rejected else []
    assert len(rejects) == result.rejected


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Pitfall: large imports and memory. 60 MB of rows are read with less than 40 MB over what one row takes."""
    peaks = []
    for count in (1, 8_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            file.writelines(json.dumps({**row, "chosen": row["chosen"] + "x" * 8000}) + "\n" for row in each(count))
        code = (
            "import resource, sys; from datetime import UTC, datetime\n"
            "from thumbwheel.collect.formats import import_file\n"
            "class Receipt: inserted = ()\n"
            f"r = import_file({str(path)!r}, lambda s: Receipt, lambda f: Receipt, now=datetime.now(UTC))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, r.read)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert int(out[1]) == count
        peaks.append(int(out[0]))
    unit = 1 if sys.platform == "darwin" else 1024
    assert (peaks[1] - peaks[0]) * unit < 40e6


def each(count: int) -> Iterator[dict[str, str]]:
    for n in range(count):
        yield {"prompt": f"{n}+2=", "chosen": f"{n + 2}", "rejected": "?"}
