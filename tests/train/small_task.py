"""A task small enough to follow by hand: predict a number from a bag of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from thumbwheel.batches import TokenRow
from thumbwheel.train.task import Losses, Task
from thumbwheel.train.units import MicroBatch, Unit


class Bag(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(12, 3, generator=dice))
        self.out = nn.Parameter(torch.randn(3, generator=dice))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].mean(0) @ self.out


class BagTask(Task[float]):
    name = "bag"
    watch = "error"
    figures = ("error",)
    model: Bag

    def totals(self, units: Sequence[Unit[float]]) -> float:
        return float(len(units))

    def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
        guess = torch.stack([self.model(torch.from_numpy(unit.rows[0].ids)) for unit in micro.units])
        error = guess - torch.tensor([unit.label for unit in micro.units])
        return Losses(error**2 / totals, {"error": error.abs()})


def bag_unit(index: int, label: float | None = None) -> Unit[float]:
    dice = np.random.default_rng(index)
    ids = dice.integers(0, 12, size=int(dice.integers(2, 9)))
    trained = np.ones(len(ids), dtype=np.bool_)
    trained[0] = False
    return Unit(f"bag {index}", (TokenRow(ids, trained, 1),), float(dice.normal()) if label is None else label)


def bag_units(n: int, start: int = 0) -> list[Unit[float]]:
    return [bag_unit(index) for index in range(start, start + n)]


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
