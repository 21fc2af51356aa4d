"""X4: a run that is really killed goes on bit for bit (SFT, reward, DPO, KTO)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

RUN = """
import sys, warnings
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[4])
from made_rows import demonstrations, learning_model, pairs, thumbs
from thumbwheel.config import RewardSettings, TrainSettings, UpdateSettings
from thumbwheel.models.heads import RewardModel
from thumbwheel.train.dpo import dpo
from thumbwheel.train.reward import reward
from thumbwheel.train.sft import sft

kind, folder, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
common = dict(lr=1e-3, batch_size=4, epochs=5, eval_share=0.0, checkpoint_every_steps=5, schedule="cosine")

def watcher(report):
    if how == "to be killed" and report.step == 7:
        (folder / "seven").touch()
        import time
        time.sleep(120)

options = dict(resume=how == "resume", watcher=watcher, progress=False)
model = learning_model()
if kind == "sft":
    result = sft(model, demonstrations(8), TrainSettings(**common), folder, **options)
elif kind == "reward":
    model = RewardModel(model)
    result = reward(model, pairs(8), RewardSettings(**common), folder, **options)
elif kind == "dpo":
    result = dpo(model, pairs(8), UpdateSettings(**common), folder, **options)
else:
    result = dpo(model, thumbs(8), UpdateSettings(**common, loss="kto"), folder, **options)
torch.save({"weights": dict(model.state_dict()), "metrics": result.metrics, "steps": result.steps}, folder / "out.pt")
"""
MADE = str(Path(__file__).resolve().parents[1] / "train")


def start(kind: str, folder: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, kind, str(folder), how, MADE],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None, "it ended before it got there"
        time.sleep(0.05)


def outcome(folder: Path) -> dict[str, object]:
    found: dict[str, object] = torch.load(folder / "out.pt", weights_only=True)
    return found


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo", "kto"])
def test_ten_steps_are_seven_and_kill_nine_and_the_rest(tmp_path: Path, kind: str) -> None:
    """Pitfall: 10 steps straight against 5 (checkpoint) + kill + 5: identical weights bit for bit on CPU."""
    straight = start(kind, tmp_path / "straight", "straight")
    begun = start(kind, tmp_path / "killed", "to be killed")
    wait_for(tmp_path / "killed" / "seven", begun)
    begun.send_signal(signal.SIGKILL)
    assert begun.wait(60) == -signal.SIGKILL
    assert straight.wait(200) == 0
    assert start(kind, tmp_path / "killed", "resume").wait(200) == 0
    a, b = outcome(tmp_path / "straight"), outcome(tmp_path / "killed")
    assert a["steps"] == b["steps"] == 10
    assert a["metrics"] == b["metrics"]
    weights, others = a["weights"], b["weights"]
    assert isinstance(weights, dict)
    assert isinstance(others, dict)
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 11))


def test_killed_again_and_again_it_still_arrives(tmp_path: Path) -> None:
    """A run killed at any moment (here also while it loads or saves) can be started again until it is done."""
    folder = tmp_path / "killed"
    for seconds in (2.0, 4.5):
        begun = start("sft", folder, "resume" if any(folder.glob("checkpoints/*/manifest.json")) else "to be killed")
        time.sleep(seconds)
        begun.send_signal(signal.SIGKILL)
        begun.wait(60)
    how = "resume" if any(folder.glob("checkpoints/*/manifest.json")) else "straight"
    assert start("sft", folder, how).wait(200) == 0
    assert outcome(folder)["steps"] == 10
