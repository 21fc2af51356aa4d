"""P1, P2, R1, X4: train, inspect, chat and serve as commands, on a tiny model."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_commands import PAIRS, Run, lines

from thumbwheel.client import Client
from thumbwheel.stores.sql import open_store

SMALL = ("-s", "model.dtype=float32", "-s", "model.lora_r=4", "-s", "update.batch_size=4", "-s", "update.epochs=1")
QUIET = ("-s", "round.progress=false")


@pytest.fixture
def small(tiny_model: Path) -> tuple[str, ...]:
    """Settings of a tiny and quick training run."""
    return (*SMALL, *QUIET, "-s", f"model.path={tiny_model}")


def demonstrations(folder: Path) -> Path:
    return lines(folder / "shown.jsonl", *({"instruction": row["prompt"], "output": row["chosen"]} for row in PAIRS))


def thumbs(folder: Path) -> Path:
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in PAIRS
        for side in ("chosen", "rejected")
    ]
    return lines(folder / "thumbs.jsonl", *rows)


@pytest.mark.parametrize(
    ("what", "make", "options", "printed"),
    [
        ("sft", demonstrations, (), "demonstrations: rows in 24, kept 24"),
        ("dpo", None, (), "preferences: rows in 24, kept 24"),
        ("dpo", thumbs, ("-s", "update.loss=kto"), "labelled: rows in 48, kept 48"),
        (
            "reward",
            None,
            ("-s", "reward.trunk=language_model", "-s", "reward.batch_size=8"),
            "preferences: rows in 24, kept 24",
        ),
    ],
    ids=["sft", "dpo", "kto", "reward"],
)
def test_a_file_trains_a_model(
    what: str, make: object, options: tuple[str, ...], printed: str, thumbwheel: Run, pairs: Path,
    small: tuple[str, ...], tmp_path: Path,
) -> None:  # fmt: skip
    """The run ends by saying what it made, and what it made is there."""
    file = make(tmp_path) if callable(make) else pairs
    said = thumbwheel("train", what, file, "--out", "made", *small, *options)
    assert said.status == 0, said.err
    assert printed in said.out
    place = re.search(r"Saved in (\S+)", said.out)
    assert place is not None
    assert (tmp_path / place[1] / "thumbwheel.json").is_file()
    assert ("thumbwheel chat" in said.out) == (what != "reward")
    metrics = [json.loads(line) for line in (tmp_path / "made" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert {"step", "loss"} <= set(metrics[0])
    again = thumbwheel("train", what, file, "--out", "made", *small, *options)
    assert again.status == 1
    assert again.err.startswith("CheckpointError: ")
    assert "--resume" in again.err


def test_what_was_trained_can_be_trained_on(
    thumbwheel: Run, pairs: Path, small: tuple[str, ...], tmp_path: Path
) -> None:
    """A saved adapter is a model path like any other."""
    thumbwheel("train", "sft", demonstrations(tmp_path), "--out", "first", *small)
    second = thumbwheel("train", "dpo", pairs, "--out", "second", *small, "-s", "model.path=first/model")
    assert second.status == 0, second.err
    assert (tmp_path / "second" / "model" / "adapter_config.json").is_file()


# ---------------------------------------------------------------- resuming


@pytest.fixture
def interrupted(thumbwheel: Run, pairs: Path, small: tuple[str, ...], tmp_path: Path) -> tuple[str, ...]:
    """A run that stopped after step 5 of 6, and the command that goes on; `straight/` holds one that did not stop."""
    command = ("train", "dpo", str(pairs), *small, "-s", "update.checkpoint_every_steps=1", "-s", "update.eval_share=0")
    thumbwheel(*command, "--out", "straight")
    shutil.copytree(tmp_path / "straight", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "model")
    checkpoints = sorted((tmp_path / "cut" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-00000005", "step-00000006"]
    shutil.rmtree(checkpoints[-1])
    return (*command, "--out", "cut", "--resume")


def weights(folder: Path) -> bytes:
    return (folder / "model" / "adapter_model.safetensors").read_bytes()


def cut_short(step: Path) -> None:
    (step / "weights.safetensors").write_bytes((step / "weights.safetensors").read_bytes()[:100])


def another_byte(step: Path) -> None:
    data = bytearray((step / "optimiser.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (step / "optimiser.pt").write_bytes(data)


def a_file_gone(step: Path) -> None:
    (step / "weights.safetensors").unlink()


def garbage_for_a_manifest(step: Path) -> None:
    (step / "manifest.json").write_text("{oops")


def another_run(step: Path) -> None:
    manifest = json.loads((step / "manifest.json").read_text())
    (step / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))


def test_unreadable_checkpoints_are_told_and_the_one_before_serves(
    interrupted: tuple[str, ...], thumbwheel: Run, tmp_path: Path
) -> None:
    """X4: each error says what to do; done, the run arrives at the same weights, bit for bit."""
    last = tmp_path / "cut" / "checkpoints" / "step-00000006"
    for damage in (cut_short, another_byte, a_file_gone, garbage_for_a_manifest, another_run):
        shutil.copytree(tmp_path / "straight" / "checkpoints" / "step-00000006", last)
        damage(last)
        said = thumbwheel(*interrupted)
        assert said.status == 1, damage.__name__
        assert said.err.startswith("CheckpointError: "), damage.__name__
        assert "step-00000006' cannot be used" in said.err, damage.__name__
        assert "Delete that folder." in said.err, damage.__name__
        shutil.rmtree(last)
    # The manifest is written last: a folder without one is what a kill left, and is passed over.
    shutil.copytree(tmp_path / "straight" / "checkpoints" / "step-00000006", last)
    (last / "manifest.json").unlink()
    said = thumbwheel(*interrupted)
    assert said.status == 0, said.err
    assert weights(tmp_path / "cut") == weights(tmp_path / "straight")


def test_nothing_to_resume(thumbwheel: Run, pairs: Path, small: tuple[str, ...]) -> None:
    said = thumbwheel("train", "dpo", pairs, *small, "--out", "empty", "--resume")
    assert said.status == 1
    assert "holds no checkpoint" in said.err


# ---------------------------------------------------------------- looking at rows, talking, serving


def test_inspect_shows_every_token_as_trained_or_not(thumbwheel: Run, pairs: Path, small: tuple[str, ...]) -> None:
    """Pitfall: `4` and its end are trained, nothing of the prompt. The tiny tokenizer has a token a byte."""
    said = thumbwheel("inspect", pairs, "--row", "4", *small)
    assert said.status == 0, said.err
    # <|open|>user⏎ 6, 3+1= 4, <|end|>⏎ 2, <|open|>assistant⏎ 11; the answers "4" and "It is 5, I think", each with its end.
    assert "chosen of row 4: 25 tokens: 23 of the prompt, 2 after it, 2 trained" in said.out
    assert "rejected of row 4: 40 tokens: 23 of the prompt, 17 after it, 17 trained" in said.out
    assert "<|open|>·u·s·e·r·" in said.out
    assert "4·<|end|>·" in said.out
    short = thumbwheel("inspect", pairs, "--row", "4", *small, "-s", "model.max_length=39")
    assert short.status == 1
    assert "Row 4 has 40 tokens; 39 are allowed" in short.err
    cut = thumbwheel("inspect", pairs, *small, "-s", "model.max_length=39", "-s", "model.overlong=keep_start")
    assert "after a cut" in cut.out
    assert "1 to 24" in thumbwheel("inspect", pairs, "--row", "25", *small).err


def test_a_talk_leaves_steps_and_feedback(thumbwheel: Run, small: tuple[str, ...]) -> None:
    """F1: one character after the reply is a click under it."""
    talk = "+\nHow are you?\n-\n?\n+\n= Fine.\n=\n/new\nAnd now?\n/quit\n"
    said = thumbwheel("chat", *small, "-s", "sample.max_new_tokens=8", "--who", "ann", stdin=talk)
    assert said.status == 0, said.err
    assert "There is no answer yet" in said.out
    with open_store("sqlite:///thumbwheel.db") as store:
        episodes = list(store.episodes())
        assert [[(step.index, step.attempt) for step in one.steps] for one in episodes] == [[(0, 0), (0, 1)], [(0, 0)]]
        said_of_it = [(one.kind, one.who) for one in episodes[0].feedback]
        assert said_of_it == [("thumb", "ann"), ("thumb", "ann"), ("edit", "ann")]
        assert store.live() is not None
    other = thumbwheel("chat", *small, "--version", "v7", stdin="")
    assert other.status == 1
    assert "There is no version 'v7'. There are: v0." in other.err


def test_serve_takes_feedback_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """S4: the command's own line says where it listens; what it acknowledged is on disk."""
    program = "from thumbwheel.cli import main; import sys; sys.argv = ['thumbwheel', 'serve', '--port', '0']; main()"
    server = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = re.search(r"http://\S+", line)
        assert url is not None, line
        with Client(url[0], who="ann") as client:
            client.thumb(client.step("2+2=", "4"), up=True)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert server.returncode == 0
    with open_store(f"sqlite:///{tmp_path}/thumbwheel.db") as store:
        assert store.counts()["feedback"] == 1


def test_a_judge_beside_the_settings_file_is_found(tmp_path: Path) -> None:
    """ "module:attr" in the settings may name a file of the folder in which the command runs."""
    (tmp_path / "own_views.py").write_text(
        "from thumbwheel.signals.views import preferences\n\n\ndef ties(episodes, settings):\n"
        "    found = preferences(episodes, settings)\n    print('called')\n    return found\n"
    )
    lines(tmp_path / "p.jsonl", *PAIRS[:2])
    program = (
        "import sys; from thumbwheel.cli import main\n"
        "for line in (['import', 'p.jsonl'], ['export', 'own_views:ties', 'o.jsonl']):\n"
        "    sys.argv = ['thumbwheel', *line]\n"
        "    try: main()\n"
        "    except SystemExit as e: assert not e.code\n"
    )
    # -P: the current folder is on the path only because the command put it there.
    said = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert "called" in said.stdout
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 2
