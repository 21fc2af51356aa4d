"""Log-probabilities of chosen tokens without keeping logits of the whole vocabulary.

    log p(y) = z_y - logsumexp(z),   z = (h Wᵀ + b) / τ

| symbol | name | shape | unit |
| --- | --- | --- | --- |
| h | hidden states at trained positions | (M, D) | |
| W, b | head weight and bias | (V, D), (V,) | |
| τ | sampling temperature | scalar | |
| log p | log-probability of each target | (M,) float32 | nats |

Logits exist for one chunk of positions at a time, in memory that the next chunk uses again. The gradient with respect
to h is `g (W_y - Σ p_v W_v) / τ`, where g is the upstream gradient of each token: all but the factor g is known in the
forward pass, so with a frozen head it is computed there, while the chunk's probabilities are at hand, and only scaled in
the backward pass. A head that learns has every chunk but the last computed again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thumbwheel.models.packed import rounded

CHUNK = 256
ROWS = 8  # whose entropy is summed at a time: their probabilities stay in the cache, which is twice as fast as a chunk at a time
TINY = torch.finfo(torch.float32).tiny


def _chunk(
    h: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tau: float, room: Tensor
) -> tuple[Tensor, Tensor]:
    """Of one chunk: probabilities p (C, V) in h's dtype, in the first rows of `room`, and log p(y) (C,) in float32.

    The softmax is one pass in place. Its sum is read back from p(y), which has kept its relative precision; the target's
    own logit, rounded in z, is put right by a float32 product, in the sum too, so that log p(y) stays below 0.
    """
    z = torch.mm(h, weight.t(), out=room[: len(h)])
    if bias is not None:
        z += bias
    if tau != 1.0:
        z.div_(tau)
    rounded = z.gather(1, y[:, None])[:, 0].float()
    torch.softmax(z, 1, out=z)
    p_y = z.gather(1, y[:, None])[:, 0].float()
    exact = (h.float() * weight[y].float()).sum(1)
    if bias is not None:
        exact += bias[y].float()
    shift = exact.div_(tau) - rounded
    logp = p_y.log() + shift - torch.log1p(p_y * torch.expm1(shift))
    lost = (p_y < TINY).nonzero()[:, 0]  # under e^-87 the softmax has no digits left: these few rows are done alone
    if len(lost):
        all_z = F.linear(h[lost], weight, bias).float() / tau
        logp[lost] = all_z.gather(1, y[lost, None])[:, 0] - torch.logsumexp(all_z, 1)
    return z, logp


def _room(h: Tensor, weight: Tensor) -> Tensor:
    """Memory for one chunk's logits: new memory for each chunk costs a CPU as much as the product that fills it."""
    return h.new_empty(min(len(h), CHUNK), len(weight))


class _TokenLogps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tau: float) -> Tensor:
        needs_h, needs_w, needs_b = ctx.needs_input_grad[:3]
        eager = needs_h and not (needs_w or needs_b)
        out = torch.empty(len(y), dtype=torch.float32, device=h.device)
        slope = torch.empty_like(h) if eager else None
        room = _room(h, weight)
        p = room[:0]
        for i in range(0, len(y), CHUNK):
            part = slice(i, i + CHUNK)
            p, out[part] = _chunk(h[part], weight, bias, y[part], tau, room)
            if slope is not None:
                slope[part] = torch.mm(p, weight).neg_().add_(weight[y[part]]).div_(tau)
        ctx.tau = tau
        ctx.last = None if eager else p
        if slope is not None:
            ctx.save_for_backward(slope)
        else:
            ctx.save_for_backward(h, weight, bias, y)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        if len(ctx.saved_tensors) == 1:
            (slope,) = ctx.saved_tensors
            return slope * g[:, None].to(slope.dtype), None, None, None, None
        h, weight, bias, y = ctx.saved_tensors
        needs_h, needs_w, needs_b = ctx.needs_input_grad[:3]
        dh = torch.empty_like(h) if needs_h else None
        dw = (torch.empty_like if len(y) else torch.zeros_like)(weight) if needs_w else None
        db = torch.zeros_like(bias) if bias is not None and needs_b else None
        last, ctx.last = ctx.last, None  # used once: what follows overwrites it
        room = _room(h, weight) if last is None or len(y) > CHUNK else last
        starts = range(0, len(y), CHUNK)
        for i in reversed(starts):
            part = slice(i, i + CHUNK)
            first = i == starts[-1]
            p = last if first and last is not None else _chunk(h[part], weight, bias, y[part], ctx.tau, room)[0]
            scaled = (g[part] / ctx.tau).to(p.dtype)
            p.mul_(scaled.neg()[:, None])
            p[torch.arange(len(p), device=p.device), y[part]] += scaled
            if dh is not None:
                torch.mm(p, weight, out=dh[part])
            if dw is not None and first:
                torch.mm(p.t(), h[part], out=dw)
            elif dw is not None:
                dw.addmm_(p.t(), h[part])
            if db is not None:
                db += p.sum(0)
        return dh, dw, db, None, None


