"""The command line in this process: what a user types, what comes back on each stream, and the exit status."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from made_commands import PAIRS, Run, Said, lines

from thumbwheel import cli


@pytest.fixture
def thumbwheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `thumbwheel ARGUMENTS` in an empty folder, through the very function that the command is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Libraries keep the stderr of the test that imported them, which is closed by now.
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def run(*arguments: object, stdin: str = "") -> Said:
        monkeypatch.setattr(sys, "argv", ["thumbwheel", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        status: Any = 0
        try:
            cli.main()
        except SystemExit as leaving:
            status = leaving.code or 0
        streams = capsys.readouterr()
        return Said(int(status), streams.out, streams.err)

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random language model in a folder, as a user may have one."""
    from thumbwheel.testing.models import tiny_language_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_language_model(seed=1).save(folder)
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """24 preferences in a file."""
    return lines(tmp_path / "pairs.jsonl", *PAIRS)
