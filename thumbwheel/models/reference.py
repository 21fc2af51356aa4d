"""Log-probabilities under the reference: computed once, before the first step, and kept on disk.

The reference is the model as it is when training begins: with adapters the same weights with the adapters off (or as
they were), without them the weights themselves, which must not have moved yet. The cache's key covers the rows, the
model and the template, so a change of any of them computes anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thumbwheel.batches import TokenRow, micro_batches, pack
from thumbwheel.errors import StoreError
from thumbwheel.models import adapters
from thumbwheel.models.language import LanguageModel

Floats = NDArray[np.float32]


def reference_logps(
    model: LanguageModel,
    rows: Sequence[TokenRow],
    *,
    max_tokens: int = 4096,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """(n,) float32 summed log-probability (nats) of each row's trained tokens under the reference, in the rows' order.

    `progress` is told how many rows of how many are done. Raises StoreError where the cache cannot be written.
    """
    if not rows:
        return np.zeros(0, dtype=np.float32)
    kept = None if cache is None else cache / f"{reference_key(model, rows)}.npy"
    found = None if kept is None else _read(kept, len(rows))
    if found is not None:
        return found
    values = np.zeros(len(rows), dtype=np.float32)
    groups = _by_prompt(rows)
    done = 0
    adapted = any(True for _ in adapters.adapters_of(model.network))
    with torch.no_grad(), model.reference() if adapted else nullcontext():
        for cut in micro_batches([[rows[i] for i in group] for group in groups], max_tokens=max_tokens):
            places = [i for group in sorted(cut) for i in groups[group]]
            values[places] = model.row_logps(pack([rows[i] for i in places])).cpu().numpy()
            done += len(places)
            if progress is not None:
                progress(done, len(rows))
    if kept is not None:
        _write(kept, values)
    return values


def reference_key(model: LanguageModel, rows: Sequence[TokenRow]) -> str:
    """SHA-256 (hex) over the rows, the reference's weights and precision, and the template."""
    digest = hashlib.sha256()
    digest.update(f"{model.template.hash} {model.compute_dtype} {model.device.type}".encode())
    for row in rows:
        digest.update(f"{len(row)}".encode() + row.ids.tobytes() + row.trained.tobytes())
    for name, tensor in _reference_weights(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _reference_weights(model: LanguageModel) -> list[tuple[str, Tensor]]:
    """Every tensor that the reference computes with."""
    found: list[tuple[str, Tensor]] = []
    learning: set[int] = set()
    for name, adapter in adapters.adapters_of(model.network):
        learning |= {id(adapter.a), id(adapter.b)}
        if adapter.reference is not None:
            found += [(f"{name}.reference.{letter}", x) for letter, x in zip("ab", adapter.reference, strict=True)]
    return found + [(name, p) for name, p in model.network.named_parameters() if id(p) not in learning]


def _by_prompt(rows: Sequence[TokenRow]) -> list[list[int]]:
    """Indices of rows, those with one prompt together, so that it is computed once."""
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.ids[: row.shared].tobytes(), []).append(index)
    return list(groups.values())


def _read(path: Path, n: int) -> Floats | None:
    """What was kept, or None where there is nothing, or nothing whole."""
    try:
        values: Floats = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape == (n,) and values.dtype == np.float32 else None


def _write(path: Path, values: Floats) -> None:
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.save(file, values)
        part.replace(path)
    except OSError as error:
        raise StoreError(
            f"The reference's log-probabilities cannot be kept in '{path.parent}': {error}. "
            "Free some space, or name another cache folder."
        ) from error
