"""Token by token through the network: keys and values are kept, prompts are read once, finished rows leave.

Axes: B row in flight, T cached token, H query head, K key/value head, E head width, D hidden width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thumbwheel.batches import pack, token_row
from thumbwheel.engines.columns import Columns
from thumbwheel.errors import ModelError
from thumbwheel.models import fused
from thumbwheel.models.decoder import Decoder, filled
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.packed import AttentionPlan

Group = tuple[Sequence[int], int]


class Stepper(Protocol):
    """Rows in flight. `add` reads prompts and appends their rows; `step` feeds a token to every row."""

    def add(self, groups: Sequence[Group]) -> Tensor:
        """(prompt ids, copies) of each group -> (new rows, D) hidden states after the prompt."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """(B,) tokens -> (B, D) hidden states after them."""
        ...

    def drop(self, rows: Sequence[int]) -> list[int]:
        """Let rows leave. Returns the old index of every row that stays, in their new order."""
        ...


def open_stepper(model: LanguageModel, *, rows: int, tokens: int) -> Stepper:
    """The fused stepper where the network is read so and `tokens` fit its window; else transformers' own cache."""
    decoder = model.decoder
    if decoder is not None and tokens <= decoder.window:
        return FusedStepper(model, decoder, rows=rows, tokens=tokens)
    return ModuleStepper(model)


class FusedStepper:
    """Keys and values in one block of memory, allocated once: (layer, 2, row, K, T, E)."""

    def __init__(self, model: LanguageModel, decoder: Decoder, *, rows: int, tokens: int) -> None:
        self.model = model
        self.decoder = decoder
        heads, groups = decoder.heads
        self.heads = (heads, groups)
        width = decoder.layers[0].head_width
        self.cache = torch.zeros(  # not empty: what lies behind a row's end is weighted 0, and 0 × NaN is NaN
            (len(decoder.layers), 2, rows, groups, tokens, width), dtype=model.compute_dtype, device=model.device
        )
        self.lengths = torch.zeros(0, dtype=torch.long, device=model.device)
        self.columns = Columns(decoder, model.compute_dtype)

    def add(self, groups: Sequence[Group]) -> Tensor:
        """See `Stepper.add`. All prompts are one packed line; a group's rows share one reading."""
        batch = pack([token_row(ids, ()) for ids, _ in groups])
        plan = AttentionPlan.of(batch, self.model.device)
        H, K = self.heads
        starts = len(self.lengths) + np.cumsum([0, *(copies for _, copies in groups)])

        def attend(layer: int, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            line = qkv.view(len(qkv), H + 2 * K, -1)
            keys, values = fused.rotate(line[:, H : H + K], cos, sin), line[:, H + K :]
            for segment, first, stop in zip(batch.segments, starts, starts[1:], strict=False):
                for kind, source in enumerate((keys, values)):
                    place = self.cache[layer, kind, first:stop, :, : len(segment)]
                    place.copy_(source[segment.start : segment.stop].transpose(0, 1))
            return fused.attention(qkv, cos, sin, plan, self.heads, self.decoder.layers[layer].scale)

        ends = self._long(batch.last)
        h = self.decoder.run(
            filled(self._long(batch.ids)),
            filled(self._long(batch.positions)),
            attend,
            self.model.compute_dtype,
            at=ends,
        )
        owners = self._long(np.repeat(np.arange(len(groups)), np.diff(starts)))
        sizes = self._long(np.asarray([len(ids) for ids, _ in groups], dtype=np.int64))
        self.lengths = torch.cat([self.lengths, sizes[owners]])
        return h[owners]

    def step(self, tokens: Tensor) -> Tensor:
        """See `Stepper.step`."""
        B, lengths = len(tokens), self.lengths
        H, K = self.heads
        T = int(lengths.max()) + 1
        rows = torch.arange(B, device=tokens.device)
        hidden = None
        if B > 1:
            behind = torch.arange(T, device=tokens.device) > lengths[:, None]
            hidden = torch.zeros(B, 1, 1, T, dtype=self.cache.dtype, device=tokens.device)
            hidden.masked_fill_(behind[:, None, None], float("-inf"))

        def mix(layer: int, line: Tensor) -> Tensor:
            cache = self.cache[layer]
            cache[:, rows, :, lengths] = line[:, H:].view(B, 2, K, -1)
            mixed = F.scaled_dot_product_attention(
                line[:, :H].unsqueeze(2),
                cache[0, :B, :, :T],
                cache[1, :B, :, :T],
                attn_mask=hidden,
                scale=self.decoder.layers[layer].scale,
                enable_gqa=True,
            )
            return mixed.reshape(B, -1)

        h = self.columns.step(tokens, lengths, mix)
        self.lengths = lengths + 1
        return h

    def drop(self, rows: Sequence[int]) -> list[int]:
        """See `Stepper.drop`. The last rows move into the holes, so that rows in flight stay dense."""
        order = list(range(len(self.lengths)))
        for hole in sorted(rows, reverse=True):
            last = order.pop()
            if hole < len(order):
                order[hole] = last
        for place, old in enumerate(order):
            if place != old:
                length = int(self.lengths[old])
                self.cache[:, :, place, :, :length] = self.cache[:, :, old, :, :length]
        self.lengths = self.lengths[order]
        return order

    def _long(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self.model.device)


class ModuleStepper:
    """Any network through transformers: rows padded on the left, its own cache.

    New rows cannot join a running cache, so `add` is called on an empty one only.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.trunk: Any = model.trunk
        accepted = inspect.signature(self.trunk.forward).parameters
        self.cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.takes_positions = "position_ids" in accepted
        self.cache: Any = None
        self.mask = torch.zeros(0, 0, dtype=torch.long, device=model.device)

    def add(self, groups: Sequence[Group]) -> Tensor:
        """See `Stepper.add`. Every copy is read on its own here."""
        if len(self.mask):
            raise ModelError("Rows cannot join others in flight on this network; wait until those have finished.")
        prompts = [ids for ids, copies in groups for _ in range(copies)]
        longest = max(len(ids) for ids in prompts)
        ids = torch.full((len(prompts), longest), self.model.template.end_id, device=self.model.device)
        self.mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            self.mask[row, longest - len(prompt) :] = 1
        self.cache = None
        return self._forward(ids)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Stepper.step`."""
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
        return self._forward(tokens[:, None])

    def drop(self, rows: Sequence[int]) -> list[int]:
        """See `Stepper.drop`."""
        gone = set(rows)
        order = [row for row in range(len(self.mask)) if row not in gone]
        self.mask = self.mask[order]
        if order and gone:
            self.cache.batch_select_indices(torch.tensor(order, device=self.mask.device))
        return order

    def _forward(self, ids: Tensor) -> Tensor:
        options: dict[str, Any] = {self.cache_name: self.cache}
        if self.takes_positions:
            options["position_ids"] = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with self.model.autocast():
            out = self.trunk(input_ids=ids, attention_mask=self.mask, use_cache=True, **options)
        self.cache = out[self.cache_name]
        hidden: Tensor = out.last_hidden_state[:, -1]
        return hidden
