"""One weight update: forward and backward over micro-batches, the gradient clipped, AdamW. What every loop has in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from thumbwheel.config import TrainSettings
from thumbwheel.errors import TrainingError
from thumbwheel.train.task import Task, accelerator_of, through
from thumbwheel.train.units import Unit

L = TypeVar("L")


class Learner(Generic[L]):
    """The weights of a task that learn, and their optimiser."""

    def __init__(self, task: Task[L], settings: TrainSettings, accelerator: Accelerator | None = None) -> None:
        self.task, self.settings = task, settings
        self.accelerator = accelerator or accelerator_of()
        self.parameters = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise TrainingError("No weight of the model learns. Load it with trainable=True.")
        self.optimiser = adamw(self.parameters, settings)
        for parameter in self.parameters.values():  # kept and zeroed: large gradients made anew cost page faults
            parameter.grad = torch.zeros_like(parameter)

    def update(self, units: Sequence[Unit[L]], rate: float) -> dict[str, float]:
        """One weight update at the learning rate `rate`; its figures. `grad_norm` is absent where no token carried loss.

        Raises TrainingError where loss or gradient is not finite, or memory runs out; the weights are then as they were.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.task.model.train()
        figures, learned = through(self.task, units, self.settings, self.accelerator, learn=True)
        figures["lr"] = rate
        if learned:
            figures["grad_norm"] = self._clip(units)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=False)
        return figures

    def _clip(self, units: Sequence[Unit[L]]) -> float:
        """Scale gradients to the largest norm allowed; the norm they had."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = total_norm(grads)
        if not math.isfinite(norm):
            odd = [n for n, p in self.parameters.items() if p.grad is not None and not bool(p.grad.isfinite().all())]
            raise TrainingError(
                f"The gradient of the {self.task.name} update is not finite in {', '.join(odd[:3]) or 'its norm'}, for a step of "
                f"{', '.join(unit.name for unit in units[:5])}. Lower the learning rate, or drop rows that are out of "
                "the ordinary; the last checkpoint is sound and can be resumed from."
            )
        if norm > self.settings.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters.values(), self.settings.max_grad_norm, torch.tensor(norm))
        return norm


def adamw(parameters: Mapping[str, nn.Parameter], settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW in one fused kernel; vectors and scalars (norms, biases) do not decay (Loshchilov & Hutter 2019)."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr, betas=settings.adam_betas, eps=settings.adam_eps, fused=True,
    )  # fmt: skip


def total_norm(tensors: Sequence[Tensor]) -> float:
    """√(Σ x²) over all of them, row by row: one sum over a large matrix is three times slower and loses digits."""
    rows = [torch.linalg.vector_norm(x, dim=-1).flatten() if x.ndim > 1 else x.flatten() for x in tensors]
    return float(torch.linalg.vector_norm(torch.cat(rows)))
