"""One token of every row through a Llama-like network: the rows are columns, so weights are read as they lie in memory.

A step of decoding reads every weight once for a few rows, so it is as fast as the weights are read. torch's CPU library
multiplies W (out, in) by x (in, B) straight from memory; x (B, in) by Wᵀ it only does after it has rearranged W, in every step.

Axes: B column (one row in flight), D hidden width, F width inside the feed-forward, H query head, K key/value head, E head
width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from thumbwheel.models.decoder import Decoder, Joined, Layer
from thumbwheel.models.packed import rounded

Mix = Callable[[int, Tensor], Tensor]


def columns_for(rows: int) -> int:
    """`rows` up to one of a few numbers, since a library compiles a product anew for each size it has not met."""
    return next((n for n in (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64) if rows <= n), rounded(rows))


def product(weight: Tensor, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """weight (out, in) and x (in, B) -> (out, B), the residual (out, B) added."""
    if x.shape[1] == 1:  # a product of a matrix and a vector is 1.5 to 2.5 times faster by its own name
        if residual is None:
            return torch.mv(weight, x[:, 0])[:, None]
        return torch.addmv(residual[:, 0], weight, x[:, 0])[:, None]
    return torch.mm(weight, x) if residual is None else torch.addmm(residual, weight, x)


class Linear:
    """Linear layers that read the same input, as they stand when this is made: weights are referred to, not copied.

    A copy is made only of what has another dtype than the products (master weights in float32 under products in bfloat16), of
    biases and of adapters.
    """

    def __init__(self, joined: Joined, dtype: torch.dtype) -> None:
        self.weights = [weight.detach().to(dtype) for weight in joined.weights()]
        bias = joined.bias(dtype)
        self.bias = None if bias is None else bias.detach()[:, None]
        a, b = joined.adapter(dtype)
        self.adapter = None if a is None or b is None else (a.detach(), b.detach())

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(in, B) -> (out, B); a residual only where there is one layer."""
        if len(self.weights) == 1:
            y = product(self.weights[0], x, residual)
        else:
            y = torch.cat([product(weight, x) for weight in self.weights])
        if self.bias is not None:
            y += self.bias
        if self.adapter is not None:
            a, b = self.adapter
            y = product(b, product(a, x), y)
        return y


class _Layer:
    """One decoder layer's weights."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        self.norms = Norm(layer.norms[0]), Norm(layer.norms[1])
        self.qkv, self.o = Linear(layer.qkv, dtype), Linear(layer.o, dtype)
        self.gate_up, self.down = Linear(layer.gate_up, dtype), Linear(layer.down, dtype)


class Norm:
    """y = w · x / √(mean x² + ε) (Zhang and Sennrich 2019, eq. 4), in float32 inside, over the columns."""

    def __init__(self, module: torch.nn.Module) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        self.weight = weight.detach().float()[:, None]
        self.eps = float(module.variance_epsilon)  # type: ignore[arg-type]

    def __call__(self, x: Tensor) -> Tensor:
        """(D, B) -> (D, B)."""
        wide = x.to(torch.float32, copy=True)
        scale = wide.square().mean(0).add_(self.eps).rsqrt_()
        y: Tensor = wide.mul_(scale).mul_(self.weight)
        return y.to(x.dtype)


class Columns:
    """The decoder's weights as they stand now, for steps of one token a row."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype) -> None:
        self.decoder = decoder
        self.dtype = dtype
        self.layers = [_Layer(layer, dtype) for layer in decoder.layers]
        self.final = Norm(decoder.final)

    def step(self, tokens: Tensor, positions: Tensor, mix: Mix) -> Tensor:
        """(B,) tokens and positions -> (B, D) final normed hidden states.

        `mix(layer, line)` maps (B, H + 2K, E) queries, keys and values, rotated, to (B, H·E) mixed values.
        """
        rows = len(tokens)
        spare = columns_for(rows) - rows
        if spare:
            tokens, positions = F.pad(tokens, (0, spare)), F.pad(positions, (0, spare))
        x = F.embedding(tokens, self.decoder.embedding.weight).to(self.dtype)
        turn = Turn(self.decoder, x[:rows], positions[:rows])
        x = x.t().contiguous()
        for index, layer in enumerate(self.layers):
            line = layer.qkv(layer.norms[0](x)).t()[:rows]
            mixed = mix(index, turn(line))
            x = layer.o(F.pad(mixed, (0, 0, 0, spare)).t() if spare else mixed.t(), x)
            gate, up = layer.gate_up(layer.norms[1](x)).chunk(2)
            x = layer.down(F.silu(gate).mul_(up), x)
        hidden: Tensor = self.final(x).t()[:rows]
        return hidden


class Turn:
    """Rotary positions (Su et al. 2021, eq. 34) of one step, in the half-split layout; values are left as they are."""

    def __init__(self, decoder: Decoder, x: Tensor, positions: Tensor) -> None:
        H, K = decoder.heads
        cos, sin = decoder.rotary(x[None], positions[None])
        self.half = cos.shape[-1] // 2
        self.cos = cos.new_ones(len(positions), H + 2 * K, 2 * self.half)
        self.cos[:, : H + K] = cos[0][:, None]
        self.sin = cos.new_zeros(len(positions), H + 2 * K, self.half)
        self.sin[:, : H + K] = sin[0][:, None, : self.half]

    def __call__(self, line: Tensor) -> Tensor:
        """(B, (H + 2K)·E) columns [q | k | v] -> (B, H + 2K, E)."""
        x = line.contiguous().view(self.cos.shape)  # attention is fast only where the head width is contiguous
        y: Tensor = x * self.cos
        y[..., : self.half].addcmul_(x[..., self.half :], self.sin, value=-1)
        y[..., self.half :].addcmul_(x[..., : self.half], self.sin)
        return y
