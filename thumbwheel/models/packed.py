"""Attention over a packed line of tokens: every token sees its row's earlier tokens, and nothing else.

Axes: N packed token, Q query of a block, S key of a block, H query head, K key/value head, G = H/K, E head width.

The line is cut into blocks. A small family (a prompt and all its answers) is one block with a mask; elsewhere a block is a
segment, or a stretch of a long one. Its queries see the whole of the parent segment and their own segment up to
themselves, so its keys are one or two stretches of the line. No N × N mask exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from thumbwheel.batches import PackedBatch, Segment

ATTENTION_NAME = "thumbwheel_packed"
BLOCK = 256  # tokens of a stretch, and of the largest family that is kept whole


class DoesNotFit(Exception):
    """A network's attention cannot follow a plan; the padded path serves it."""


@dataclass(frozen=True)
class Block:
    """Queries start:stop of the line; the stretches of the line that are their keys; and what is hidden from them.

    `hidden` is (Q, S), True where a query may not see a key.
    """

    start: int
    stop: int
    keys: tuple[slice, ...]
    hidden: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """What attends to what in one packed line: made once a batch, used by every layer."""

    blocks: tuple[Block, ...]
    longest: int

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> AttentionPlan:
        """Blocks of `batch`."""
        families: dict[int, list[int]] = {}
        for index, segment in enumerate(batch.segments):
            families.setdefault(index if segment.parent is None else segment.parent, []).append(index)
        blocks: list[Block] = []
        for members in families.values():
            segments = [batch.segments[index] for index in members]
            size = sum(len(segment) for segment in segments)
            if len(members) > 1 and size <= BLOCK and segments[-1].stop - segments[0].start == size:
                blocks.append(_family_block(segments, device))
            else:
                blocks.extend(_segment_blocks(segments, device))
        return cls(tuple(blocks), longest=int(batch.positions.max()) + 1)


def _family_block(segments: list[Segment], device: torch.device) -> Block:
    first, size = segments[0].start, segments[-1].stop - segments[0].start
    hidden = _future(size, size, device).clone()
    for sibling in segments[1:]:
        hidden[sibling.stop - first :, sibling.start - first : sibling.stop - first] = True
    return Block(first, first + size, (slice(first, first + size),), hidden)


def _segment_blocks(segments: list[Segment], device: torch.device) -> Iterator[Block]:
    root = segments[0]
    for segment in segments:
        before = () if segment is root else (slice(root.start, root.stop),)
        for start in range(segment.start, segment.stop, BLOCK):
            stop = min(start + BLOCK, segment.stop)
            keys = (*before, slice(segment.start, stop))
            hidden = _future(stop - start, sum(part.stop - part.start for part in keys), device)
            yield Block(start, stop, keys, hidden)


@lru_cache(maxsize=1024)
def _future(queries: int, keys: int, device: torch.device) -> Tensor:
    """(Q, S) True where a key comes after the query, the last query standing at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)


def keys_of(block: Block, x: Tensor, dim: int) -> Tensor:
    """The block's keys out of the line `x`, whose token axis is `dim`."""
    parts = [x.narrow(dim, part.start, part.stop - part.start) for part in block.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def no_mask(device: torch.device) -> Tensor:
    """(1, 1, 1, 1): stands where transformers would build an N × N mask; attention that follows a plan never reads it."""
    return torch.zeros(1, 1, 1, 1, device=device)


def attention_for_transformers(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The form that transformers calls: query (1, H, N, E), key and value (1, K, N, E) -> (1, N, H, E). No dropout.

    Without a plan it is transformers' own. Raises DoesNotFit where the network keeps the plan from its attention, or caps
    its scores.
    """
    if plan is None and attention_mask is not None and attention_mask.numel() == 1 < query.shape[2]:
        raise DoesNotFit(f"{type(module).__name__} is not given the plan")
    if plan is None:
        mixed: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)[0]
        return mixed, None
    if options.get("softcap") is not None:
        raise DoesNotFit(f"{type(module).__name__} caps its scores")
    grouped = query.shape[1] != key.shape[1]
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    parts = []
    for block in plan.blocks:
        q, k, v = query[:, :, block.start : block.stop], keys_of(block, key, 2), keys_of(block, value, 2)
        part = F.scaled_dot_product_attention(q, k, v, attn_mask=~block.hidden, scale=scaling, enable_gqa=grouped)
        parts.append(part.transpose(1, 2))
    starts = [block.start for block in plan.blocks]
    if starts == sorted(starts):
        return torch.cat(parts, dim=1), None
    for block, part in zip(plan.blocks, parts, strict=True):
        out[:, block.start : block.stop] = part
    return out, None


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers, with the masks of its `sdpa` for calls without a plan."""
    AttentionInterface.register(ATTENTION_NAME, attention_for_transformers)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
