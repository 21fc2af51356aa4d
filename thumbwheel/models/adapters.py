"""Low-rank adapters (Hu et al. 2021, eq. 3): y = x Wᵀ + (α/r) x Aᵀ Bᵀ, with W frozen.

A (r, in) starts as Kaiming-uniform noise and B (out, r) as zeros, so a fresh adapter changes nothing. Parameters are
float32 whatever the frozen weight is stored in. Folders are written in the format that `peft` reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thumbwheel.errors import CheckpointError, ModelError, explain

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."


class LowRank(nn.Module):
    """A frozen linear layer with an adapter. `reference` holds A and B as they were when training began, or None."""

    def __init__(self, base: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.base: nn.Linear = base
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
        y: Tensor = self.base(x)
        factors = self.factors()
        if factors is None:
            return y
        a, b = (factor.to(y.dtype) for factor in factors)
        return y + F.linear(F.linear(x, a), b * self.scale)


def adapters_of(network: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """(name of the wrapped layer, adapter) of every adapter in the network."""
    for name, module in network.named_modules():
        if isinstance(module, LowRank):
            yield name, module


def target_names(network: Any, wanted: Sequence[str]) -> list[str]:
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
        adapter = _wrap(network, name, r=r, alpha=alpha)
        with torch.no_grad():
            adapter.a.copy_(_noise(r, adapter.base.in_features, dice))


def _noise(r: int, width: int, dice: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(width)  # Kaiming-uniform with a = √5
    return torch.empty(r, width).uniform_(-bound, bound, generator=dice)


def _wrap(network: nn.Module, name: str, *, r: int, alpha: float) -> LowRank:
    parent, _, last = name.rpartition(".")
    owner = network.get_submodule(parent)
    adapter = LowRank(getattr(owner, last), r, alpha)
    setattr(owner, last, adapter)
    return adapter


def continue_adapters(network: nn.Module, *, r: int, seed: int) -> None:
    """Go on from the adapters in place: they become the reference, and learn from here.

    A larger rank is reached by fresh rows of A and zero columns of B, which change nothing; the rank never shrinks.
    """
    dice = torch.Generator().manual_seed(seed)
    for _, adapter in adapters_of(network):
        adapter.reference = (adapter.a.detach().clone(), adapter.b.detach().clone())
        extra = r - adapter.a.shape[0]
        if extra > 0:
            a, b = adapter.a.detach(), adapter.b.detach()
            fresh = _noise(extra, a.shape[1], dice).to(a)
            adapter.a = nn.Parameter(torch.cat([a, fresh]))
            adapter.b = nn.Parameter(torch.cat([b, b.new_zeros(len(b), extra)], dim=1))
        adapter.a.requires_grad_(True)
        adapter.b.requires_grad_(True)


@torch.no_grad()
def merge(network: nn.Module) -> None:
    """Replace every adapter by a plain layer whose weight has it added (in float32, then rounded to the weight's dtype)."""
    for name, adapter in list(adapters_of(network)):
        weight = adapter.base.weight
        weight.copy_(weight.float() + adapter.scale * (adapter.b @ adapter.a))
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, adapter.base)


@dataclass(frozen=True)
class AdapterConfig:
    """What the folder says of its adapters."""

    base: str
    r: int
    alpha: float
    targets: tuple[str, ...]


def save_adapters(network: nn.Module, folder: Path, *, base: str) -> None:
    """Write the adapters as `peft` does; `base` is the path or id of the weights they belong to."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    found = list(adapters_of(network))
    for name, adapter in found:
        tensors[f"{PREFIX}{name}.lora_A.weight"] = adapter.a.detach().cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = adapter.b.detach().cpu().contiguous()
    first = found[0][1]
    r = int(first.a.shape[0])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": first.scale * r,
        "target_modules": sorted({name.rpartition(".")[2] for name, _ in found}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_config(folder: Path) -> AdapterConfig:
    """Raises CheckpointError when it cannot be read, ModelError for kinds of adapters that are not plain LoRA."""
    try:
        raw = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config = AdapterConfig(
            base=str(raw["base_model_name_or_path"]),
            r=int(raw["r"]),
            alpha=float(raw["lora_alpha"]),
            targets=tuple(raw["target_modules"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"'{folder / CONFIG}' is missing or cut short: {error!r}. Take an earlier version."
        ) from error
    extras = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
    used = [key for key in extras if raw.get(key)]
    if raw.get("peft_type", "LORA") != "LORA" or raw.get("bias", "none") != "none" or used:
        raise ModelError(
            explain(
                f"The adapter in '{folder}' is of a kind that is not read here.",
                allowed="plain LoRA without bias",
                got=used or [raw.get("peft_type"), raw.get("bias")],
                next="Merge it into its base model and load that.",
            )
        )
    return config


def load_adapters(network: nn.Module, folder: Path, config: AdapterConfig) -> None:
    """Wrap the layers and fill the adapters from the folder, frozen. Raises CheckpointError when tensors do not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(str(folder / WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"'{folder / WEIGHTS}' is missing or cut short: {error}. Take an earlier version."
        ) from error
    names = sorted({key.removeprefix(PREFIX).rpartition(".lora_")[0] for key in tensors})
    known = {name for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if not names or set(names) - known or len(tensors) != 2 * len(names):
        strange = sorted(set(names) - known)[:3] or sorted(tensors)[:3]
        raise CheckpointError(f"The adapter in '{folder}' does not fit this base model: {strange}. Check its base.")
    order = [name for name, _ in network.named_modules() if name in set(names)]
    for name in order:
        adapter = _wrap(network, name, r=config.r, alpha=config.alpha)
        for parameter, letter in ((adapter.a, "A"), (adapter.b, "B")):
            tensor = tensors.get(f"{PREFIX}{name}.lora_{letter}.weight")
            if tensor is None or tensor.shape != parameter.shape:
                got = None if tensor is None else tuple(tensor.shape)
                raise CheckpointError(
                    f"The adapter tensor '{name}.lora_{letter}' in '{folder}' does not fit. "
                    f"Allowed: shape {tuple(parameter.shape)}. Got: {got}."
                )
            with torch.no_grad():
                parameter.copy_(tensor)
            parameter.requires_grad_(False)
