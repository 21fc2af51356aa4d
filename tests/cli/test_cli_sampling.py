"""P5, L3: `thumbwheel sample` and `thumbwheel train picks` as commands, with input that is not as it should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_commands import Run, lines, rows_in

from thumbwheel.grouped import Grouped

SMALL = (
    "-s",
    "model.dtype=float32",
    "-s",
    "model.lora_r=4",
    "-s",
    "round.progress=false",
    "-s",
    "sample.max_new_tokens=5",
)
PICKED = (*SMALL, "-s", "online.prompts_per_iteration=4", "-s", "online.passes=1")


@pytest.fixture
def small(tiny_model: Path, tmp_path: Path) -> tuple[str, ...]:
    """A tiny model, and a file of 20 prompts."""
    (tmp_path / "prompts.txt").write_text("".join(f"Say {n}.\n" for n in range(20)), encoding="utf-8")
    return (*PICKED, "-s", f"model.path={tiny_model}")


@pytest.fixture
def picks(thumbwheel: Run, small: tuple[str, ...], tmp_path: Path) -> Path:
    """Groups of three answers to each prompt, the second one picked, as `export groups` writes them."""
    from thumbwheel.records import Feedback, Target
    from thumbwheel.stores.sql import open_store
    from thumbwheel.testing.clock import FakeClock

    now = FakeClock()()
    assert thumbwheel("sample", "prompts.txt", "-n", "3", *small).status == 0
    with open_store("sqlite:///thumbwheel.db") as store:
        said = [
            Feedback(
                id=f"f-{one['task_id']}", target=Target(task_id=one["task_id"]), kind="choice", at=now, who="u1",
                value={"chosen": one["answers"][1]["step_id"]}, shown=[answer["step_id"] for answer in one["answers"]],
            )
            for one in rows_in(tmp_path / "groups.jsonl")
        ]  # fmt: skip
        store.add_feedback(said, now=now)
    assert thumbwheel("export", "groups", "picks.jsonl").status == 0
    return tmp_path / "picks.jsonl"


def test_every_container_trains(thumbwheel: Run, small: tuple[str, ...], picks: Path, tmp_path: Path) -> None:
    """P5: jsonl, gz, json, csv and Parquet hold the same groups."""
    said = thumbwheel("train", "picks", picks, "-o", "run-jsonl", *small)
    assert said.status == 0, said.err
    assert "20 groups" in said.out
    assert "grpo: 5 iterations" in said.out
    assert "reward " not in said.out.split("grpo:")[1].split("Saved")[0]  # what people gave does not change by learning
    for ending in ("jsonl.gz", "json", "csv", "parquet"):
        assert thumbwheel("export", "groups", f"picks.{ending}").status == 0
        said = thumbwheel("train", "picks", f"picks.{ending}", "-o", f"run-{ending}", *small)
        assert said.status == 0, said.err
        one, other = (rows_in(tmp_path / f"run-{name}" / "metrics.jsonl") for name in ("jsonl", ending))
        assert [row["surrogate"] for row in one] == [row["surrogate"] for row in other]


def test_resuming_asks_for_it(thumbwheel: Run, small: tuple[str, ...], picks: Path) -> None:
    """X4: nothing is overwritten by mistake; `--resume` of a finished run changes nothing."""
    assert thumbwheel("train", "picks", picks, "-o", "run", *small).status == 0
    again = thumbwheel("train", "picks", picks, "-o", "run", *small)
    assert again.status == 1
    assert "--resume" in again.err
    assert thumbwheel("train", "picks", picks, "-o", "run", "--resume", *small).status == 0


@pytest.mark.parametrize(("rows", "said"), [
    (["not json"], "holds no group of answers that people picked from"),
    ([{"task_id": "sample-1", "answers": []}], "thumbwheel export groups picks.jsonl"),
    ([{"record": {"prompt": [{"role": "user", "content": "q"}], "answers": []}}], "no group: answers"),
    ([], "is empty"),
])  # fmt: skip
def test_a_file_of_something_else_is_told(
    rows: list[Any], said: str, thumbwheel: Run, small: tuple[str, ...], tmp_path: Path
) -> None:
    file = lines(tmp_path / "odd.jsonl", *rows)
    done = thumbwheel("train", "picks", file, *small)
    assert done.status == 1
    assert said in done.out + done.err


def test_answers_of_another_tokenizer_or_without_ids_are_counted_and_told(
    thumbwheel: Run, small: tuple[str, ...], picks: Path, tmp_path: Path
) -> None:
    """P5: all rows without token ids, or of another model: nothing to learn from, and why."""
    rows = [Grouped.model_validate(row["record"]) for row in rows_in(picks)]
    for update, why in (
        ({"token_ids": None, "token_logps": None}, "no token ids were recorded 60"),
        ({"tokenizer": "another"}, "sampled with another tokenizer 60"),
    ):
        odd = [
            row.model_copy(update={"answers": tuple(one.model_copy(update=update) for one in row.answers)})
            for row in rows
        ]
        file = lines(tmp_path / "odd.jsonl", *({"record": row.model_dump(mode="json")} for row in odd))
        done = thumbwheel("train", "picks", file, "-o", "odd", *small)
        assert done.status == 1
        assert "nothing to learn from" in done.err
        assert why in done.err


def test_answers_cut_to_top_p_make_pairs_and_no_lesson(thumbwheel: Run, small: tuple[str, ...]) -> None:
    said = thumbwheel("sample", "prompts.txt", "-n", "2", "--top-p", "0.9", *small)
    assert said.status == 0, said.err
    assert "sets answers cut to top-p or top-k aside" in said.out
    whole = thumbwheel("sample", "prompts.txt", "-n", "2", *small)
    assert "aside" not in whole.out
    assert "40 answers sampled, 0 were there already" in whole.out  # sampled otherwise: answers of their own


def test_fresh_says_the_share_and_samples_what_is_missing(
    thumbwheel: Run, small: tuple[str, ...], pairs: Path, tmp_path: Path
) -> None:
    """L3, by hand: 24 pairs of nobody's version; ⌈.3·24/.7⌉ = 11 prompts of two answers make 30 % (11 of 35)."""
    assert thumbwheel("import", pairs).status == 0
    options = (*small, "-s", "evals.holdout_share=0.0")
    said = thumbwheel("sample", "--fresh", "-n", "2", *options)
    assert said.status == 0, said.err
    assert "0 of 24 pairs (0% of the weight) are answers of v0; 11 prompts of 2 answers bring them to 30%" in said.out
    assert not (tmp_path / "groups.jsonl").exists()
    said = thumbwheel("sample", "prompts.txt", "--fresh", "-n", "2", *options)
    assert "22 answers sampled" in said.out
    assert len(rows_in(tmp_path / "groups.jsonl")) == 11
    short = thumbwheel("sample", "prompts.txt", "--fresh", "-n", "2", *options, "-s", "reward.fresh_share=0.9")
    assert "prompts.txt has 20 of them that are neither held out to measure on nor judged already" in short.out
    alone = thumbwheel("sample", "--fresh", "-n", "1", *options)
    assert alone.status == 1
    assert "makes no pair" in alone.err


