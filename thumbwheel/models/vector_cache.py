"""Vectors on disk, found again by a key: content-addressed, whole or not at all, memory-mapped.

A call that computes something adds one file (a shard) of records (key, vector), named by the hash of its keys. It is
written under a hidden name and renamed, so that readers see all of it or nothing, and two processes that compute the
same vectors write the same file. A shard that cannot be read is passed over, and its vectors are computed again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thumbwheel.errors import StoreError
from thumbwheel.stores import files as disk

Floats = NDArray[np.float32]
KEY_BYTES = 32

log = logging.getLogger("thumbwheel.models")


class VectorCache:
    """Vectors of `width` float32 numbers in `folder`, by keys of 32 bytes (a SHA-256)."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        self.record = np.dtype([("key", f"V{KEY_BYTES}"), ("vector", np.float32, (width,))])
        self._shards: dict[str, NDArray[Any]] = {}
        self._places: dict[bytes, tuple[str, int]] = {}

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Floats]:
        """The vectors (width,) that are there, as views of the mapped files."""
        self._look()
        return {key: self._vector(*self._places[key]) for key in keys if key in self._places}

    def add(self, keys: Sequence[bytes], vectors: Floats) -> None:
        """Keep `vectors` (n, width) under `keys`. Raises StoreError where the disk does not take them."""
        if not keys:
            return
        rows = np.zeros(len(keys), dtype=self.record)
        rows["key"] = np.array([np.void(key) for key in keys])
        rows["vector"] = vectors
        final = self.folder / f"{hashlib.sha256(b''.join(sorted(keys))).hexdigest()[:40]}.npy"
        partial = disk.beside(final)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
            disk.sync_file(partial)
            disk.put_in_place(partial, final)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise StoreError(f"The vectors cannot be kept in '{self.folder}': {disk.why(error)}.") from error

    def _vector(self, shard: str, row: int) -> Floats:
        vector: Floats = self._shards[shard]["vector"][row]
        return vector

    def _look(self) -> None:
        """Map the shards that have appeared since the last look."""
        for path in sorted(self.folder.glob("*.npy")):
            if path.name in self._shards or disk.is_partial(path):
                continue
            try:
                rows = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                log.warning("The kept vectors in '%s' cannot be read and are computed again: %s", path, error)
                continue
            if rows.dtype != self.record or rows.ndim != 1:
                log.warning("The kept vectors in '%s' are of another shape and are computed again.", path)
                continue
            self._shards[path.name] = rows
            for row, key in enumerate(rows["key"]):
                self._places.setdefault(key.tobytes(), (path.name, row))
