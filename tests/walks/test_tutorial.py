"""The tutorial, followed word for word, but for a tiny model in place of a small one."""

from __future__ import annotations

import io
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from thumbwheel import cli
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
ANSWERS = {"chat": "What is the capital of Malta?\n+\n= The capital of Malta is Valletta.\n/quit\n", "erase": "y\n"}

# What makes it quick, and open to any policy: a random model says nothing worth releasing.
TINY = """
[model]
path = "../tiny"
dtype = "float32"
lora_r = 2
[sample]
max_new_tokens = 6
[reward]
trunk = "language_model"
batch_size = 16
[round]
progress = false
"""
OPEN_GATES = "min_win_rate_low = 0.0\nmax_nats_per_token_drop = 99\nmax_repetition_rise = 1.0\n"


def commands() -> list[list[str]]:
    """Every `$ thumbwheel …` of the page, in order."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("thumbwheel ")]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["thumbwheel", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(ANSWERS.get(arguments[0], "")))
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def test_the_tutorial_ends_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """X1, W3, S3."""
    tiny_language_model(seed=1).save(tmp_path / "tiny")
    home = tmp_path / "my-assistant"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "make_pairs.py", "exec"), {})
    assert len((home / "pairs.jsonl").read_text("utf-8").splitlines()) == 84
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert tomllib.loads(toml)["gates"]["max_length_ratio"] == 6.0
    (home / "thumbwheel.toml").write_text(toml + OPEN_GATES + TINY, encoding="utf-8")

    said: dict[str, list[str]] = {}
    for arguments in commands():
        assert run(arguments, monkeypatch) == 0, (arguments, capsys.readouterr())
        said.setdefault(arguments[0], []).append(capsys.readouterr().out)

    assert list(said) == [
        "doctor",
        "import",
        "inspect",
        "settings",
        "round",
        "versions",
        "chat",
        "export",
        "rollback",
        "erase",
    ]
    assert "read 84 = imported 84 + duplicate 0 + rejected 0" in said["import"][0]
    assert "Promoted: version v1 is live." in said["round"][0]
    assert re.search(r"v1 +live +v0", said["versions"][0])
    assert "Promoted: version v2 is live." in said["round"][1]
    assert "Version v1 is live again." in said["rollback"][0]
    assert "12 feedbacks of 'user-3' are gone" in said["erase"][0]
    assert re.search(r"^v1-r0001\b", said["erase"][0], re.MULTILINE), "v1 learned from user-3, and must be retrained"
    with open_store("sqlite:///thumbwheel.db") as store:
        counts: dict[str, Any] = store.counts()
        # 84 pairs and two clicks in the talk, less user-3's four countries of three questions each
        assert (counts["feedback"], counts["updates"], counts["reports"]) == (84 + 2 - 12, 2, 2)
    for made in ("thumbwheel-data/rounds/r0001/report.html", "thumbwheel-data/rounds/r0002/report.json", "all.jsonl"):
        assert (home / made).is_file(), made
