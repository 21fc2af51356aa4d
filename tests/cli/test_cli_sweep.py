"""P7: `thumbwheel sweep` on a tiny model: from prompts to a page, killed and gone on with, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_commands import Run, rows_in

from thumbwheel.evals.curves import term_keys

# A reward that a random model's answers differ in. A person presses Ctrl-C when the point in `cut` has had an update.
RULE = """
from pathlib import Path

cut = None

def low(prompt, text):
    if cut is not None and Path(cut, "checkpoints", "step-00000001").exists():
        raise KeyboardInterrupt
    return sum(letter < "P" for letter in text)
"""
TERMS = 'online.reward.terms=[{name="low",scorer="rule_for_sweep:low"}]'


@pytest.fixture
def small(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tiny and quick sweep whose reward is a rule of the user's."""
    (tmp_path / "rule_for_sweep.py").write_text(RULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prompts.txt").write_text("".join(f"Say {n}.\n" for n in range(12)), encoding="utf-8")
    settings = (
        f"model.path={tiny_model}", "model.dtype=float32", "model.lora_r=2", "round.progress=false", "online.iterations=2",
        "online.prompts_per_iteration=2", "online.answers_per_prompt=3", "online.eval_share=0.4", "sample.max_new_tokens=4",
        "update.eval_share=0.4", "update.epochs=1", "online.checkpoint_every_steps=1", TERMS,
    )  # fmt: skip
    return [word for setting in settings for word in ("-s", setting)]


def points(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_prompts_become_a_frontier_and_more_values_join_it(thumbwheel: Run, small: list[str], tmp_path: Path) -> None:
    done = thumbwheel("sweep", "grpo", "prompts.txt", "--values", "0.5", "0.05", "-o", "s", *small)
    assert done.status == 0, done.out + done.err
    assert "prompts to train on" in done.out
    assert "validate on (held out: online.eval_share = 0.4, seed 0)" in done.out
    assert "β = 0.05 (1 of 2)" in done.out
    assert "Made in s/: sweep.html, sweep.json" in done.out
    told = points(tmp_path / "s")
    assert told["over"] == "online.kl.coefficient"
    assert [point["value"] for point in told["points"]] == [0.05, 0.5]
    assert told["reference"]["kl_per_token_nats"] == 0.0
    trained = int(done.out.split(" prompts to train on")[0].split()[-1])
    assert told["reference"]["answers"] == 12 - trained
    assert {told["points"][0]["answers"], told["points"][1]["answers"]} == {12 - trained}
    for made in ("sweep.html", "0.05/model/adapter_model.safetensors", "0.5/curves.html"):
        assert (tmp_path / "s" / made).exists(), made
    html = (tmp_path / "s" / "sweep.html").read_text(encoding="utf-8")
    assert 'href="0.05/curves.html"' in html
    assert term_keys(rows_in(tmp_path / "s" / "0.05" / "metrics.jsonl")) == ["low"]  # every other figure has a name
    assert told["why"].split("'")[0] in html

    again = thumbwheel("sweep", "grpo", "prompts.txt", "--values", "0.05,0.5 2", "-o", "s", *small)
    assert again.status == 0, again.err
    assert "β = 2 (3 of 3)" in again.out
    assert "(1 of 3)" not in again.out  # it is there already
    assert points(tmp_path / "s")["points"][:2] == told["points"]


def test_a_point_that_was_cut_in_its_middle_goes_on_where_it_was(
    thumbwheel: Run, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, P7: Ctrl-C in the second iteration of the second value; what comes out is what an unbroken sweep gives, to the bit."""
    import rule_for_sweep  # type: ignore[import-not-found]

    sweep = ["sweep", "grpo", "prompts.txt", "--values", "0.05", "0.5", *small]
    whole = thumbwheel(*sweep, "-o", "whole")
    assert whole.status == 0, whole.out + whole.err
    monkeypatch.setattr(rule_for_sweep, "cut", "cut/0.5")
    cut = thumbwheel(*sweep, "-o", "cut")
    assert cut.status == 130
    assert "The same command goes on" in cut.err
    assert (tmp_path / "cut" / "0.05" / "point.json").exists()
    assert not (tmp_path / "cut" / "0.5" / "point.json").exists()
    assert not (tmp_path / "cut" / "sweep.json").exists()
    monkeypatch.setattr(rule_for_sweep, "cut", None)
    rest = thumbwheel(*sweep, "-o", "cut")
    assert rest.status == 0, rest.out + rest.err
    assert "β = 0.5 (2 of 2): goes on where it was cut" in rest.out
    assert points(tmp_path / "cut") == points(tmp_path / "whole")
    assert [row["reward"] for row in rows_in(tmp_path / "cut" / "0.5" / "metrics.jsonl")] == [
        row["reward"] for row in rows_in(tmp_path / "whole" / "0.5" / "metrics.jsonl")
    ]


def test_pairs_are_swept_over_beta_and_a_prompt_to_validate_on_is_not_trained_on(
    thumbwheel: Run, small: list[str], pairs: Path, tmp_path: Path
) -> None:
    """24 pairs, of which the validation file names three by prompt."""
    (tmp_path / "check.txt").write_text("3+1=\n7+1=\n11+1=\nWhat else?\n" + "x" * 2000, encoding="utf-8")
    done = thumbwheel("sweep", "dpo", pairs, "--values", "0.1", "--validation", "check.txt", "-o", "s", *small)
    assert done.status == 0, done.out + done.err
    assert "21 rows to train on, 3 left out of training since they are validated on" in done.out
    assert "5 prompts to validate on (of check.txt)" in done.out
    assert done.out.count("measured on 4 of 5 validation prompts") == 2  # one fills the model's context
    assert points(tmp_path / "s")["over"] == "update.beta"
    assert (tmp_path / "s" / "0.1" / "curves.html").exists()


def test_a_controller_with_a_target_is_swept_over_its_target(thumbwheel: Run, small: list[str], tmp_path: Path) -> None:
    target = ["-s", "online.kl.controller=pid", "-s", "online.kl.target_per_response_nats=6"]
    done = thumbwheel("sweep", "ppo", "prompts.txt", "--values", "2", "-o", "s", *small, *target)
    assert done.status == 0, done.out + done.err
    assert "KL target a response = 2 (1 of 1)" in done.out
    told = points(tmp_path / "s")
    assert told["over"] == "online.kl.target_per_response_nats"
    cosine = thumbwheel("sweep", "ppo", "prompts.txt", *small, "-s", "online.kl.controller=cosine")
    assert cosine.status == 1
    assert "follows a schedule of its own" in cosine.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--values", "0.1,0.1"], "different numbers above 0"),
        (["--values", "0"], "different numbers above 0"),
        (["--values", "-0.1"], "different numbers above 0"),
        (["--values", "nan"], "different numbers above 0"),
        (["--values", "inf"], "different numbers above 0"),
        (["--values", "a lot"], "Got: a"),
        (["--max-kl-per-token", "0"], "a number of nats above 0"),
        (["-s", "online.eval_share=0"], "Give --validation FILE"),
        (["-s", "online.eval_share=1"], "none is left to train on"),
        (["--validation", "gone.txt"], "There is no file 'gone.txt'"),
        (["-s", 'online.reward.terms=[{name="r",scorer="reward_model"}]'], "--reward FOLDER"),
        (["-s", 'online.reward.terms=[{name="r",scorer="no_such_module:f"}]'], "no_such_module"),
        (["-o", "a_file"], "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_swept_is_told_before_anything_is_trained(
    options: list[str], said: str, thumbwheel: Run, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    done = thumbwheel("sweep", "grpo", "prompts.txt", "-o", "s", *small, *options)
    assert done.status == 1, done.out + done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob("s/*/metrics.jsonl"))


def test_another_sweep_in_the_same_folder_is_refused(thumbwheel: Run, small: list[str], tmp_path: Path) -> None:
    """Other settings, other prompts, another model; how memory is used is free."""
    sweep = ["sweep", "grpo", "prompts.txt", "--values", "0.1", "-o", "s"]
    assert thumbwheel(*sweep, *small).status == 0
    other = thumbwheel(*sweep, *small, "-s", "online.lr=0.5")
    assert other.status == 1
    assert "'s' holds a sweep with other settings" in other.err
    assert thumbwheel(*sweep, *small, "-s", "online.tokens_per_micro_batch=77").status == 0
    with (tmp_path / "prompts.txt").open("a", encoding="utf-8") as file:
        file.write("One more.\nTwo more.\nThree more.\nFour more.\n")
    assert "with other data" in thumbwheel(*sweep, *small).err
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "s").write_text("in the way", encoding="utf-8")
    assert thumbwheel(*sweep, *small).status == 1


def test_too_many_answers_without_a_reward_end_the_sweep_and_say_where(
    thumbwheel: Run, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "blind_rule.py").write_text("def none(prompt, text):\n    return None\n", encoding="utf-8")
    blind = ["-s", 'online.reward.terms=[{name="r",scorer="blind_rule:none"}]']
    done = thumbwheel("sweep", "grpo", "prompts.txt", "-o", "s", *small, *blind)
    assert done.status == 1
    assert "answers to validation prompts have a reward" in done.err
