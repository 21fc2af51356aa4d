"""Numbers for many rows at once, without gradients: log-probabilities of answers, scores of a reward model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thumbwheel.batches import PackedBatch, TokenRow, micro_batches, pack
from thumbwheel.errors import DataError
from thumbwheel.models.heads import RewardModel
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt

Floats = NDArray[np.float64]
MAX_TOKENS = 4096


def summed_logps(model: LanguageModel, rows: Sequence[TokenRow | None]) -> Floats:
    """(n,) summed log-probability (nats, temperature 1) of each row's trained tokens; NaN for None."""
    return _by_row(model.row_logps, rows)


def score_answers(model: RewardModel, prompts: Sequence[Prompt], texts: Sequence[str], *, max_length: int) -> Floats:
    """(n,) normalised scores; NaN where an answer is empty, too long (`max_length` tokens with its prompt) or not renderable.

    An answer that cannot be scored is unscored, never 0.
    """
    template = model.language_model.template
    rows: list[TokenRow | None] = []
    for prompt, text in zip(prompts, texts, strict=True):
        try:
            row = template.encode(prompt, text)
        except DataError:
            rows.append(None)
        else:
            rows.append(row if len(row) <= max_length else None)
    return _by_row(model.scores, rows)


@torch.no_grad()
def _by_row(numbers: Callable[[PackedBatch], Tensor], rows: Sequence[TokenRow | None]) -> Floats:
    out = np.full(len(rows), np.nan)
    there = [index for index, row in enumerate(rows) if row is not None]
    groups = [[row] for row in rows if row is not None]
    for part in micro_batches(groups, max_tokens=MAX_TOKENS):
        batch = pack([groups[index][0] for index in part])
        out[[there[index] for index in part]] = numbers(batch).double().cpu().numpy()
    return out
