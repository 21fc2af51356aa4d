"""Files that are there whole or not at all, and stay there after a power cut."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_file(path: Path) -> None:
    """The file's bytes are on disk when this returns."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """The folder's list of names is on disk when this returns (a rename inside it survives a power cut)."""
    if hasattr(os, "O_DIRECTORY"):  # Windows has no handle for folders, and needs none
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def beside(path: Path) -> Path:
    """A hidden name in the same folder, of this process, for a file that is not whole yet."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def is_partial(path: Path) -> bool:
    """Whether the name is one that `beside` gives: what a killed write has left."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def put_in_place(partial: Path, final: Path) -> None:
    """Give a whole, synced file or folder its name, durably. Replaces a file; a folder must not be there."""
    partial.replace(final)
    sync_folder(final.parent)


def put_file(final: Path, content: bytes) -> None:
    """Write a file whole or not at all, durably, with the folders above it. Raises OSError; nothing is then left behind."""
    partial = beside(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(content)
        sync_file(partial)
        put_in_place(partial, final)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def native_writers() -> Iterator[None]:
    """Inside, what safetensors and torch raise where a file cannot be written is the OSError that it was."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"os error (\d+)", str(error))  # safetensors names it
        if number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        if isinstance(error, RuntimeError) and re.search(r"inline_container|PytorchStreamWriter", str(error)):
            raise OSError(errno.ENOSPC, "torch could not write the whole file") from error
        raise


def why(error: OSError) -> str:
    """What the operating system said, with what to do where that is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{error.strerror or error}. Free some space (or raise the limit) and try again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror or error}. Make the folder writable for this user"
    return error.strerror or str(error)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
