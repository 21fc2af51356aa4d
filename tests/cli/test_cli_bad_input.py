"""Bad input on the command line: one message on stderr, exit status 1, no traceback, and nothing lost."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from made_commands import PAIRS, Run, Said, lines

from thumbwheel.stores.sql import open_store


def refused(said: Said, kind: str, message: str) -> None:
    """The command failed with one named error that says this."""
    assert said.status == 1
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith(f"{kind}: "), said.err
    assert len(re.findall(r"^\w+Error: |^NotFound: ", said.err, re.MULTILINE)) == 1
    assert re.search(message, said.err), said.err


# ---------------------------------------------------------------- files


def nothing_there(path: Path) -> None:
    del path


def a_folder(path: Path) -> None:
    path.mkdir()


def nothing_in_it(path: Path) -> None:
    path.touch()


def an_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pairs.jsonl", json.dumps(PAIRS[0]))


def utf16(path: Path) -> None:
    path.write_text(json.dumps(PAIRS[0]), encoding="utf-16")


def half_a_gzip_header(path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(PAIRS[0]).encode())[:8])


def half_a_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1" + b"\0" * 100)


def no_json(path: Path) -> None:
    lines(path, "{oops", "[again")


def other_columns(path: Path) -> None:
    lines(path, {"name": "Ada", "born": 1815}, {"name": "Grace", "born": 1906})


def a_header_alone(path: Path) -> None:
    path.write_text("prompt,chosen,rejected\n")


def a_picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)


BROKEN: list[tuple[str, Callable[[Path], None], str]] = [
    ("f.jsonl", nothing_there, "NotFound: There is no file"),
    ("f.jsonl", a_folder, "is a directory"),
    ("f.jsonl", nothing_in_it, "is empty"),
    ("f.jsonl", an_archive, "ZIP archive"),
    ("f.jsonl", utf16, "UTF-16"),
    ("f.jsonl.gz", half_a_gzip_header, "gzip data ends early"),
    ("f.parquet", half_a_parquet, "Parquet"),
    ("f.jsonl", no_json, "Line 1: The row is not JSON"),
    ("f.jsonl", other_columns, r"born.*name|name.*born"),
    ("f.csv", a_header_alone, "holds no row"),
    ("f.jsonl", a_picture, "is a binary file"),
]


@pytest.mark.parametrize(("name", "make", "message"), BROKEN, ids=[make.__name__ for _, make, _ in BROKEN])
def test_a_broken_import_file(
    name: str, make: Callable[[Path], None], message: str, thumbwheel: Run, tmp_path: Path
) -> None:
    """F6: ten kinds and one more. What was in the store before is still there."""
    thumbwheel("import", lines(tmp_path / "good.jsonl", PAIRS[0]))
    make(tmp_path / name)
    said = thumbwheel("import", name)
    refused(said, "NotFound" if message.startswith("NotFound") else "DataError", message)
    with open_store("sqlite:///thumbwheel.db") as store:
        assert store.counts()["feedback"] == 1


def test_the_reject_file_must_be_another(thumbwheel: Run, pairs: Path) -> None:
    before = pairs.read_bytes()
    refused(thumbwheel("import", pairs, "--rejects", pairs), "DataError", "another file")
    assert pairs.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_during_an_import_loses_nothing_and_importing_again_goes_on(
    thumbwheel: Run, tmp_path: Path
) -> None:
    """S4: the limit on file size stands in for the end of the disk. What was acknowledged is there afterwards."""
    n = 1500
    rows = [{"prompt": f"{i}?", "chosen": "x" * 300, "rejected": "y" * 300} for i in range(n)]
    lines(tmp_path / "many.jsonl", *rows)
    open_store("sqlite:///thumbwheel.db").close()
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000));"
        "from thumbwheel.cli import main; sys.argv = ['thumbwheel', 'import', 'many.jsonl']; main()"
    )
    full = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    refused(Said(full.returncode, full.stdout, full.stderr), "StoreError", "rows of 'many.jsonl' were imported before")
    done = int(re.search(r"^(\d+) rows of", full.stderr, re.MULTILINE).group(1))  # type: ignore[union-attr]
    with open_store("sqlite:///thumbwheel.db") as store:
        assert store.counts()["feedback"] == done
    again = thumbwheel("import", "many.jsonl")
    assert f"read {n} = imported {n - done} + duplicate {done} + rejected 0" in again.out
    assert 0 < done < n


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "preferences", "out.jsonl"), "There is no store .*thumbwheel import FILE"),
        (("versions",), "There is no store"),
        (("rollback",), "There is no store"),
        (("orphans",), "There is no store"),
        (("round",), "There is no store"),
        (("erase", "ann", "--yes"), "There is no store"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_no_store_yet(arguments: tuple[str, ...], message: str, thumbwheel: Run, tmp_path: Path) -> None:
    refused(thumbwheel(*arguments), "NotFound", message)
    assert not (tmp_path / "thumbwheel.db").exists(), "looking makes no store"


def test_a_store_that_is_none(thumbwheel: Run, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "thumbwheel.db").write_bytes(b"no database" * 500)
    before = (tmp_path / "thumbwheel.db").read_bytes()
    refused(thumbwheel("import", pairs), "StoreError", "thumbwheel.db")
    assert (tmp_path / "thumbwheel.db").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("out.xlsx", "DataError", "jsonl, .*csv, .*parquet|jsonl"),
        ("out.parquet.gz", "DataError", "compressed already"),
        ("no/such/folder/out.jsonl", "StoreError", "no/such/folder"),
    ],
)
def test_an_export_that_cannot_be_written(
    name: str, kind: str, message: str, thumbwheel: Run, pairs: Path, tmp_path: Path
) -> None:
    thumbwheel("import", pairs)
    refused(thumbwheel("export", "preferences", name), kind, message)
    assert not list(tmp_path.glob("out*"))


def test_names_that_do_not_exist_are_answered_with_those_that_do(thumbwheel: Run, pairs: Path) -> None:
    thumbwheel("import", pairs)
    refused(thumbwheel("export", "preference", "o.jsonl"), "RegistryError", "Did you mean 'preferences'")
    refused(thumbwheel("export", "labelled", "o.jsonl"), "DataError", "no row")
    refused(thumbwheel("import", pairs, "--format", "hhh"), "RegistryError", "Did you mean 'hh'")
    refused(thumbwheel("inspect", pairs, "--view", "labels"), "RegistryError", "Did you mean 'labelled'")


# ---------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("./no-such-folder", "ModelError", r"There is no model './no-such-folder'"),
        ("smollm2-135m-instrukt", "ModelError", "Did you mean 'smollm2-135m-instruct'"),
        ("nobody/such-a-model", "ModelError", "switched off by HF_HUB_OFFLINE"),
        ("broken.gguf", "ModelError", "broken.gguf.* cannot be read"),
        ("notes.txt", "ModelError", "is a file and not a model"),
        ("empty", "ModelError", "holds no model"),
        ("half", "ModelError", "cannot be loaded: .{40}"),
    ],
)
def test_a_model_that_is_not_there(
    path: str, kind: str, message: str, thumbwheel: Run, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read once, when it was imported
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 200)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text('{"model_type": "no-such-network"}')
    for command in (("inspect", pairs), ("train", "dpo", pairs)):
        refused(thumbwheel(*command, "-s", f"model.path={path}"), kind, message)


def test_a_device_that_is_not_there(thumbwheel: Run, pairs: Path, tiny_model: Path) -> None:
    settings = ("-s", f"model.path={tiny_model}", "-s", "model.device=cuda:17")
    refused(thumbwheel("train", "dpo", pairs, *settings), "ModelError", "auto, cpu, cuda")


# ---------------------------------------------------------------- settings

SETTINGS: list[tuple[str, str, str]] = [
    ("update = 3\n", "SettingError", "'update' setting"),
    ("[update]\nbeta = -1\n", "SettingError", r"'update\.beta' setting.*Got: -1"),
    ("[update]\nbeta = nan\n", "SettingError", r"'update\.beta' setting"),
    ("[update]\nbetta = 0.1\n", "SettingError", r"no setting 'update\.betta'. Did you mean 'beta'"),
    ("[updates]\nbeta = 0.1\n", "SettingError", "no setting 'updates'. Did you mean 'update'"),
    ("[update\nbeta = 0.1\n", "SettingError", r"thumbwheel\.toml' is not valid TOML.*line 1"),
    ("[update]\nbeta = 0.1\nbeta = 0.2\n", "SettingError", "is not valid TOML"),
    ('[model]\nadapter = "full"\ndtype = "bfloat16"\n', "SettingError", "float32 master weights"),
    ('[[feedback.noise_rules]]\nkind = "edit"\n', "SettingError", r"feedback\.noise_rules\.0\.test"),
]


@pytest.mark.parametrize(("text", "kind", "message"), SETTINGS, ids=range(len(SETTINGS)))
def test_a_settings_file_that_is_wrong(text: str, kind: str, message: str, thumbwheel: Run, tmp_path: Path) -> None:
    (tmp_path / "thumbwheel.toml").write_text(text)
    refused(thumbwheel("settings"), kind, message)


def test_a_settings_file_that_cannot_be_read(thumbwheel: Run, tmp_path: Path) -> None:
    refused(thumbwheel("settings", "-c", "absent.toml"), "NotFound", "no settings file 'absent.toml'")
    refused(thumbwheel("settings", "-c", tmp_path), "SettingError", "cannot be read")
    (tmp_path / "latin.toml").write_bytes("seed = 1 # é".encode("latin-1"))
    refused(thumbwheel("settings", "-c", "latin.toml"), "SettingError", "not valid TOML")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("update.beta", "malformed"),
        ("=3", "malformed"),
        ("update.beta.deep=3", "'update.beta' setting"),
        ("update.beta=much", r"'update\.beta' setting.*Got: much"),
        ("server.port=70000", "'server.port' setting"),
        ("store.url=mysql://here/there", "sqlite"),
    ],
)
def test_an_override_that_is_wrong(override: str, message: str, thumbwheel: Run, pairs: Path) -> None:
    refused(thumbwheel("import", pairs, "-s", override), "SettingError", message)


def test_a_bug_is_no_named_error(thumbwheel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw keeps its traceback: hiding it would help nobody."""
    from thumbwheel.cli import looking

    def broken(section: object, prefix: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(looking, "_rows", broken)
    with pytest.raises(ZeroDivisionError):
        thumbwheel("settings")


def test_a_port_that_is_taken(thumbwheel: Run) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(thumbwheel("serve", "--port", port), "SettingError", f"port {port}")
