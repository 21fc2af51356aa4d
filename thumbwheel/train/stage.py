"""What stands around the loop in every update: held-out prompts, hashes, the saved model, what people are told."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, TypeVar

import torch
from torch import nn

from thumbwheel.config import TrainSettings
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.signals.accounts import Account
from thumbwheel.signals.prompts import HasPrompt, split_by_prompt
from thumbwheel.train.loop import FitResult, StepReport, fit
from thumbwheel.train.task import Task

log = logging.getLogger("thumbwheel.train")
R = TypeVar("R", bound=HasPrompt)
L = TypeVar("L")
MODEL, REFERENCE = "model", "reference"
SAMPLED = 1024  # values of a tensor that its fingerprint reads


class How(TypedDict, total=False):
    """Keywords of `fit` that every update passes on."""

    resume: bool
    watcher: Callable[[StepReport], None]
    progress: bool


def sides(
    records: Sequence[R], heldout: Sequence[R] | None, settings: TrainSettings
) -> tuple[Sequence[R], Sequence[R]]:
    """(records to learn from, held-out records): those given, or `settings.eval_share` of the prompts."""
    return (records, heldout) if heldout is not None else split_by_prompt(records, settings.eval_share, settings.seed)


def run(
    task: Task[L],
    settings: TrainSettings,
    folder: Path,
    *,
    save: Callable[[Path], None],
    template: ChatTemplate,
    account: Account,
    how: How,
    notes: Sequence[str] = (),
) -> FitResult:
    """Fit, `save` the model in `folder`/model, and say what was made."""
    for note in notes:
        log.warning("%s: %s", task.name, note)
    identity = {"template": template.hash, "model": fingerprint(task.model)}
    result = fit(task, settings, folder, identity=identity, **how)
    save(folder / MODEL)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in sorted(result.metrics.items()) if name != "tokens")
    log.info("%s: %d steps in %.0f s (%s); %s", task.name, result.steps, result.seconds, result.stopped, shown)
    return replace(result, account=account, notes=tuple(notes), checkpoint=folder / MODEL)


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes and a sample of every weight: tells models apart without reading all of a large one."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()
        some = values[:: max(1, len(values) // SAMPLED)].float().cpu().numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + some.tobytes())
    return digest.hexdigest()
