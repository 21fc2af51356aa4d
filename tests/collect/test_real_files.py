"""Real data sets through detection, import and views (F6). Counts were taken from the files by hand, without this code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_files import Memory, load

from thumbwheel.collect.formats import ImportResult, write
from thumbwheel.config import FeedbackSettings
from thumbwheel.signals.views import demonstrations, labelled, preferences

SETTINGS = FeedbackSettings()


@pytest.mark.parametrize(
    ("file", "format", "read", "imported", "duplicate", "rejected", "feedback"),
    [
        ("ai-preferences/dpo_en_demo.jsonl.gz", "preference-chat", 210, 207, 3, 0, 207),
        ("ai-preferences/dpo_zh_demo.jsonl.gz", "preference-chat", 200, 192, 8, 0, 192),
        ("ai-preferences/kto_en_demo.jsonl.gz", "labelled", 209, 209, 0, 0, 209),
        ("hh-harmless-test/pairs.jsonl.gz", "preference-chat", 1494, 1494, 0, 0, 1494),
        ("sft-seeds/glaive_toolcall_en_demo.jsonl.gz", "sharegpt", 300, 265, 35, 0, 845),
        ("sft-seeds/glaive_toolcall_zh_demo.jsonl.gz", "sharegpt", 300, 257, 43, 0, 800),
        ("sft-seeds/self_instruct_seed_tasks.jsonl.gz", "alpaca", 175, 175, 0, 0, 175),
        ("pandalm-3annot/pairs.jsonl.gz", "votes", 712, 706, 0, 6, 2118),
        ("tulu-human-eval/pairs.jsonl.gz", "votes", 702, 701, 0, 1, 2430),
        ("llmbar/pairs.jsonl.gz", "votes", 822, 822, 0, 0, 822),
    ],
)
def test_every_row_of_a_real_file_is_accounted_for(
    file: str, format: str, read: int, imported: int, duplicate: int, rejected: int, feedback: int, shared_data: Path
) -> None:
    """The duplicates are the same but for their id; the rejects are answers that are `true` or NaN, not text."""
    memory, result = load(shared_data / file)
    assert (result.format, result.read, result.imported) == (format, read, imported)
    assert (result.duplicate, result.rejected, len(memory.feedback)) == (duplicate, rejected, feedback)


def test_the_row_with_nan_is_named_by_its_line(shared_data: Path, tmp_path: Path) -> None:
    load(shared_data / "tulu-human-eval/pairs.jsonl.gz", reject_path=tmp_path / "r.jsonl")
    (reject,) = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert (reject["line"], "NaN" in reject["reason"]) == (449, True)


def test_three_annotators_give_soft_labels(shared_data: Path) -> None:
    """706 rows on 613 pairs; on 566 rows all three chose the same side; ties are told apart."""
    memory, _ = load(shared_data / "pandalm-3annot/pairs.jsonl.gz")
    result = preferences(memory.episodes(), SETTINGS)
    assert len(result.rows) == 613
    assert sum(row.weight for row in result.rows) == 2118
    assert result.account.kept == 2118
    assert all(row.p >= 0.5 and row.weight % 3 == 0 for row in result.rows)
    assert sum(row.weight for row in result.rows if row.p == 1.0) <= 3 * 566


def test_display_order_and_times_of_real_votes_are_kept(shared_data: Path) -> None:
    """Of the votes that are no tie, 55.4 % chose the answer shown first, as the data set's own page says (of 543)."""
    memory, _ = load(shared_data / "tulu-human-eval/pairs.jsonl.gz")
    choices = [item for item in memory.feedback.values() if item.kind == "choice" and "chosen" in (item.value or {})]
    first = sum(item.shown[0] == item.value["chosen"] for item in choices)  # type: ignore[index,call-overload]
    assert len(choices) == 542
    assert first / len(choices) == pytest.approx(0.554, abs=0.002)
    assert {item.at.year for item in choices} == {2023}


def test_thumbs_only_data_is_labelled(shared_data: Path) -> None:
    """103 of 209 thumbs are up."""
    memory, _ = load(shared_data / "ai-preferences/kto_en_demo.jsonl.gz", origin="model")
    rows = labelled(memory.episodes(), SETTINGS).rows
    assert (len(rows), sum(row.value > 0 for row in rows)) == (209, 103)
    assert {row.origin for row in rows} == {"model"}


def test_the_chosen_answer_is_longer_as_often_as_in_the_file(shared_data: Path) -> None:
    """43.0 %, as the data set's own page says: no pair was turned round."""
    memory, _ = load(shared_data / "hh-harmless-test/pairs.jsonl.gz")
    rows = preferences(memory.episodes(), SETTINGS).rows
    longer = sum(len(row.chosen.content) > len(row.rejected.content) for row in rows)
    assert longer / len(rows) == pytest.approx(0.430, abs=0.0005)


@pytest.mark.parametrize("file", ["glaive_toolcall_en_demo", "glaive_toolcall_zh_demo"])
@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".csv"])
def test_real_tool_talks_survive_a_round_trip_byte_for_byte(
    file: str, ending: str, shared_data: Path, tmp_path: Path
) -> None:
    """Pitfall: tools of different schemas through Parquet; Chinese text through the whole path."""
    memory, _ = load(shared_data / f"sft-seeds/{file}.jsonl.gz")
    rows = demonstrations(memory.episodes(), SETTINGS).rows
    for format in ("chat", "sharegpt"):
        path = tmp_path / f"{format}{ending}"
        assert write(rows, path, format=format).written == len(rows)
        again, _ = load(path)
        copies = demonstrations(again.episodes(), SETTINGS).rows
        assert [(row.prompt, row.response) for row in copies] == [(row.prompt, row.response) for row in rows]


def test_hh_pairs_survive_their_own_text_format(shared_data: Path, tmp_path: Path) -> None:
    memory, _ = load(shared_data / "hh-harmless-test/pairs.jsonl.gz")
    rows = preferences(memory.episodes(), SETTINGS).rows
    result = write(rows, tmp_path / "hh.jsonl", format="hh")
    again: tuple[Memory, ImportResult] = load(tmp_path / "hh.jsonl")
    copies = preferences(again[0].episodes(), SETTINGS).rows
    assert again[1].format == "hh"
    assert len(copies) == result.written > 1480
    assert {(row.prompt, row.chosen, row.rejected) for row in copies} <= {
        (r.prompt, r.chosen, r.rejected) for r in rows
    }