def token_logps(
    h: Tensor, weight: Tensor, y: Tensor, *, bias: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """(M,) float32 log-probability of each y under softmax((h Wᵀ + b) / temperature); differentiable in h, W and b."""
    extra = rounded(len(y)) - len(y)  # products come in few sizes
    h, places = F.pad(h, (0, 0, 0, extra)), F.pad(y, (0, extra))
    out: Tensor = _TokenLogps.apply(h, weight, bias, places, temperature)  # type: ignore[no-untyped-call]
    return out[: len(y)]


class _TokenEntropies(torch.autograd.Function):
    """H = -Σ p_v log p_v of each position. dH/dz_v = -p_v (log p_v + H), computed again chunk by chunk in the backward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, tau: float) -> Tensor:
        out = torch.empty(len(h), dtype=torch.float32, device=h.device)
        for i in range(0, len(h), CHUNK):
            logp = _log_softmax(h[i : i + CHUNK], weight, bias, tau)
            out[i : i + CHUNK] = -(logp.exp() * logp).sum(1)
        ctx.save_for_backward(h, weight, bias, out)
        ctx.tau = tau
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        h, weight, bias, entropy = ctx.saved_tensors
        needs_h, needs_w, needs_b = ctx.needs_input_grad[:3]
        dh = torch.empty_like(h) if needs_h else None
        dw = torch.zeros_like(weight) if needs_w else None
        db = torch.zeros_like(bias) if bias is not None and needs_b else None
        for i in range(0, len(h), CHUNK):
            part = slice(i, i + CHUNK)
            logp = _log_softmax(h[part], weight, bias, ctx.tau)
            dz = logp.exp().mul_(logp + entropy[part, None]).mul_(-g[part, None] / ctx.tau).to(h.dtype)
            if dh is not None:
                torch.mm(dz, weight, out=dh[part])
            if dw is not None:
                dw.addmm_(dz.t(), h[part])
            if db is not None:
                db += dz.sum(0)
        return dh, dw, db, None


def _log_softmax(h: Tensor, weight: Tensor, bias: Tensor | None, tau: float) -> Tensor:
    return torch.log_softmax(F.linear(h, weight, bias).float() / tau, dim=1)


def token_entropies(h: Tensor, weight: Tensor, *, bias: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """(M,) float32 entropy in nats of softmax((h Wᵀ + b) / temperature); differentiable in h, W and b."""
    out: Tensor = _TokenEntropies.apply(h, weight, bias, temperature)  # type: ignore[no-untyped-call]
    return out


@torch.no_grad()
def logps_and_entropies(
    h: Tensor, weight: Tensor, y: Tensor, *, bias: Tensor | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(M,) `token_logps` and (M,) `token_entropies` of one product; no gradient.

    H is summed from the probabilities as they are kept: with bfloat16 each is off by up to 0.4 %, and their sum by 0.002 nats.
    """
    logp, entropy = (torch.empty(len(y), dtype=torch.float32, device=h.device) for _ in range(2))
    extra = rounded(len(y)) - len(y)
    h, places = F.pad(h, (0, 0, 0, extra)), F.pad(y, (0, extra))
    room = _room(h, weight)
    wide = torch.empty(min(len(h), ROWS), len(weight), dtype=torch.float32, device=h.device)
    for i in range(0, len(y), CHUNK):
        p, found = _chunk(h[i : i + CHUNK], weight, bias, places[i : i + CHUNK], temperature, room)
        kept = min(CHUNK, len(y) - i)
        logp[i : i + kept] = found[:kept]
        for j in range(0, kept, ROWS):
            some = p[j : min(j + ROWS, kept)]
            log_p = wide[: len(some)].copy_(some).clamp_min_(TINY).log_()
            entropy[i + j : i + j + len(some)] = log_p.mul_(some).sum(1).neg_()
    return logp, entropy
