"""Attention over a packed line of tokens: every token sees its row's earlier tokens, and nothing else.

Axes: N packed token, L place in the spaced line, Q query of a block, S key of a block, H query head, K key/value head,
G = H/K, E head width.

The line is cut into blocks. A small family (a prompt and all its answers) is one block with a mask; elsewhere a block is a
segment, or a stretch of a long one. Its queries see the whole of the parent segment and their own segment up to
themselves, so its keys are one or two stretches of the line. No N × N mask exists.

Attention works on a spaced copy of the line, in which every stretch begins at a multiple of STEP, so that blocks come in
a few sizes only: a library compiles a product anew for each size it has not met, which takes longer than the product.
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
STEP = 32
BLOCK = 8 * STEP  # places of the longest stretch that is one block, and of the largest family that is kept whole


def rounded(n: int) -> int:
    """`n` up to a multiple of STEP, or from 512 on to one of eight sizes an octave: few sizes, at most an eighth more."""
    step = max(STEP, 1 << n.bit_length() >> 4)
    return -(-n // step) * step


class DoesNotFit(Exception):
    """A network's attention cannot follow a plan; the padded path serves it."""


@dataclass(frozen=True)
class Block:
    """Queries start:stop of the spaced line; the stretches of it that are their keys; and what is hidden from them.

    `hidden` is (Q, S), True where a query may not see a key. No query sees a gap; one that stands in a gap sees the first key.
    """

    start: int
    stop: int
    keys: tuple[slice, ...]
    hidden: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """What attends to what in one packed line: made once a batch, used by every layer.

    `stretches` says which part of the line stands where in the spaced line of `size` places. Blocks follow each other.
    """

    blocks: tuple[Block, ...]
    stretches: tuple[tuple[slice, slice], ...]
    size: int
    longest: int

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> AttentionPlan:
        """Blocks of `batch`."""
        families: dict[int, list[Segment]] = {}
        for index, segment in enumerate(batch.segments):
            families.setdefault(index if segment.parent is None else segment.parent, []).append(segment)
        blocks: list[Block] = []
        stretches: list[tuple[slice, slice]] = []
        size = 0

        def room_for(start: int, stop: int) -> slice:
            nonlocal size
            own = slice(size, size + stop - start)
            stretches.append((slice(start, stop), own))
            size += _spaced(stop - start)
            return own

        for segments in families.values():
            start, stop = segments[0].start, segments[-1].stop
            whole = sum(len(segment) for segment in segments) == stop - start <= BLOCK
            if len(segments) > 1 and whole:
                blocks.append(_family_block(segments, room_for(start, stop), device))
                continue
            root = room_for(start, segments[0].stop)
            blocks.extend(_segment_blocks(root, None, device))
            for segment in segments[1:]:
                blocks.extend(_segment_blocks(room_for(segment.start, segment.stop), root, device))
        return cls(tuple(blocks), tuple(stretches), size, longest=int(batch.positions.max()) + 1)

    def places(self, device: torch.device) -> Tensor:
        """(N,) where each token of the line stands in the spaced line."""
        order = sorted(self.stretches, key=lambda stretch: stretch[0].start)
        return torch.cat([torch.arange(own.start, own.stop, device=device) for _, own in order])


def _spaced(n: int) -> int:
    return -(-n // STEP) * STEP


def _family_block(segments: list[Segment], own: slice, device: torch.device) -> Block:
    size, first = own.stop - own.start, segments[0].start
    hidden = _future(size, (), size, device).clone()
    for sibling in segments[1:]:
        hidden[sibling.stop - first : size, sibling.start - first : sibling.stop - first] = True
    stop = own.start + len(hidden)
    return Block(own.start, stop, (slice(own.start, stop),), hidden)


def _segment_blocks(own: slice, root: slice | None, device: torch.device) -> Iterator[Block]:
    before = () if root is None else (slice(root.start, root.start + _spaced(root.stop - root.start)),)
    seen = () if root is None else (root.stop - root.start,)
    for start in range(own.start, own.stop, BLOCK):
        stop = min(start + BLOCK, own.stop)
        hidden = _future(stop - start, seen, stop - own.start, device)
        end = start + len(hidden)
        yield Block(start, end, (*before, slice(own.start, end)), hidden)


@lru_cache(maxsize=1024)
def _future(queries: int, before: tuple[int, ...], keys: int, device: torch.device) -> Tensor:
    """(Q, S) of a block whose `queries` are the last of its own `keys`, after stretches of `before` keys, gaps added.

    True where a key comes after the query or stands in a gap, but for the first key of a query that stands in one.
    """
    seen = [torch.ones(queries, n, dtype=torch.bool, device=device) for n in before]
    seen.append(torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries))
    gap = _spaced(queries) - queries
    hidden = ~torch.cat([F.pad(part, (0, _spaced(part.shape[1]) - part.shape[1], 0, gap)) for part in seen], 1)
    hidden[queries:, 0] = False
    return hidden


def keys_of(block: Block, x: Tensor, dim: int) -> Tensor:
    """The block's keys out of the spaced line `x`, whose axis of places is `dim`."""
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
    places = plan.places(query.device)
    query, key, value = (
        x.new_zeros(*x.shape[:2], plan.size, x.shape[3]).index_copy(2, places, x) for x in (query, key, value)
    )
    parts = []
    for block in plan.blocks:
        q, k, v = query[:, :, block.start : block.stop], keys_of(block, key, 2), keys_of(block, value, 2)
        part = F.scaled_dot_product_attention(q, k, v, attn_mask=~block.hidden, scale=scaling, enable_gqa=grouped)
        parts.append(part.transpose(1, 2))
    return torch.cat(parts, dim=1).index_select(1, places), None


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers, with the masks of its `sdpa` for calls without a plan."""
    AttentionInterface.register(ATTENTION_NAME, attention_for_transformers)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
