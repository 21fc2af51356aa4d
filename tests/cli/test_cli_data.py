"""F6, S3, F4: import, export, erase and orphans as commands."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from made_commands import PAIRS, Run, lines, rows_in

from thumbwheel.cli.data import FORMATS
from thumbwheel.collect.formats import formats
from thumbwheel.records import Feedback, Target
from thumbwheel.stores.sql import open_store

URL = "sqlite:///thumbwheel.db"


def test_import_says_what_it_found_and_accounts_for_every_row(thumbwheel: Run, tmp_path: Path) -> None:
    """F6: bad rows with line and reason, the good ones kept."""
    lines(tmp_path / "mixed.jsonl", PAIRS[0], PAIRS[0], "oops", {**PAIRS[1], "rejected": PAIRS[1]["chosen"]}, PAIRS[2])
    said = thumbwheel("import", "mixed.jsonl")
    assert said.status == 0
    assert "detected: preference in jsonl, because prompt, chosen and rejected are plain text" in said.out
    assert "read 5 = imported 2 + duplicate 1 + rejected 2" in said.out
    assert "stored: 4 steps and 2 feedbacks in sqlite:///thumbwheel.db" in said.out
    assert "thumbwheel round" in said.out
    rejects = rows_in(tmp_path / "mixed.jsonl.rejects.jsonl")
    assert [(row["line"], row["raw"][:4]) for row in rejects] == [(3, "oops"), (4, '{"pr')]
    assert "the same" in rejects[1]["reason"]
    again = thumbwheel("import", "mixed.jsonl", "--rejects", "bad.jsonl")
    assert "read 5 = imported 0 + duplicate 3 + rejected 2" in again.out
    assert len(rows_in(tmp_path / "bad.jsonl")) == 2


def test_import_takes_format_container_origin_and_role_from_the_command(thumbwheel: Run, tmp_path: Path) -> None:
    """F6: who said it stays visible; an expert counts four times an end user (feedback.role_weights)."""
    lines(tmp_path / "pairs.data", *PAIRS[:2])
    options = ("--container", "jsonl", "--format", "preference", "--origin", "simulated", "--role", "expert")
    assert "because named by the caller" in thumbwheel("import", "pairs.data", *options).out
    thumbwheel("export", "preferences", "out.jsonl", "--format", "records")
    rows = [row["record"] for row in rows_in(tmp_path / "out.jsonl")]
    assert [(row["origin"], row["weight"]) for row in rows] == [("simulated", 4.0)] * 2


def test_the_help_of_import_names_every_format() -> None:
    assert ", ".join([*formats, "or 'module:attr'"]) == FORMATS


def test_import_redacts_where_the_settings_say_so(thumbwheel: Run, tmp_path: Path) -> None:
    """S4."""
    lines(tmp_path / "p.jsonl", {"prompt": "who?", "chosen": "write to jane.roe@example.com", "rejected": "nobody"})
    assert "redacted: email 1" in thumbwheel("import", "p.jsonl", "-s", "redact.enabled=true").out
    assert all(b"jane.roe" not in path.read_bytes() for path in tmp_path.glob("thumbwheel.db*"))


def test_a_file_that_breaks_off_keeps_its_rows_and_fails(thumbwheel: Run, tmp_path: Path) -> None:
    whole = gzip.compress("".join(json.dumps({**row, "id": n}) + "\n" for n, row in enumerate(PAIRS)).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    said = thumbwheel("import", "cut.jsonl.gz")
    assert said.status == 1
    assert "could not be read to its end" in said.out
    with open_store(URL) as store:
        assert store.counts()["feedback"] > 0


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.json", "out.csv", "out.parquet"])
def test_what_is_exported_can_be_imported_elsewhere(name: str, thumbwheel: Run, pairs: Path) -> None:
    """F6."""
    thumbwheel("import", pairs)
    said = thumbwheel("export", "preferences", name)
    assert "noise: feedback in 24, kept 24, void 0" in said.out
    assert "preferences: rows in 24, kept 24, dropped 0" in said.out
    assert "rows in 24, written 24" in said.out
    other = thumbwheel("import", name, "-s", "store.url=sqlite:///other.db")
    assert "read 24 = imported 24 + duplicate 0 + rejected 0" in other.out


def test_export_and_training_leave_out_the_same_noise(thumbwheel: Run, pairs: Path, tmp_path: Path) -> None:
    """F2: rules are data, and hold wherever feedback is read."""
    (tmp_path / "thumbwheel.toml").write_text(
        '[[feedback.noise_rules]]\nkind = "choice"\ntest = "always"\nreason = "choices of a broken page"\n'
    )
    thumbwheel("import", pairs)
    for command in (("export", "preferences", "out.jsonl"), ("train", "dpo", pairs), ("inspect", pairs)):
        said = thumbwheel(*command)
        assert said.status == 1, command
        assert said.err.startswith("DataError: "), command
    assert "void 24 (choices of a broken page 24)" in thumbwheel("train", "dpo", pairs).out


def test_erase_asks_first_and_then_nothing_is_left(thumbwheel: Run, tmp_path: Path) -> None:
    """S3, pitfall: gone everywhere at once."""
    lines(tmp_path / "p.jsonl", {**PAIRS[0], "annotator": "ann"}, {**PAIRS[1], "annotator": "bo"})
    thumbwheel("import", "p.jsonl")
    refused = thumbwheel("erase", "ann", stdin="n\n")
    assert refused.status == 1
    assert "cannot be undone" in refused.out
    said = thumbwheel("erase", "ann", stdin="y\n")
    assert said.status == 0
    assert said.out.endswith("1 feedbacks of 'ann' are gone; 0 snapshots were rewritten.\n")
    thumbwheel("export", "preferences", "out.jsonl")
    assert [row["prompt"][0]["content"] for row in rows_in(tmp_path / "out.jsonl")] == ["1+1="]
    assert "read 2 = imported 0 + duplicate 2 + rejected 0" in thumbwheel("import", "p.jsonl").out
    with open_store(URL) as store:
        assert store.counts()["feedback"] == 1


def test_a_pseudonym_in_brackets_is_printed_as_it_is(thumbwheel: Run, pairs: Path) -> None:
    thumbwheel("import", pairs)
    assert "of '[bold]' are gone" in thumbwheel("erase", "[bold]", "--yes").out


def test_orphans_are_listed_after_a_day(thumbwheel: Run) -> None:
    """F4."""
    now = datetime.now(UTC)
    with open_store(URL) as store:
        for id, hours in (("early", 25), ("late", 23)):
            at = now - timedelta(hours=hours)
            said = Feedback(id=id, target=Target(step_id=f"step-of-{id}"), kind="thumb", value={"up": True}, at=at)
            store.add_feedback([said], now=at)
    listed = thumbwheel("orphans").out
    assert "step-of-early" in listed
    assert "step-of-late" not in listed
    assert "step-of-late" in thumbwheel("orphans", "-s", "store.orphan_after_h=1").out
    assert "Nothing has waited for more than 48 hours." in thumbwheel("orphans", "-s", "store.orphan_after_h=48").out
