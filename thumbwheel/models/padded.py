"""The plain way round: rows of a packed batch laid out with padding and run through transformers as they are.

For networks that the packed paths do not fit (sliding windows shorter than a row, mixers that are no attention). Slower,
and equal: a test compares all three.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thumbwheel.batches import Ints, PackedBatch


def rows_of(batch: PackedBatch) -> list[Ints]:
    """Of every leaf segment (one that is no parent), the places in the line of its row's tokens, first to last."""
    parents = {segment.parent for segment in batch.segments}
    rows = []
    for index, segment in enumerate(batch.segments):
        if index in parents:
            continue
        own = np.arange(segment.start, segment.stop, dtype=np.int64)
        if segment.parent is not None:
            parent = batch.segments[segment.parent]
            own = np.concatenate([np.arange(parent.start, parent.stop, dtype=np.int64), own])
        rows.append(own)
    return rows


def hidden_padded(trunk: Any, batch: PackedBatch, *, pad_id: int, device: torch.device) -> Tensor:
    """(N, D) final hidden states. A prompt's own come from the first row that holds it; causality makes them all alike."""
    rows = rows_of(batch)
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    where = np.full(batch.n_tokens, -1, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = batch.ids[row]
        mask[index, : len(row)] = 1
        places = index * longest + np.arange(len(row), dtype=np.int64)
        new = where[row] < 0
        where[row[new]] = places[new]
    out = trunk(
        input_ids=torch.from_numpy(ids).to(device),
        attention_mask=torch.from_numpy(mask).to(device),
        use_cache=False,
    )
    hidden: Tensor = out.last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1])[torch.from_numpy(where).to(device)]
