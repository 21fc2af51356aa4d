"""Checkpoints: whole or not at all, and checked when loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thumbwheel.errors import CheckpointError
from thumbwheel.stores import checkpoints

ABOUT = {"settings": "abc", "data": "def", "step": 50, "metrics": {"loss": 0.6931}}


def weights(path: Path) -> None:
    path.write_bytes(b"weights" * 1000)


def adapter(path: Path) -> None:
    (path / "deep").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "deep" / "tensors.bin").write_bytes(b"\x00\x01")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    files = {"model.bin": weights, "state.json": b'{"epoch": 1}', "adapter": adapter}
    return checkpoints.save(tmp_path / "step-00000050", files, ABOUT)


def test_what_was_saved_is_loaded(saved: Path) -> None:
    """X4."""
    found = checkpoints.load(saved, expect={"settings": "abc", "step": 50})
    assert found.about == ABOUT
    assert sorted(found.files) == ["adapter/config.json", "adapter/deep/tensors.bin", "model.bin", "state.json"]
    assert found.files["state.json"].read_bytes() == b'{"epoch": 1}'
    assert found.files["model.bin"].stat().st_size == 7000
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["files"]["adapter/deep/tensors.bin"] == {
        "size": 2,
        "sha256": "b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2",
    }
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_newest_is_the_one_of_the_highest_number(tmp_path: Path) -> None:
    """X4: 100 is newer than 99, whatever the alphabet says, and what is being written isn't there."""
    assert checkpoints.latest(tmp_path / "none") is None
    assert checkpoints.latest(tmp_path) is None
    for step in (99, 100, 9):
        checkpoints.save(tmp_path / f"step-{step}", {"a": b"1"}, {})
    (tmp_path / ".step-200.1.partial").mkdir()
    (tmp_path / ".step-200.1.partial" / "manifest.json").write_text("{}")
    (tmp_path / "step-300").mkdir()
    (tmp_path / "notes-999.txt").touch()
    assert checkpoints.latest(tmp_path) == tmp_path / "step-100"


def test_older_ones_are_pruned_after_the_new_one_is_whole(tmp_path: Path) -> None:
    """X4. What killed saves left is cleared too; other things stay."""
    (tmp_path / ".step-1.77.partial").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    for step in (10, 20, 30):
        checkpoints.save(tmp_path / f"step-{step}", {"a": b"1"}, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "step-20", "step-30"]
    with pytest.raises(CheckpointError, match="keep >= 1"):
        checkpoints.prune(tmp_path, keep=0)


def test_saving_again_replaces(saved: Path) -> None:
    """X4: a resumed run writes the same step again."""
    checkpoints.save(saved, {"model.bin": b"new"}, {"settings": "new"})
    found = checkpoints.load(saved)
    assert (list(found.files), found.about) == (["model.bin"], {"settings": "new"})
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_failed_save_leaves_the_old_one_and_nothing_else(saved: Path) -> None:
    """Pitfall: a full disk, a killed writer."""

    def full(path: Path) -> None:
        path.write_bytes(b"some")
        raise OSError(28, "No space left on device")

    def broken(path: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(CheckpointError, match=r"No space left on device.*Free some space"):
        checkpoints.save(saved, {"model.bin": full}, ABOUT)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(saved, {"model.bin": broken}, ABOUT)
    with pytest.raises(CheckpointError, match="wrote nothing"):
        checkpoints.save(saved, {"model.bin": lambda path: None}, ABOUT)
    assert checkpoints.load(saved).about == ABOUT
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "manifest.json", "", "a/../../b"])
def test_a_file_stays_inside(tmp_path: Path, name: str) -> None:
    """Bad input."""
    with pytest.raises(CheckpointError, match="inside the checkpoint"):
        checkpoints.save(tmp_path / "c" / "step-1", {name: b""}, {})
    assert list((tmp_path / "c").iterdir()) == []


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """Bad input."""
    with pytest.raises(CheckpointError, match="no files"):
        checkpoints.save(tmp_path / "step-1", {}, {})
    for about in ({"loss": float("nan")}, {"path": tmp_path}):
        with pytest.raises(CheckpointError, match="plain JSON"):
            checkpoints.save(tmp_path / "step-1", {"a": b""}, about)
    assert list(tmp_path.iterdir()) == []


def _cut(folder: Path) -> None:
    os.truncate(folder / "model.bin", 6999)


def _flip(folder: Path) -> None:
    content = bytearray((folder / "model.bin").read_bytes())
    content[3500] ^= 1
    (folder / "model.bin").write_bytes(content)


def _lose(folder: Path) -> None:
    (folder / "adapter" / "deep" / "tensors.bin").unlink()


def _lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _cut_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 40)


def _other_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"files": {"a": 3}, "about": {}}')


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_cut, r"'model\.bin' has 6999 bytes instead of 7000: it was cut short"),
        (_flip, r"content of 'model\.bin' is not what was saved"),
        (_lose, r"'adapter/deep/tensors\.bin' is missing"),
        (_lose_manifest, r"no manifest\.json"),
        (_cut_manifest, r"manifest\.json cannot be read"),
        (_other_manifest, r"manifest\.json cannot be read"),
    ],
)
def test_damage_is_named_with_what_to_do(saved: Path, damage: object, told: str) -> None:
    """Bad input: an unreadable checkpoint."""
    assert callable(damage)
    damage(saved)
    with pytest.raises(CheckpointError, match=told + r".*Delete that folder\. There is no other one: start anew"):
        checkpoints.load(saved)
    checkpoints.save(saved.parent / "step-00000040", {"a": b"1"}, {})
    with pytest.raises(CheckpointError, match=told + r".*The newest other one is 'step-00000040'"):
        checkpoints.load(saved)


def test_a_checkpoint_that_is_not_there_or_of_another_format_is_told(saved: Path) -> None:
    """Bad input."""
    with pytest.raises(CheckpointError, match=r"no checkpoint.*step-00000051.*newest other one is 'step-00000050'"):
        checkpoints.load(saved.parent / "step-00000051")
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(CheckpointError, match="format"):
        checkpoints.load(saved)


@pytest.mark.parametrize("entry", ["settings", "data"])
def test_other_settings_or_data_are_refused(saved: Path, entry: str) -> None:
    """Pitfall: resume with changed data silently went on."""
    with pytest.raises(CheckpointError, match=f"another '{entry}'.*start anew"):
        checkpoints.load(saved, expect={entry: "changed"})
    with pytest.raises(CheckpointError, match="another 'template'"):
        checkpoints.load(saved, expect={"template": "x"})


SAVE_UNTIL_KILLED = """
import sys
from pathlib import Path
from thumbwheel.stores import checkpoints
run = Path(sys.argv[1])
for step in range(int(sys.argv[2]), 10**9):
    files = {f"part-{n}": bytes([step % 251]) * 20_000 for n in range(5)}
    checkpoints.save(run / f"step-{step}", files, {"step": step}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")
def test_kill_9_leaves_the_newest_whole(tmp_path: Path) -> None:
    """X4."""
    step = 0
    for wait in (0.01, 0.06, 0.1):
        command = [sys.executable, "-c", SAVE_UNTIL_KILLED, str(tmp_path), str(step + 1)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait)
        child.kill()
        rest = child.communicate(timeout=30)[0]
        told = [int(line) for line in rest.split("\n")[:-1]]
        newest = checkpoints.latest(tmp_path)
        assert newest is not None
        found = checkpoints.load(newest)
        step = found.about["step"]
        assert step >= max(told, default=1)
        assert {path.read_bytes() for path in found.files.values()} == {bytes([step % 251]) * 20_000}
