"""Units: what a loss needs whole. An optimiser step takes some of them, and cuts them into micro-batches to fit memory.

Axes: U unit, R row, N packed token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from thumbwheel.batches import Ints, PackedBatch, TokenRow, micro_batches, pack

L = TypeVar("L")


@dataclass(frozen=True)
class Unit(Generic[L]):
    """A demonstration, a pair, or all answers to a prompt. `name` is what an error calls it; `label` what was said of it."""

    name: str
    rows: tuple[TokenRow, ...]
    label: L


@dataclass(frozen=True)
class MicroBatch(Generic[L]):
    """Units that go through the model together.

    packed  their rows in one line, unit after unit
    first   (U,) index of each unit's first row; its other rows follow in the unit's own order
    """

    units: tuple[Unit[L], ...]
    packed: PackedBatch
    first: Ints

    @classmethod
    def of(cls, units: Sequence[Unit[L]]) -> MicroBatch[L]:
        """All of `units`, in their order."""
        counts = [len(unit.rows) for unit in units]
        first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        return cls(tuple(units), pack([row for unit in units for row in unit.rows]), first)

    @cached_property
    def unit_of_row(self) -> Ints:
        """(R,) which unit a row belongs to."""
        return np.repeat(np.arange(len(self.units)), [len(unit.rows) for unit in self.units])

    @cached_property
    def row_lengths(self) -> Ints:
        """(R,) trained tokens of each row."""
        return np.bincount(self.packed.row, minlength=self.packed.n_rows)

    def by_unit(self, per_row: Tensor) -> Tensor:
        """(R,) -> (U,): sums over the rows of each unit."""
        place = torch.from_numpy(self.unit_of_row).to(per_row.device)
        return per_row.new_zeros(len(self.units)).index_add(0, place, per_row)


def in_micro_batches(units: Sequence[Unit[L]], max_tokens: int) -> list[MicroBatch[L]]:
    """`units` in micro-batches of at most `max_tokens` packed tokens; a unit is never split."""
    cuts = micro_batches([unit.rows for unit in units], max_tokens=max_tokens)
    return [MicroBatch.of([units[index] for index in sorted(cut)]) for cut in cuts]


def epoch_order(n: int, *, seed: int, epoch: int) -> Ints:
    """(n,) the order of units in an epoch: a function of seed and epoch alone, so that any process can resume it."""
    return np.random.default_rng([seed, epoch]).permutation(n)


def column(values: Sequence[float] | Ints, device: torch.device) -> Tensor:
    """(n,) float32 numbers on a device."""
    return torch.as_tensor(values, dtype=torch.float32, device=device)


def data_hash(units: Sequence[Unit[L]]) -> str:
    """SHA-256 (hex) over every token, mask and label, in order."""
    digest = hashlib.sha256()
    for unit in units:
        digest.update(f"{len(unit.rows)} {unit.label!r}".encode())
        for row in unit.rows:
            digest.update(f"{len(row)} {row.shared}".encode())
            digest.update(row.ids.tobytes())
            digest.update(row.trained.tobytes())
    return digest.hexdigest()
