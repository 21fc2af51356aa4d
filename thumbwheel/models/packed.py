"""Attention over a packed line of tokens: every segment sees its own earlier tokens and its parent's, nothing else.

Axes: N packed token, H query head, K key/value head, E head width, F family.

A family is a prompt and the answers that hang on it (or a row that stands alone). Families never see each other, so
attention runs family by family and its cost is that of the families, not N².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thumbwheel.batches import PackedBatch

ATTENTION_NAME = "thumbwheel_packed"


@dataclass(frozen=True)
class Family:
    """Tokens of one family. `where` (L,) their places in the line, or a slice; `mask` (L, L) True where a query (row)
    sees a key (column), or None for plain causal order."""

    where: slice | Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class AttentionPlan:
    """What attends to what in one packed line; made once a batch, used by every layer."""

    families: tuple[Family, ...]

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> AttentionPlan:
        """Families of `batch`, in order of their first segment."""
        members: dict[int, list[int]] = {}
        for index, segment in enumerate(batch.segments):
            members.setdefault(index if segment.parent is None else segment.parent, []).append(index)
        return cls(tuple(_family(batch, indices, device) for indices in members.values()))


def _family(batch: PackedBatch, indices: list[int], device: torch.device) -> Family:
    segments = [batch.segments[index] for index in indices]
    places = torch.cat([torch.arange(segment.start, segment.stop) for segment in segments])
    contiguous = int(places[-1]) - int(places[0]) + 1 == len(places)
    where: slice | Tensor = slice(segments[0].start, segments[-1].stop) if contiguous else places.to(device)
    if len(segments) == 1:
        return Family(where, None)
    owner = torch.cat([torch.full((len(segment),), index) for index, segment in zip(indices, segments, strict=True)])
    same = owner[:, None] == owner[None, :]
    of_parent = (owner == indices[0])[None, :]
    mask = (same | of_parent).tril()
    return Family(where, mask.to(device))


def packed_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, *, scale: float) -> Tensor:
    """query (1, H, N, E), key and value (1, K, N, E) -> (1, N, H, E)."""
    grouped = query.shape[1] != key.shape[1]
    whole = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    parts: list[Tensor] = []
    ordered = all(isinstance(family.where, slice) for family in plan.families)
    for family in plan.families:
        q, k, v = (x[:, :, family.where] for x in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=family.mask, is_causal=family.mask is None, scale=scale, enable_gqa=grouped
        ).transpose(1, 2)
        parts.append(out)
    if ordered:
        return torch.cat(parts, dim=1)
    for family, out in zip(plan.families, parts, strict=True):
        whole[:, family.where] = out
    return whole


def attention_for_transformers(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: AttentionPlan,
    **_: Any,
) -> tuple[Tensor, None]:
    """The form that transformers calls; dropout is off for policy and reference alike."""
    return packed_attention(query, key, value, plan, scale=scaling or query.shape[-1] ** -0.5), None


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers. It has no mask function, so the model builds no mask for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_for_transformers)
