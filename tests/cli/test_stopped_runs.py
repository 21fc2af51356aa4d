"""Ctrl-C and kill -9 at `thumbwheel train grpo`, at several moments: short words, and the same weights after resuming."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_commands import Run, Said

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")

MOMENTS = {
    "loading": ("thumbwheel.models.language:load", 1),
    "sampling": ("thumbwheel.train.collecting:sample", 2),
    "keeping answers": ("thumbwheel.stores.files:put_in_place", 2),
    "updating": ("thumbwheel.train.learner:Learner.update", 3),
    "saving": ("thumbwheel.train.saves:Saves._write_optimiser", 3),
    "saving the model": ("thumbwheel.models.adapters:save_adapters", 1),
}
RULE = "def few(prompt, text):\n    return -text.count('e') - 0.01 * len(text)\n"
PROCESS = """
import sys
sys.path[:0] = sys.argv.pop(1).split(":")
from test_stopped_runs import MOMENTS, strike
strike(*MOMENTS[sys.argv.pop(1)], int(sys.argv.pop(1)))
from thumbwheel.cli import main
main()
"""


def strike(where: str, times: int, number: int, patch: Any = setattr) -> None:
    """This process gets the signal where the named function is entered for the nth time."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real, seen = getattr(owner, name), 0

    def counted(*arguments: Any, **how: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == times:
            os.kill(os.getpid(), number)
        return real(*arguments, **how)

    patch(owner, name, counted)


def arguments(folder: str, model: Path, *more: str) -> list[str]:
    return [
        "train", "grpo", "prompts.txt", "--out", folder, "-s", f"model.path={model}", "-s", "model.dtype=float32",
        "-s", "model.lora_r=4", "-s", "round.progress=false", "-s", "online.iterations=3", "-s", "online.lr=0.003",
        "-s", "online.prompts_per_iteration=2", "-s", "online.answers_per_prompt=3", "-s", "online.batch_size=1",
        "-s", "online.checkpoint_every_steps=2", "-s", "sample.max_new_tokens=5",
        "-s", 'online.reward.terms=[{name="few",scorer="own_rule:few"}]', *more,
    ]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_rule.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("Say hello.\nName a fruit.\nCount.\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def same(place: Path, folder: str) -> bool:
    """Whether weights and number of metric lines are those of the unbroken run."""
    files = [place / run / "model" / "adapter_model.safetensors" for run in (folder, "straight")]
    lines = [len((place / run / "metrics.jsonl").read_text("utf-8").splitlines()) for run in (folder, "straight")]
    return files[0].read_bytes() == files[1].read_bytes() and lines[0] == lines[1] == 3


def told(stopped: Said, name: str) -> bool:
    """What a stopped run says; whether there is something to resume."""
    assert stopped.status == 130, (name, stopped)
    assert "Traceback" not in stopped.err, name
    assert "Stopped." in stopped.err, name
    (command,) = (line for line in stopped.err.splitlines() if line.startswith("Go on with:"))
    assert command.split()[3:6] == ["thumbwheel", "train", "grpo"], command
    return command.endswith("--resume")


def test_ctrl_c_at_any_moment(place: Path, tiny_model: Path, thumbwheel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input, X4: exit status 130, no traceback, the command to go on; then the weights of an unbroken run."""
    assert thumbwheel(*arguments("straight", tiny_model)).status == 0
    for k, (name, moment) in enumerate(MOMENTS.items()):
        folder = f"stopped{k}"
        with monkeypatch.context() as patch:
            strike(*moment, signal.SIGINT, patch.setattr)
            stopped = thumbwheel(*arguments(folder, tiny_model))
        begun = told(stopped, name)
        assert begun == (name != "loading")
        resumed = thumbwheel(*arguments(folder, tiny_model, *(["--resume"] if begun else [])))
        assert resumed.status == 0, (name, resumed.err)
        assert same(place, folder), name


@pytest.mark.parametrize(("name", "number"), [("sampling", signal.SIGINT), ("saving", signal.SIGKILL)])
def test_a_real_process(name: str, number: int, place: Path, tiny_model: Path, thumbwheel: Run) -> None:
    """X4: the same of a process of its own, also where kill -9 leaves it no time for words."""
    assert thumbwheel(*arguments("straight", tiny_model)).status == 0
    paths = os.pathsep.join([str(Path(__file__).parent), str(place)])
    ended = subprocess.run(
        [sys.executable, "-c", PROCESS, paths, name, str(int(number)), *arguments("ended", tiny_model)],
        cwd=place, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if number == signal.SIGKILL:
        assert ended.returncode == -signal.SIGKILL
    else:
        assert told(Said(ended.returncode, ended.stdout, ended.stderr), name)
    resumed = thumbwheel(*arguments("ended", tiny_model, "--resume"))
    assert resumed.status == 0, resumed.err
    assert same(place, "ended")
