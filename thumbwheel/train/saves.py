"""Checkpoints of a run: all that the next step depends on, so that a killed run goes on bit for bit.

The order of the data and the learning rate are functions of the step, so a checkpoint holds the step, the weights that
learn, the optimiser's state, the dice, and what early stopping remembers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thumbwheel.config import FREE_SETTINGS, TrainSettings
from thumbwheel.errors import CheckpointError, explain
from thumbwheel.records import digest_of
from thumbwheel.stores import checkpoints

WEIGHTS, OPTIMISER = "weights.safetensors", "optimiser.pt"
BEGUN = "begun"


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps done, and early stopping's memory of the best held-out loss."""

    step: int = 0
    best_loss: float | None = None
    best_step: int = 0
    without_gain: int = 0
    stopped: bool = False


@dataclass
class Saves:
    """Checkpoints of one run in `folder`. `identity` names its data, settings and model by hash."""

    folder: Path
    parameters: Mapping[str, nn.Parameter]
    optimiser: torch.optim.Optimizer
    identity: Mapping[str, str]
    keep: int

    @property
    def steps(self) -> Path:
        """Where the numbered checkpoints are."""
        return self.folder / "checkpoints"

    @property
    def best(self) -> Path:
        """Where the best weights of a run with early stopping are."""
        return self.folder / "best" / "weights"

    def begin(self) -> None:
        """A new run. Raises CheckpointError where the folder holds one already: nothing is overwritten by mistake."""
        found = checkpoints.latest(self.steps)
        if found is not None:
            raise CheckpointError(
                f"'{self.folder}' holds a run that got as far as '{found.name}'. "
                "Resume it (resume=True, --resume on the command line), or train in another folder."
            )

    def mark(self) -> None:
        """Note that this run was begun, before there is a checkpoint of it."""
        checkpoints.save(self._mark, {BEGUN: b""}, self.identity)

    def only_marked(self) -> bool:
        """Whether the folder holds a run that was begun and killed before its first checkpoint.

        Raises CheckpointError where it was begun with other data, settings or model.
        """
        if checkpoints.latest(self.steps) is not None or not self._mark.exists():
            return False
        checkpoints.load(self._mark, expect=self.identity)
        return True

    @property
    def _mark(self) -> Path:
        return self.folder / BEGUN

    def resume(self) -> checkpoints.Checkpoint:
        """Load weights, optimiser and dice from the newest checkpoint; the rest of it is for the caller to read.

        Raises CheckpointError: none there, cut short, or of other data, settings or model.
        """
        found = checkpoints.latest(self.steps)
        if found is None:
            raise CheckpointError(
                explain(
                    f"There is nothing to resume in '{self.folder}': it holds no checkpoint.",
                    allowed="a folder in which a run of the same data and settings was begun",
                    next="Check the folder's name, or start anew (resume=False).",
                )
            )
        saved = checkpoints.load(found, expect=self.identity)
        absent = sorted({WEIGHTS, OPTIMISER} - set(saved.files))
        if absent:
            raise CheckpointError(
                f"The checkpoint '{found}' cannot be used: its manifest names no {absent[0]}. Delete that folder."
            )
        self._load(saved)
        return saved

    def write(
        self, step: int, about: Mapping[str, Any], files: Mapping[str, checkpoints.Content] | None = None
    ) -> None:
        """Save where the run stands, whole or not at all; `about` is JSON. Raises CheckpointError (disk full, not writable)."""
        checkpoints.save(
            self.steps / f"step-{step:08d}",
            {WEIGHTS: self._write_weights, OPTIMISER: self._write_optimiser, **(files or {})},
            {**self.identity, **about},
            keep=self.keep,
        )

    def write_best(self, step: int) -> None:
        """Save the weights, and the optimiser as it stands with them, as the best so far."""
        files = {WEIGHTS: self._write_weights, OPTIMISER: self._write_optimiser}
        checkpoints.save(self.best, files, {**self.identity, "step": step})

    def restore_best(self, *, with_optimiser: bool = False) -> int:
        """Put the best weights back; the step they are of. Raises CheckpointError where they are gone."""
        saved = checkpoints.load(self.best, expect=self.identity)
        if with_optimiser:
            self._load(saved)
        else:
            _fill(self.parameters, saved.files[WEIGHTS])
        return int(saved.about["step"])

    def _load(self, saved: checkpoints.Checkpoint) -> None:
        _fill(self.parameters, saved.files[WEIGHTS])
        state = torch.load(saved.files[OPTIMISER], weights_only=True)
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["dice"])
        if torch.cuda.is_available() and state["dice_cuda"]:
            torch.cuda.set_rng_state_all(state["dice_cuda"])

    def _write_weights(self, path: Path) -> None:
        from safetensors.torch import save_file

        save_file({name: p.detach().cpu().contiguous() for name, p in self.parameters.items()}, str(path))

    def _write_optimiser(self, path: Path) -> None:
        state: dict[str, Any] = {
            "optimiser": self.optimiser.state_dict(),
            "dice": torch.get_rng_state(),
            "dice_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, path)


def settings_hash(settings: TrainSettings) -> str:
    """SHA-256 of every setting that can change what comes out."""
    return digest_of(settings.model_dump(mode="json", exclude=set(FREE_SETTINGS)))


@torch.no_grad()
def _fill(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    saved = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != saved:
        odd = sorted(name for name in {*shapes, *saved} if shapes.get(name) != saved.get(name))
        raise CheckpointError(
            explain(
                f"The weights in '{path.parent}' do not fit this model: {', '.join(odd[:3])}.",
                allowed={name: shapes.get(name) for name in odd[:3]},
                got={name: saved.get(name) for name in odd[:3]},
                next="Load the model that this run was begun with.",
            )
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
