"""W3: settings, doctor, versions, rollback and help."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import typer
from made_commands import Run

from thumbwheel import __version__
from thumbwheel.cli import app
from thumbwheel.config import Section, Settings
from thumbwheel.stores.base import PolicyVersion
from thumbwheel.stores.sql import open_store

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def keys(section: type[Section], prefix: str = "") -> list[str]:
    found = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found += keys(kind, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def test_settings_prints_every_setting_once(thumbwheel: Run) -> None:
    printed = [line.split()[0] for line in thumbwheel("settings").out.splitlines() if re.match(r"[a-z_.]+ ", line)]
    assert [key for key in printed if key != "setting"] == keys(Settings)


def test_the_file_in_the_folder_is_read_and_an_override_wins(thumbwheel: Run, tmp_path: Path) -> None:
    (tmp_path / "thumbwheel.toml").write_text("[update]\nbeta = 0.3\nlr = 1e-4\n")
    (tmp_path / "other.toml").write_text("[update]\nbeta = 0.4\n")
    for arguments, beta in (
        ((), "0.3"),
        (("-s", "update.beta=0.5"), "0.5"),
        (("--settings", "other.toml"), "0.4"),
    ):
        said = thumbwheel("settings", "--search", "update.beta", *arguments)
        assert re.search(rf"update\.beta +{beta} ", said.out), said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, thumbwheel: Run) -> None:
    said = thumbwheel(command, "--help")
    assert said.status == 0
    assert f"thumbwheel {command}" in said.out


def test_version(thumbwheel: Run) -> None:
    assert thumbwheel("--version").out == f"thumbwheel {__version__}\n"


def test_versions_and_rollback(thumbwheel: Run) -> None:
    """W3."""
    assert "No version yet" in _in_an_empty_store(thumbwheel, "versions")
    with open_store("sqlite:///thumbwheel.db") as store:
        for name, parent in (("v0", None), ("v1", "v0")):
            at = datetime(2026, 1, 2, tzinfo=UTC)
            store.add_version(PolicyVersion(name, "policy", parent, f"models/{name}", "candidate", None, None, at))
            store.promote(name, now=at)
    assert re.search(r"v1 +live +v0", thumbwheel("versions").out)
    assert "Version v0 is live again." in thumbwheel("rollback").out
    assert re.search(r"v0 +live", thumbwheel("versions").out)
    assert thumbwheel("rollback").status == 1


def _in_an_empty_store(thumbwheel: Run, command: str) -> str:
    open_store("sqlite:///thumbwheel.db").close()
    return thumbwheel(command).out


def test_doctor_finds_nothing_wrong_here(thumbwheel: Run) -> None:
    said = thumbwheel("doctor")
    assert said.status == 0, said.out
    assert "not made yet" in said.out


def test_doctor_says_what_to_install(thumbwheel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "accelerate":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    said = thumbwheel("doctor")
    assert said.status == 1
    assert "pip install 'thumbwheel[train]'" in said.out


def test_doctor_reports_a_store_that_is_none(thumbwheel: Run, tmp_path: Path) -> None:
    (tmp_path / "thumbwheel.db").write_bytes(b"this is no database" * 100)
    said = thumbwheel("doctor")
    assert said.status == 1
    assert re.search(r"store +sqlite:///thumbwheel\.db +\S", said.out)
