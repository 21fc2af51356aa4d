"""The layers of a Llama-like decoder with hand-written gradients, for processors whose matrix units outrun their memory.

Where bfloat16 products run at a teraflop a core, most of a training step goes into passes over activations. These
functions make fewer passes, keep less for the backward pass, and return the same values and gradients as plain layers.

Axes: N packed token, L place in the spaced line, D hidden width, H query head, K key/value head, G = H/K, E head width,
Q query, S key of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thumbwheel.models.packed import AttentionPlan, Block, keys_of

ROWS = 512  # tokens an elementwise pass takes at a time, so that its intermediates stay in the cache
KEPT_SCORES = 1 << 20  # attention probabilities of a block up to this many elements are kept for the backward pass

Grads = tuple[Tensor | None, ...]


class _Norm(torch.autograd.Function):
    """y = w · x / √(mean x² + ε) (Zhang and Sennrich 2019, eq. 4), in float32 inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        w = weight.float()
        for i in range(0, len(x), ROWS):
            part = x[i : i + ROWS].float()
            r = torch.linalg.vector_norm(part, dim=1, keepdim=True).square_().div_(x.shape[1]).add_(eps).rsqrt_()
            scale[i : i + ROWS] = r
            y[i : i + ROWS] = (part * r).mul_(w)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        (dy,) = grads
        x, weight, scale = ctx.saved_tensors
        w = weight.float()
        dx = torch.empty_like(x)
        dw = torch.zeros_like(w) if ctx.needs_input_grad[1] else None
        for i in range(0, len(x), ROWS):
            r = scale[i : i + ROWS]
            unit = x[i : i + ROWS].float().mul_(r)
            slope = dy[i : i + ROWS].float()
            if dw is not None:
                dw += (slope * unit).sum(0)
            slope.mul_(w)
            along = (slope * unit).sum(1, keepdim=True).div_(x.shape[1])
            dx[i : i + ROWS] = slope.addcmul_(unit, along, value=-1).mul_(r)
        return dx, None if dw is None else dw.to(weight.dtype), None


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b + (x Aᵀ) Bᵀ + residual, each of b, (A, B) and residual optional; B holds the adapter's scale."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        if residual is not None:
            y = torch.addmm(residual, x, weight.t())
            if bias is not None:
                y += bias
        else:
            y = F.linear(x, weight, bias)
        low = None
        if a is not None and b is not None:
            low = F.linear(x, a)
            y.addmm_(low, b.t())
        ctx.save_for_backward(x if any(ctx.needs_input_grad[i] for i in (1, 3)) else None, weight, a, b, low)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        (dy,) = grads
        x, weight, a, b, low = ctx.saved_tensors
        needs_x, needs_w, needs_bias, needs_a, needs_b, needs_residual = ctx.needs_input_grad
        dx = torch.mm(dy, weight) if needs_x else None
        da = db = None
        if a is not None:
            dlow = torch.mm(dy, b)
            if dx is not None:
                dx.addmm_(dlow, a)
            da = torch.mm(dlow.t(), x) if needs_a else None
            db = torch.mm(dy.t(), low) if needs_b else None
        dw = torch.mm(dy.t(), x) if needs_w else None
        return dx, dw, dy.sum(0) if needs_bias else None, da, db, dy if needs_residual else None