def test_a_prompt_without_room_is_counted(thumbwheel: Run, small: tuple[str, ...], tmp_path: Path) -> None:
    """A prompt that fills the context gets no answer, and the others theirs."""
    (tmp_path / "long.txt").write_text("Say a.\n" + "x" * 600 + "\n", encoding="utf-8")
    said = thumbwheel("sample", "long.txt", "-n", "2", *small)
    assert said.status == 0, said.err
    assert "2 answers sampled" in said.out
    assert "2 answers have no token" in said.out
    assert len(rows_in(tmp_path / "groups.jsonl")) == 1


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "Name a file of prompts"),
    (["none.txt"], "There is no file 'none.txt'"),
    (["prompts.txt", "--version", "v7"], "There is no version 'v7'"),
    (["prompts.txt", "-s", "sample.temperature=0"], "all 4 answers to a prompt are the same"),
    (["prompts.txt", "--top-p", "1.5"], "top-p"),
    (["prompts.txt", "-n", "0"], "-n"),
    (["prompts.txt", "-o", "prompts.txt/groups.jsonl"], "cannot be written"),
])  # fmt: skip
def test_bad_input_is_told(arguments: list[str], said: str, thumbwheel: Run, small: tuple[str, ...]) -> None:
    done = thumbwheel("sample", *arguments, *small)
    assert done.status in (1, 2)
    assert said in done.err


def test_a_round_learns_from_picks(thumbwheel: Run, small: tuple[str, ...], picks: Path, tmp_path: Path) -> None:
    """P5: update.method = picks; L3: the report tells what share of the reward model's pairs is of the live version."""
    (tmp_path / "rule_for_test.py").write_text("def short(prompt, text):\n    return -len(text)\n", encoding="utf-8")
    done = thumbwheel(
        "round", *small, "-s", "update.method=picks", "-s", "evals.judge=rule_for_test:short", "-s", "round.min_preferences=4",
        "-s", "reward.trunk=language_model", "-s", "reward.batch_size=16",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "groups: rows in 20, kept 20" in done.out
    assert "grpo_picks: " in done.out
    assert "(100% of the weight) are answers of v0" in done.out
    (update,) = (tmp_path / "thumbwheel-data" / "rounds").glob("*/update.json")
    assert json.loads(update.read_text("utf-8"))["method"] == "grpo_picks"
    (page,) = (tmp_path / "thumbwheel-data" / "rounds").glob("*/report.html")
    assert "are answers of v0" in page.read_text("utf-8")
