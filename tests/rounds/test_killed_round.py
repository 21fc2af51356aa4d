"""X4: a round that `kill -9` really ended in the middle of an update, and files of it that went bad meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_rounds import clock, fill, settings_in

from thumbwheel.config import Settings
from thumbwheel.errors import CheckpointError, NotFound, StoreError
from thumbwheel.rounds.run import run
from thumbwheel.rounds.watch import Silent
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model

KILLED_AT_STEP = 3  # checkpoints are at 2 and 4: one step is lost

DIES = f"""
import os, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from test_killed_round import settings_of
from test_rounds import clock
from thumbwheel.rounds.run import run
from thumbwheel.rounds.watch import Silent
from thumbwheel.stores.sql import open_store


class Deadly(Silent):
    def bar(self, label, unit):
        def tick(done, total):
            if label == "policy update" and done == {KILLED_AT_STEP}:
                os.kill(os.getpid(), signal.SIGKILL)

        return tick


settings = settings_of(Path(sys.argv[2]), Path(sys.argv[3]))
run(open_store(settings.store.url), settings, clock=clock, watch=Deadly())
"""


def settings_of(folder: Path, model: Path) -> Settings:
    return settings_in(folder, model, update={"checkpoint_every_steps": 2, "epochs": 2})


def begin(folder: Path, model: Path) -> Settings:
    folder.mkdir()
    settings = settings_of(folder, model)
    with open_store(settings.store.url) as store:
        fill(store, range(24))
    return settings


def go(settings: Settings) -> Silent:
    watch = Silent()
    with open_store(settings.store.url) as store:
        run(store, settings, clock=clock, watch=watch)
    return watch


def outcome(settings: Settings, stage: str) -> dict[str, Any]:
    path = settings.store.folder / "rounds" / "r0001" / f"{stage}.json"
    return {name: value for name, value in json.loads(path.read_text("utf-8")).items() if name != "seconds"}


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_kill_9_in_the_update_and_the_round_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    """The weights are the same bit for bit, so are the sampled answers and every figure. Bad files are told on the way."""
    model = tmp_path / "tiny"
    tiny_language_model(seed=1).save(model)
    killed = begin(tmp_path / "killed", model)
    here = str(Path(__file__).parent)
    died = subprocess.run(
        [sys.executable, "-c", DIES, here, str(tmp_path / "killed"), str(model)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    folder = killed.store.folder / "rounds" / "r0001"
    assert not (folder / "update.json").exists()
    assert [path.name for path in sorted((folder / "update" / "checkpoints").iterdir())] == ["step-00000002"]

    _snapshots_that_went_bad_are_told(killed)
    _a_stage_file_that_went_bad_is_told(killed, folder)
    watch = go(killed)
    done = {name for name, was_done in watch.stages if was_done}
    assert done == {"gather"}, "the reward stage was done again because its file was deleted, the update went on"

    straight = begin(tmp_path / "straight", model)
    go(straight)
    weights = [
        (one.store.folder / "rounds" / "r0001" / "update" / "model" / "adapter_model.safetensors").read_bytes()
        for one in (killed, straight)
    ]
    assert weights[0] == weights[1]
    for stage in ("answer", "compare", "judge"):
        assert outcome(killed, stage) == outcome(straight, stage), stage
    assert len((folder / "update" / "metrics.jsonl").read_text("utf-8").splitlines()) == len(
        (straight.store.folder / "rounds" / "r0001" / "update" / "metrics.jsonl").read_text("utf-8").splitlines()
    ), "no step is told twice"


def _snapshots_that_went_bad_are_told(settings: Settings) -> None:
    path = Path(outcome(settings, "gather")["train"]["path"])
    whole = path.read_bytes()
    path.chmod(0o644)
    middle = len(whole) // 2
    changed = whole.replace(b"question", b"quastion", 1)
    for damaged in (whole[:100], b"", whole[:middle] + b"\xff" * 8 + whole[middle + 8 :], changed):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=path.name) as told:
            go(settings)
        assert "delete gather.json" in told.value.__notes__[0]
    path.unlink()
    with pytest.raises(NotFound, match=path.name):
        go(settings)
    path.write_bytes(whole)


def _a_stage_file_that_went_bad_is_told(settings: Settings, folder: Path) -> None:
    for garbage in (b"{oops", b"\xff\xfe", b"[]", b""):
        (folder / "reward.json").write_bytes(garbage)
        with pytest.raises(CheckpointError, match=r"reward\.json.*Delete that one file to do the stage again"):
            go(settings)
    (folder / "reward.json").unlink()
