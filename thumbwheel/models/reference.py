"""The reference's log-probabilities, computed once and kept on disk.

The file's name is the hash of everything that decides the numbers: every row's ids and masks, every weight in force, the
template. Change any of them and the file is another one, so a stale cache cannot be used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from thumbwheel.batches import TokenRow, micro_batches, pack
from thumbwheel.errors import StoreError
from thumbwheel.models.language import LanguageModel

Progress = Callable[[int, int], None]


def reference_logps(
    model: LanguageModel,
    rows: Sequence[TokenRow],
    folder: Path,
    *,
    max_tokens: int = 4096,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """(R,) summed log-probability in nats of each row's trained tokens under the reference: the model without what
    training changed (adapters), or the model as it is now where no adapter is there.

    Kept in `folder`; `progress(done rows, all rows)` is called while computing. Raises StoreError if it cannot be written.
    """
    with model.reference_now():
        file = folder / f"reference-{cache_key(model, rows)}.npy"
        if file.exists():
            kept = _read(file, len(rows))
            if kept is not None:
                return kept
        out = _compute(model, rows, max_tokens, progress)
    _write(file, out)
    return out


def cache_key(model: LanguageModel, rows: Sequence[TokenRow]) -> str:
    """SHA-256 over rows, weights in force and template."""
    digest = hashlib.sha256(f"{model.template.hash} {model.compute_dtype}".encode())
    for row in rows:
        digest.update(len(row).to_bytes(8, "little"))
        digest.update(row.ids.tobytes())
        digest.update(row.trained.tobytes())
    digest.update(model.weights_in_force().encode("ascii"))
    return digest.hexdigest()


@torch.no_grad()
def _compute(
    model: LanguageModel, rows: Sequence[TokenRow], max_tokens: int, progress: Progress | None
) -> NDArray[np.float64]:
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):  # rows of one prompt go together: the prompt is computed once
        groups.setdefault(row.ids[: row.shared].tobytes(), []).append(index)
    members = list(groups.values())
    out = np.zeros(len(rows), dtype=np.float64)
    done = 0
    for batch in micro_batches([[rows[i] for i in group] for group in members], max_tokens=max_tokens):
        indices = [i for place in batch for i in members[place]]
        packed = pack([rows[i] for i in indices])
        logps = model.token_logps(packed).cpu().numpy().astype(np.float64)
        out[indices] = np.bincount(packed.row, weights=logps, minlength=len(indices))
        done += len(indices)
        if progress is not None:
            progress(done, len(rows))
    return out


def _read(file: Path, n: int) -> NDArray[np.float64] | None:
    """The kept numbers, or None where the file is cut short (it is written again then)."""
    try:
        kept: NDArray[np.float64] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return kept if kept.shape == (n,) and bool(np.isfinite(kept).all()) else None


def _write(file: Path, values: NDArray[np.float64]) -> None:
    part = file.with_name(f".{file.stem}.{uuid4().hex[:8]}.part.npy")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(part, values)
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"The reference's log-probabilities cannot be kept in '{file.parent}': {error}.") from error
