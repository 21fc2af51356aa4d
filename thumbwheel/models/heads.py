"""Scalar heads on a language model's trunk: a reward read at a row's last token, a value read at every token.

Axes: N packed token, R row, D hidden width.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from thumbwheel.batches import PackedBatch
from thumbwheel.config import ModelSettings
from thumbwheel.errors import CheckpointError, DataError
from thumbwheel.models import folders
from thumbwheel.models.language import LanguageModel, load

HEAD = "head.safetensors"


class RewardModel(nn.Module):
    """A language model's trunk and one linear read-out at the last real token of a row.

    The weight starts as N(0, 1/√(D+1)) (its deviation; Stiennon et al. 2020), drawn from `seed`; the bias as 0.
    `scores` are shifted and scaled by the buffers `mean` and `deviation`, 0 and 1 until `normalise` sets them.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, language_model: LanguageModel, *, seed: int = 0) -> None:
        super().__init__()
        self.language_model = language_model
        width, device = language_model.width, language_model.device
        noise = torch.randn(width, generator=torch.Generator().manual_seed(seed)) / math.sqrt(width + 1)
        self.weight = nn.Parameter(noise.to(device))
        self.bias = nn.Parameter(torch.zeros((), device=device))
        self.register_buffer("mean", torch.zeros((), device=device))
        self.register_buffer("deviation", torch.ones((), device=device))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.language_model.device

    def raw_scores(self, batch: PackedBatch) -> Tensor:
        """(R,) float32, before normalisation; what the loss is computed on."""
        h = self.language_model.hidden(batch, at=batch.last).float()
        return h @ self.weight + self.bias

    def scores(self, batch: PackedBatch) -> Tensor:
        """(R,) float32, normalised."""
        return (self.raw_scores(batch) - self.mean) / self.deviation

    def normalise(self, scores: Tensor) -> None:
        """Make raw `scores` (R,) come out with mean 0 and standard deviation 1. Raises DataError where all are alike."""
        deviation = scores.float().std(correction=0)
        if not bool(deviation > 0):
            raise DataError(
                f"Scores cannot be normalised: all {len(scores)} are alike or not finite. Train the reward model on more data."
            )
        self.mean.copy_(scores.float().mean())
        self.deviation.copy_(deviation)

    def trainable(self) -> list[nn.Parameter]:
        """Parameters that learn, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def save(self, folder: Path, **notes: object) -> None:
        """Write trunk (or its adapter), head and normalisation into one folder, whole or not at all."""
        from safetensors.torch import save_file

        with folders.quiet(), folders.new_folder(folder) as target:
            self.language_model.write(target, notes)
            tensors = {name: getattr(self, name).detach().cpu().reshape(-1) for name in HEAD_TENSORS}
            save_file(tensors, str(target / HEAD))


HEAD_TENSORS = ("weight", "bias", "mean", "deviation")


def load_reward_model(settings: ModelSettings, *, trainable: bool = False, seed: int = 0) -> RewardModel:
    """The reward model saved in the folder `settings.path`. Raises CheckpointError where the head is missing or does not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(settings.path).expanduser() / HEAD
    if not file.exists():
        raise CheckpointError(
            f"'{settings.path}' holds no reward head ({HEAD}): it is not a reward model, or was cut short. "
            "A fresh head would score at random, so none is made."
        )
    try:
        tensors = load_file(str(file))
    except SafetensorError as error:
        raise CheckpointError(f"The reward head '{file}' cannot be read: {error}. Take an earlier version.") from error
    model = RewardModel(load(settings, trainable=trainable, seed=seed))
    for name in HEAD_TENSORS:
        place = getattr(model, name)
        if name not in tensors or tensors[name].numel() != place.numel():
            raise CheckpointError(f"'{name}' of the reward head '{file}' is missing or of another width.")
        with torch.no_grad():
            place.copy_(tensors[name].reshape(place.shape))
    return model


class ValueHead(nn.Module):
    """A linear read-out at every token. It starts at zero, so that the first advantage equals the return."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N,) float32 values."""
        return hidden.float() @ self.weight + self.bias
