"""Checkpoint folders that are there whole or not at all, and say so when they are not.

    save(run / "step-00000050", {"model.safetensors": write_weights, "state.json": b"{}"}, {"settings": digest})
    latest(run)                                         # the newest one, or None
    load(run / "step-00000050", expect={"settings": digest}).files["model.safetensors"]

A checkpoint is written under a hidden name beside its own, synced, and renamed; only then are older ones pruned. Its
`manifest.json` lists each file's size and SHA-256, and what the caller wants to hold it to later (`about`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.errors import CheckpointError, explain
from thumbwheel.stores import files as disk

MANIFEST = "manifest.json"
FORMAT = 1
Content = bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: `files` by name (as saved, "/" between folders), `about` as it was given to `save`."""

    path: Path
    files: dict[str, Path]
    about: dict[str, Any]


def save(folder: Path, files: Mapping[str, Content], about: Mapping[str, Any], *, keep: int | None = None) -> Path:
    """Write a checkpoint to `folder`, replacing one of that name; then keep the newest `keep` beside it, if given.

    A file's content is bytes, or a function that writes a file or a folder at the path it is given. `keep` also clears
    what killed saves left behind, so one run must own the parent folder. Raises CheckpointError where it cannot be
    written; an older checkpoint of that name is then still there.
    """
    if not files:
        raise CheckpointError(f"The checkpoint '{folder}' has no files. Give at least one.")
    partial = disk.beside(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with disk.native_writers():
            for name, content in files.items():
                _put(partial, name, content)
        _write_manifest(partial, about)
        _replace(partial, folder)
    except OSError as error:
        raise CheckpointError(f"The checkpoint '{folder}' cannot be written: {disk.why(error)}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if keep is not None:
        prune(folder.parent, keep=keep)
    return folder


def load(folder: Path, *, expect: Mapping[str, Any] | None = None) -> Checkpoint:
    """The checkpoint, after every file was compared with the manifest, and `about` with what is expected of it.

    Raises CheckpointError that names the file or the entry that is wrong, and what to do next.
    """
    manifest = _manifest(folder)
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _broken(folder, f"the file '{name}' is missing")
        size = path.stat().st_size
        if size != facts["size"]:
            raise _broken(folder, f"the file '{name}' has {size} bytes instead of {facts['size']}: it was cut short")
        if _sha256(path) != facts["sha256"]:
            raise _broken(folder, f"the content of '{name}' is not what was saved (its SHA-256 differs)")
    about: dict[str, Any] = manifest["about"]
    for name, wanted in (expect or {}).items():
        if about.get(name) != wanted:
            raise CheckpointError(
                explain(
                    f"The checkpoint '{folder}' was made with another '{name}'.",
                    allowed=wanted,
                    got=about.get(name),
                    next=f"Go back to what it was made with, or start anew in another folder than '{folder.parent}'.",
                )
            )
    return Checkpoint(folder, {name: folder / name for name in manifest["files"]}, about)


def latest(parent: Path) -> Path | None:
    """The newest checkpoint in a folder, by the number at the end of its name; `None` where there is none."""
    found = _all(parent)
    return found[-1] if found else None


def prune(parent: Path, *, keep: int) -> list[Path]:
    """Remove all but the newest `keep` checkpoints (at least 1), and what killed saves left; those removed, oldest first."""
    if keep < 1:
        raise CheckpointError(explain("At least one checkpoint must be kept.", allowed="keep >= 1", got=keep))
    old = _all(parent)[:-keep]
    for folder in [*old, *(path for path in parent.iterdir() if disk.is_partial(path))]:
        shutil.rmtree(folder, ignore_errors=True)
    return old


def _all(parent: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first. A name that starts with a dot is no checkpoint: it is being written."""
    if not parent.is_dir():
        return []
    found = [path for path in parent.iterdir() if not path.name.startswith(".") and (path / MANIFEST).is_file()]
    return sorted(found, key=lambda path: (_number(path.name), path.name))


def _number(name: str) -> int:
    digits = re.search(r"(\d+)\D*$", name)
    return int(digits.group(1)) if digits else -1


def _put(folder: Path, name: str, content: Content) -> None:
    path = folder / name
    if name == MANIFEST or not name or folder not in path.parents or ".." in Path(name).parts:
        raise CheckpointError(
            explain(
                "A file's name must stay inside the checkpoint.", allowed=f"a relative path, not {MANIFEST}", got=name
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
        if not path.exists():
            raise CheckpointError(f"The writer of '{name}' wrote nothing at the path it was given.")


def _write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """List and sync every file, then write the manifest last."""
    facts = {}
    for path in _files(folder):
        disk.sync_file(path)
        facts[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    content = {"format": FORMAT, "files": facts, "about": dict(about)}
    try:
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The manifest of a checkpoint must be plain JSON: {error}.") from error
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    disk.sync_file(folder / MANIFEST)
    for inner in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        disk.sync_folder(inner)


def _replace(partial: Path, folder: Path) -> None:
    """Give the whole checkpoint its name. One that stands there already is set aside first, and removed last."""
    aside = disk.beside(folder.with_name(folder.name + ".old"))
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
    disk.put_in_place(partial, folder)
    shutil.rmtree(aside, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise CheckpointError(f"There is no checkpoint '{folder}'.{_others(folder)}")
    if not path.is_file():
        raise _broken(folder, f"it has no {MANIFEST}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(manifest["about"], dict) and all(
            {"size", "sha256"} <= facts.keys() for facts in manifest["files"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise _broken(folder, f"its {MANIFEST} cannot be read")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            explain(
                f"The checkpoint '{folder}' has a format this version does not know.",
                allowed=FORMAT,
                got=manifest.get("format"),
                next="Use the version of Thumbwheel that wrote it, or a newer one.",
            )
        )
    return manifest


def _broken(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint '{folder}' cannot be used: {what}. Delete that folder.{_others(folder)}")


def _others(folder: Path) -> str:
    others = [path for path in _all(folder.parent) if path != folder]
    return f" The newest other one is '{others[-1].name}'." if others else " There is no other one: start anew."


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