class _Swiglu(torch.autograd.Function):
    """silu(g) · u of a line whose columns are [g | u] (Shazeer 2020, eq. 6)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        half = gate_up.shape[1] // 2
        y = gate_up.new_empty(len(gate_up), half)
        for i in range(0, len(gate_up), ROWS):
            part = gate_up[i : i + ROWS]
            torch.mul(F.silu(part[:, :half]), part[:, half:], out=y[i : i + ROWS])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        (dy,) = grads
        (gate_up,) = ctx.saved_tensors
        half = gate_up.shape[1] // 2
        d = torch.empty_like(gate_up)
        for i in range(0, len(gate_up), ROWS):
            g, u, slope = gate_up[i : i + ROWS, :half], gate_up[i : i + ROWS, half:], dy[i : i + ROWS]
            torch.mul(F.silu(g), slope, out=d[i : i + ROWS, half:])
            d[i : i + ROWS, :half] = torch.ops.aten.silu_backward(slope * u, g)
        return (d,)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """Rotary positions (Su et al. 2021, eq. 34) in the half-split layout: x (N, heads, E), cos and sin (N, 1, E)."""
    half = x.shape[-1] // 2
    y = x * cos
    first, second = (-1, 1) if not back else (1, -1)
    y[..., :half].addcmul_(x[..., half:], sin[..., :half], value=first)
    y[..., half:].addcmul_(x[..., :half], sin[..., half:], value=second)
    return y


class _Attention(torch.autograd.Function):
    """Rotary positions and causal attention over a plan's blocks: (N, (H + 2K)·E) columns [q | k | v] -> (N, H·E).

    N may go on past the plan: what stands there gets 0. Inside, queries lie as (K, L·G, E), beside the key head they share,
    keys and values as (K, L, E), all spaced as the plan says.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, heads: tuple[int, int], scale: float
    ) -> Tensor:
        H, K = heads
        N, G = len(qkv), H // K
        line = qkv.view(N, H + 2 * K, -1)
        turned = rotate(line[:, : H + K], cos, sin)
        q = _to_heads(turned[:, :H], K, plan).mul_(
            scale
        )  # on queries the scale is a pass over fewer numbers than on scores
        k, v = _to_heads(turned[:, H:], K, plan), _to_heads(line[:, H + K :], K, plan)
        out = torch.empty_like(q)
        kept: list[Tensor | None] = []
        for block in plan.blocks:
            p = _probabilities(q, k, block, G)
            torch.bmm(p, keys_of(block, v, 1), out=_block(out, block, G))
            kept.append(p if ctx.needs_input_grad[0] and p.numel() <= KEPT_SCORES else None)
        ctx.save_for_backward(q, k, v, cos, sin, *kept)
        ctx.settings = plan, heads, scale
        return _from_heads(out, N, H, plan).view(N, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        (dy,) = grads
        q, k, v, cos, sin, *kept = ctx.saved_tensors
        plan, (H, K), scale = ctx.settings
        N, G = len(dy), H // K
        do = _to_heads(dy.view(N, H, -1), K, plan)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block, p in zip(plan.blocks, kept, strict=True):
            if p is None:
                p = _probabilities(q, k, block, G)
            slope = _block(do, block, G)
            _add_keys(dv, block, p, slope)
            ds = torch.bmm(slope, keys_of(block, v, 1).transpose(1, 2))
            ds = torch._softmax_backward_data(ds, p, -1, p.dtype)
            torch.bmm(ds, keys_of(block, k, 1), out=_block(dq, block, G))
            _add_keys(dk, block, ds, _block(q, block, G))
        dline = dy.new_empty(N, H + 2 * K, q.shape[2])
        dturned = torch.cat([_from_heads(dq.mul_(scale), N, H, plan), _from_heads(dk, N, K, plan)], 1)
        dline[:, : H + K] = rotate(dturned, cos, sin, back=True)
        dline[:, H + K :] = _from_heads(dv, N, K, plan)
        return dline.view(N, -1), None, None, None, None, None


def _to_heads(x: Tensor, K: int, plan: AttentionPlan) -> Tensor:
    """(N, H, E) -> (K, L·G, E), in new memory, 0 in the gaps."""
    N, H, E = x.shape
    heads = x.view(N, K, H // K, E).transpose(0, 1)
    spaced = x.new_zeros(K, plan.size, H // K, E)
    for line, own in plan.stretches:
        spaced[:, own] = heads[:, line]
    return spaced.view(K, -1, E)


def _from_heads(x: Tensor, N: int, H: int, plan: AttentionPlan) -> Tensor:
    """(K, L·G, E) -> (N, H, E), in new memory, 0 past the plan."""
    K, _, E = x.shape
    spaced = x.view(K, plan.size, H // K, E)
    y = x.new_zeros(N, K, H // K, E)
    for line, own in plan.stretches:
        y[line] = spaced[:, own].transpose(0, 1)
    return y.view(N, H, E)


def _block(x: Tensor, block: Block, G: int) -> Tensor:
    """The block's queries out of (K, L·G, E)."""
    return x.narrow(1, block.start * G, (block.stop - block.start) * G)


def _probabilities(q: Tensor, k: Tensor, block: Block, G: int) -> Tensor:
    """(K, Q·G, S) softmax of the scores a query may see."""
    scores = torch.bmm(_block(q, block, G), keys_of(block, k, 1).transpose(1, 2))
    scores.view(len(scores), -1, G, scores.shape[2]).masked_fill_(block.hidden[:, None], float("-inf"))
    return torch.softmax(scores, -1, out=scores)


def _add_keys(line: Tensor, block: Block, weights: Tensor, x: Tensor) -> None:
    """line (K, L, E) += weightsᵀ x over the block's queries: weights (K, Q·G, S), x (K, Q·G, E)."""
    done = 0
    for part in block.keys:
        width = part.stop - part.start
        line[:, part].baddbmm_(weights.narrow(2, done, width).transpose(1, 2), x)
        done += width


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(N, D) -> (N, D)."""
    out: Tensor = _Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """(N, in) -> (N, out)."""
    out: Tensor = _Linear.apply(x, weight, bias, a, b, residual)  # type: ignore[no-untyped-call]
    return out


def swiglu(gate_up: Tensor) -> Tensor:
    """(N, 2F) -> (N, F)."""
    out: Tensor = _Swiglu.apply(gate_up)  # type: ignore[no-untyped-call]
    return out


def attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, heads: tuple[int, int], scale: float
) -> Tensor:
    """(N, (H + 2K)·E) -> (N, H·E)."""
    out: Tensor = _Attention.apply(qkv, cos, sin, plan, heads, scale)  # type: ignore[no-untyped-call]
    return out
