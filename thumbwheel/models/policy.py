"""A policy: what on-policy updates ask of a model. `evaluate(batch)` gives log-probability, entropy and value of every action.

Axes: M trained token, R row, D hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from thumbwheel.batches import PackedBatch
from thumbwheel.errors import CheckpointError
from thumbwheel.models import folders, logps
from thumbwheel.models.heads import ValueHead
from thumbwheel.models.language import LanguageModel

HEAD = "value_head.safetensors"


@dataclass(frozen=True)
class Evaluated:
    """Of every trained token, in the batch's order: (M,) float32 each; None where it was not asked for or there is none.

    logp     nats, of the token that was taken, at the temperature asked for
    entropy  nats, of the distribution it was taken from
    value    expected return where the token was chosen, in units of the reward
    """

    logp: Tensor
    entropy: Tensor | None = None
    value: Tensor | None = None


class Policy(Protocol):
    """A language model and a robot's network both satisfy it, so there is one PPO."""

    def evaluate(self, batch: PackedBatch, *, temperature: float = 1.0, entropy: bool = False) -> Evaluated:
        """See `Evaluated`."""
        ...


class LanguagePolicy(nn.Module):
    """A language model as a policy over tokens; with a value head, an actor and its critic on one trunk.

    The value is read where the token is predicted. With `detached` its loss does not move the trunk.
    """

    def __init__(self, language_model: LanguageModel, *, with_value: bool = False, detached: bool = False) -> None:
        super().__init__()
        self.language_model = language_model
        self.value = ValueHead(language_model.width).to(language_model.device) if with_value else None
        self.detached = detached

    def save(self, folder: Path) -> None:
        """Write the language model into a folder, and the value head beside it where there is one, whole or not at all."""
        from safetensors.torch import save_file

        with folders.quiet(), folders.new_folder(folder) as target:
            self.language_model.write(target, {})
            if self.value is not None:
                save_file(
                    {name: p.detach().cpu().reshape(-1) for name, p in self.value.named_parameters()}, target / HEAD
                )

    def load_value(self, folder: Path) -> None:
        """Fill the value head from a folder that `save` wrote. Raises CheckpointError where it holds none, or none that fits."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(folder / HEAD)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"'{folder}' holds no value head that can be read ({HEAD}): {error}. A run with advantage = 'gae' leaves one."
            ) from error
        for name, parameter in self.value.named_parameters() if self.value is not None else ():
            if name not in tensors or tensors[name].numel() != parameter.numel():
                raise CheckpointError(
                    f"'{name}' of the value head in '{folder}' is missing or of another width than the model."
                )
            with torch.no_grad():
                parameter.copy_(tensors[name].reshape(parameter.shape))

    def evaluate(self, batch: PackedBatch, *, temperature: float = 1.0, entropy: bool = False) -> Evaluated:
        """One forward pass for all that is asked. Differentiable."""
        model = self.language_model
        h = model.hidden(batch, at=batch.source)
        wide = h.to(model.compute_dtype)
        weight, bias = model.head(wide.dtype)
        target = torch.from_numpy(batch.target).to(h.device)
        value = None if self.value is None else self.value(h.detach() if self.detached else h)
        how: dict[str, Any] = {"bias": bias, "temperature": temperature}
        if entropy and not torch.is_grad_enabled():
            return Evaluated(*logps.logps_and_entropies(wide, weight, target, **how), value)
        spread = logps.token_entropies(wide, weight, **how) if entropy else None
        return Evaluated(logps.token_logps(wide, weight, target, **how), spread, value)
