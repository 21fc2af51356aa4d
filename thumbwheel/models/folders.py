"""Model folders on disk: written whole or not at all, and described by `thumbwheel.json`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from thumbwheel.errors import CheckpointError, StoreError
from thumbwheel.stores import files as disk

DESCRIPTION = "thumbwheel.json"


@contextmanager
def new_folder(folder: Path, *, keep_existing: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends without an error.

    With `keep_existing` a folder that appeared meanwhile (another process was first) stays. Raises StoreError when the
    disk is full or not writable; what stood there before is untouched then.
    """
    made = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.part")
    try:
        made.mkdir(parents=True)
        with disk.native_writers():
            yield made
        _put_in_place(made, folder, keep_existing=keep_existing)
    except OSError as error:
        raise StoreError(
            f"The folder '{folder}' cannot be written: {error}. Free some space, or choose another."
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _put_in_place(made: Path, folder: Path, *, keep_existing: bool) -> None:
    for file in made.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    old = folder.with_name(made.name + ".old")
    if folder.exists():
        if keep_existing:
            return
        folder.rename(old)
    try:
        made.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        if not (keep_existing and folder.exists()):
            raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers draws a bar whenever weights are read or written, which takes a moment: not inside this block. Bars of
    downloads are the hub's and stay."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def describe(folder: Path, what: dict[str, Any]) -> None:
    """Write the folder's description."""
    (folder / DESCRIPTION).write_text(json.dumps(what, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def description(folder: Path) -> dict[str, Any]:
    """The folder's description; empty where there is none (a folder from elsewhere). Raises CheckpointError."""
    file = folder / DESCRIPTION
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"'{file}' is cut short or not JSON: {error}. Take an earlier version.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"'{file}' does not describe a model. Take an earlier version.")
    return found


def weights_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of the folder's weight files and its configuration."""
    digest = hashlib.sha256()
    files = [f for pattern in ("config.json", "*.safetensors", "*.bin") for f in sorted(folder.glob(pattern))]
    for file in files:
        digest.update(file.name.encode("utf-8"))
        with file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()
