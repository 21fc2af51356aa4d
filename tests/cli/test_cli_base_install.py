"""X1: the base install does without the training libraries, and the help is there at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_commands import PAIRS, lines

# Commands in one process in which the training libraries cannot be imported. Each prints its exit status.
WITHOUT_THEM = """
import sys

HEAVY = {"torch", "transformers", "accelerate", "peft", "safetensors", "gguf", "sklearn", "scipy", "tensorboard"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
from thumbwheel.cli import main

for line in sys.stdin.read().splitlines():
    sys.argv = ["thumbwheel", *line.split()]
    try:
        main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code or 0
    print(f"status {status} of {line}", flush=True)
assert not HEAVY & set(sys.modules)
"""

BASE = [
    "--help",
    "--version",
    "settings --search beta",
    "import pairs.jsonl",
    "export preferences out.parquet",
    "orphans",
    "versions",
    "erase nobody --yes",
    "serve --help",
    "demo --help",
    "round --help",
]
TRAINING = ["train dpo pairs.jsonl", "inspect pairs.jsonl", "round", "chat"]


def commands(folder: Path, *typed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_THEM],
        cwd=folder,
        input="\n".join(typed),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines(tmp_path / "pairs.jsonl", *PAIRS[:2])
    return tmp_path


def test_everything_but_training_works_without_the_train_extra(folder: Path) -> None:
    said = commands(folder, *BASE)
    assert (said.returncode, said.stderr) == (0, "")
    assert [line for line in said.stdout.splitlines() if line.startswith("status ")] == [
        f"status 0 of {line}" for line in BASE
    ]
    assert (folder / "out.parquet").exists()


def test_training_without_the_extra_says_what_to_install(folder: Path) -> None:
    said = commands(folder, "import pairs.jsonl", *TRAINING)
    assert said.returncode == 0, said.stderr
    assert "Traceback" not in said.stderr
    assert said.stderr.count("pip install 'thumbwheel[train]'") == len(TRAINING)
    assert [line.split()[1] for line in said.stdout.splitlines() if line.startswith("status ")] == ["0", *"1111"]
