"""A Llama-like network read as a stack of plain weights, run with the fused layers. It owns no weights of its own.

Llama, Mistral and Qwen2 are read so; every other architecture runs through transformers' own modules. Both are tested equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from thumbwheel.models import fused
from thumbwheel.models.adapters import LowRank
from thumbwheel.models.packed import AttentionPlan, rounded
from thumbwheel.models.shapes import shortest_window


class Attend(Protocol):
    """Attention of one layer: columns [q | k | v] (N, (H + 2K)·E) -> (N, H·E)."""

    def __call__(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...


READ = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


class Joined:
    """Linear layers that read the same input, as one: weights stacked, adapters side by side.

    Frozen weights of one dtype are stacked once, and the layers' own weights become views of the stack, so nothing is
    held twice. Weights that learn are stacked and cast anew in every forward pass.
    """

    def __init__(self, owner: nn.Module, *names: str) -> None:
        self.owner = owner
        self.names = names  # looked up anew each time: adapters wrap the layers later on
        self._stack: Tensor | None = None

    def _layers(self) -> list[nn.Module]:
        return [getattr(self.owner, name) for name in self.names]

    def _linears(self) -> list[nn.Linear]:
        return [layer.base if isinstance(layer, LowRank) else layer for layer in self._layers()]  # type: ignore[misc]

    def weights(self) -> list[Tensor]:
        """The weights as they lie in memory: each layer's own where they learn, one stack where they are frozen."""
        weights: list[Tensor] = []
        weights.extend(layer.weight for layer in self._linears())
        if len(weights) == 1 or any(w.requires_grad for w in weights):
            return weights
        if self._stack is None or self._stack.data_ptr() != weights[0].data_ptr():
            self._stack = _stacked(weights)
        return [self._stack]

    def weight(self, dtype: torch.dtype) -> Tensor:
        """(out, in) in `dtype`."""
        weights = self.weights()
        return (weights[0] if len(weights) == 1 else torch.cat(weights)).to(dtype)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """(out,) in `dtype`, or None where no layer has one."""
        linears = self._linears()
        if all(layer.bias is None for layer in linears):
            return None
        parts: list[Tensor] = [x.weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in linears]
        return torch.cat(parts).to(dtype)

    def adapter(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """A (sum of ranks, in) and block-diagonal B (out, sum of ranks) with the scale in it, or (None, None)."""
        a: list[Tensor] = []
        b: list[Tensor] = []
        for layer, linear in zip(self._layers(), self._linears(), strict=True):
            factors = layer.factors() if isinstance(layer, LowRank) else None
            if factors is None or not isinstance(layer, LowRank):
                b.append(linear.weight.new_zeros(linear.out_features, 0, dtype=torch.float32))
            else:
                a.append(factors[0])
                b.append(factors[1] * layer.scale)
        if not a:
            return None, None
        return torch.cat(a).to(dtype), torch.block_diag(*b).to(dtype)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(N, in) -> (N, out), the residual added."""
        dtype = x.dtype
        return fused.linear(x, self.weight(dtype), self.bias(dtype), *self.adapter(dtype), residual)


def _stacked(weights: list[Tensor]) -> Tensor:
    """One tensor of all, of which each becomes a view. Ordinary tensors, even where the caller is in inference mode."""
    with torch.inference_mode(mode=False):
        stack = torch.cat([w.detach() for w in weights])
        done = 0
        for own in weights:
            own.data = stack[done : done + len(own)]
            done += len(own)
    return stack


class Layer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norms = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Joined(attention, "q_proj", "k_proj", "v_proj")
        self.o = Joined(attention, "o_proj")
        self.gate_up = Joined(mlp, "gate_proj", "up_proj")
        self.down = Joined(mlp, "down_proj")
        self.scale = float(attention.scaling)
        self.head_width = int(attention.head_dim)

    def forward(self, x: Tensor, attend: Callable[[Tensor], Tensor], at: Tensor | None) -> Tensor:
        """(N, D) -> (N, D), or (len(at), D) at the asked places. `attend` maps columns [q | k | v] to mixed values."""
        mixed = attend(self.qkv(norm(self.norms[0], x)))
        if at is not None:
            mixed, x = mixed[at], x[at]
        x = self.o(mixed, x)
        return self.down(fused.swiglu(self.gate_up(norm(self.norms[1], x))), x)


def filled(x: Tensor) -> Tensor:
    """(N,) -> (rounded(N),), zeros behind: nothing is read there, and products come in few sizes."""
    return nn.functional.pad(x, (0, rounded(len(x)) - len(x)))


def norm(module: Any, x: Tensor) -> Tensor:
    """The module's RMS norm."""
    return fused.norm(x, module.weight, module.variance_epsilon)


class Decoder:
    """The whole trunk: tokens in, final normed hidden states out."""

    def __init__(self, network: Any) -> None:
        trunk, config = network.base_model, network.config
        self.embedding = trunk.embed_tokens
        self.rotary = trunk.rotary_emb
        self.layers = [Layer(layer) for layer in trunk.layers]
        self.final = trunk.norm
        self.heads = (int(config.num_attention_heads), int(config.num_key_value_heads))
        self.window = shortest_window(config)
        self.checkpointing = False

    @classmethod
    def of(cls, network: Any) -> Decoder | None:
        """The network read as a stack of weights, or None where it is of another make."""
        config = network.config
        if type(network).__name__ not in READ or config.hidden_act not in ("silu", "swish"):
            return None
        return cls(network)

    def fits(self, plan: AttentionPlan) -> bool:
        """Whether no row is longer than the sliding window, inside which it changes nothing."""
        return plan.longest <= self.window

    def hidden(
        self, ids: Tensor, positions: Tensor, plan: AttentionPlan, dtype: torch.dtype, at: Tensor | None = None
    ) -> Tensor:
        """(N, D) final hidden states in `dtype`, or (len(at), D) of the asked places only."""

        def attend(layer: int, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return fused.attention(qkv, cos, sin, plan, self.heads, self.layers[layer].scale)

        wanted = len(ids) if at is None else len(at)
        asked = None if at is None else filled(at)
        return self.run(filled(ids), filled(positions), attend, dtype, asked)[:wanted]

    def run(
        self, ids: Tensor, positions: Tensor, attend: Attend, dtype: torch.dtype, at: Tensor | None = None
    ) -> Tensor:
        """The trunk with attention of the caller's: `attend(layer, [q | k | v] columns, cos, sin)` -> (N, H·E)."""
        table = self.embedding.weight
        # Where a dense gradient stands already, the few rows of this one are added to it; a second table is not made.
        x = nn.functional.embedding(ids, table, sparse=table.grad is not None).to(dtype)
        cos, sin = self.rotary(x[None], positions[None])
        cos, sin = cos[0][:, None], sin[0][:, None]
        for index, layer in enumerate(self.layers):
            mix = partial(attend, index, cos=cos, sin=sin)
            asked = at if index == len(self.layers) - 1 else None
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer.forward, x, mix, asked, use_reentrant=False)
            else:
                x = layer.forward(x, mix, asked)
        return norm(self.final, x)
