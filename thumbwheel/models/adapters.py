"""Low-rank adapters (Hu et al. 2021, eq. 3): y = x Wᵀ + (α/r) x Aᵀ Bᵀ, with W frozen.

A (r, in) starts as Kaiming-uniform noise and B (out, r) as zeros, so a fresh adapter changes nothing. Parameters are
float32 whatever the frozen weight is stored in. Folders are written in the format that `peft` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thumbwheel.errors import ModelError, explain


class LowRank(nn.Module):
    """A frozen linear layer with an adapter. `reference` holds A and B as they were when training began, or None."""

    def __init__(self, base: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / r
        self.a = nn.Parameter(torch.zeros(r, base.in_features, device=base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, r, device=base.weight.device))
        self.reference: tuple[Tensor, Tensor] | None = None
        self.use_reference = False

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """A and B in force, or None where they change nothing (the reference of a fresh adapter)."""
        return self.reference if self.use_reference else (self.a, self.b)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) -> (…, out) in x's dtype."""
        y = self.base(x)
        factors = self.factors()
        if factors is None:
            return y  # type: ignore[no-any-return]
        a, b = (factor.to(y.dtype) for factor in factors)
        return y + F.linear(F.linear(x, a), b * self.scale)  # type: ignore[no-any-return]


def adapters_of(network: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """(name of the wrapped layer, adapter) of every adapter in the network."""
    for name, module in network.named_modules():
        if isinstance(module, LowRank):
            yield name, module


def target_names(network: nn.Module, wanted: Sequence[str]) -> list[str]:
    """Full names of linear layers to adapt: those whose last part is in `wanted`, or all but the head. Raises ModelError."""
    head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
    linear = [n for n, m in network.named_modules() if isinstance(m, nn.Linear) and m is not head]
    chosen = [n for n in linear if not wanted or n.rpartition(".")[2] in wanted]
    missing = set(wanted) - {n.rpartition(".")[2] for n in linear}
    if missing or not chosen:
        known = sorted({n.rpartition(".")[2] for n in linear})
        raise ModelError(
            explain("'model.lora_targets' names no linear layer of this model.", allowed=known, got=list(wanted))
        )
    return chosen


def add_adapters(network: nn.Module, targets: Sequence[str], *, r: int, alpha: float, seed: int) -> None:
    """Wrap the named linear layers. A is drawn from `seed`, layer by layer in order; B is zero."""
    dice = torch.Generator().manual_seed(seed)
    for name in targets:
        parent, _, last = name.rpartition(".")
        owner = network.get_submodule(parent)
        layer = getattr(owner, last)
        adapter = LowRank(layer, r, alpha)
        bound = 1 / math.sqrt(layer.in_features)  # kaiming_uniform with a = sqrt(5)
        noise = torch.empty(r, layer.in_features).uniform_(-bound, bound, generator=dice)
        with torch.no_grad():
            adapter.a.copy_(noise)
        setattr(owner, last, adapter)
