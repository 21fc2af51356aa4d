"""Our own sampler: many answers side by side on one model; finished rows leave and waiting ones enter.

A row draws from its own generator, seeded by its seed alone. Its result is that of its prompt, seed and settings; neighbours
and batch size change it only as far as a matrix product rounds differently for another number of rows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Progress, Sample, Spoken, check_request
from thumbwheel.engines.choosing import choose
from thumbwheel.engines.columns import columns_for, product
from thumbwheel.engines.decoding import ModuleStepper, Stepper, open_stepper
from thumbwheel.engines.ending import Ending, Speech, ids_of, room_for
from thumbwheel.errors import DataError, ModelError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt

REFILL_SHARE = 0.25  # rows wait until this share of the batch is free, so that their prompts are read together


@dataclass
class _Row:
    """One answer in the making."""

    index: int
    seed: int
    prompt: tuple[int, ...]
    ending: Ending
    draws: NDArray[np.float32]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)

    def sample(self) -> Sample | None:
        """The row's sample if it has ended."""
        return self.ending.sample(self.ids, self.logps, self.seed)


class BatchSampler:
    """Samples from `model` as it stands: with its adapters, or inside `model.reference()` without what training changed.

    Weights are read where they lie; what training changes, the next call samples from. Nothing is kept between calls.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        seeds: Sequence[int],
        settings: SampleSettings,
        progress: Progress | None = None,
    ) -> list[Sample]:
        """See `thumbwheel.engines.base.Sampler`. Raises DataError where prompts and seeds differ in number, SettingError
        on an empty stop string, ModelError where the model's numbers are not finite."""
        check_request(prompts, seeds, settings)
        rows = self._rows(prompts, seeds, settings)
        done: dict[int, Sample] = {}
        for _, ended in self._steps(rows, settings):
            done |= ended
            if progress is not None and ended:
                progress(len(done), len(rows))
        return [done[index] for index in range(len(rows))]

    def stream(self, prompt: Prompt, *, seed: int, settings: SampleSettings) -> Spoken:
        """See `thumbwheel.engines.base.StreamingSampler`. Raises what `sample` raises, when the first piece is asked for."""
        check_request([prompt], [seed], settings)
        (row,) = self._rows([prompt], [seed], settings)
        speech = Speech(row.ending)
        for _, ended in self._steps([row], settings):
            if ended:
                if rest := speech.rest(ended[0]):
                    yield rest
                return ended[0]
            if piece := speech.piece(row.ids):
                yield piece
        raise RuntimeError("The row left without a sample.")

    def _rows(self, prompts: Sequence[Prompt], seeds: Sequence[int], settings: SampleSettings) -> list[_Row]:
        known: dict[Prompt, tuple[tuple[int, ...], Ending]] = {}
        rows = []
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            if prompt not in known:
                ids = ids_of(self.model, prompt)
                if not ids:
                    raise DataError(f"Prompt {index} renders to no token at all, so nothing can be sampled after it.")
                known[prompt] = ids, Ending(self.model.template, settings, room_for(self.model, ids))
            ids, ending = known[prompt]
            draws = np.random.default_rng(seed).random(max(ending.limit, 0), dtype=np.float32)
            rows.append(_Row(index, seed, ids, ending, draws))
        return rows

    @torch.no_grad()
    def _steps(
        self, rows: Sequence[_Row], settings: SampleSettings
    ) -> Generator[tuple[list[_Row], dict[int, Sample]], None, None]:
        """After every token: the rows that have just got one, and the samples by index that have just ended."""
        none = {row.index: sample for row in rows if row.ending.limit <= 0 and (sample := row.sample())}
        if none:
            yield [], none
        waiting = sorted((r for r in rows if r.ending.limit > 0), key=lambda r: (-len(r.prompt), r.prompt, r.index))
        if not waiting:
            return
        size = min(settings.batch_size, len(waiting))
        longest = max(len(row.prompt) + row.ending.limit for row in waiting)
        stepper = open_stepper(self.model, rows=size, tokens=longest)
        joins = not isinstance(stepper, ModuleStepper)
        weight, bias = self.model.head(self.model.compute_dtype)
        flying: list[_Row] = []
        h = torch.empty(0)  # (rows in flight, D); empty until the first ones enter
        while waiting or flying:
            free = size - len(flying)
            if waiting and (not flying or (joins and free >= max(1, REFILL_SHARE * size))):
                new, waiting = waiting[:free], waiting[free:]
                fresh = _add(stepper, new)
                h = torch.cat([h, fresh]) if flying else fresh
                flying.extend(new)
            tokens = self._draw(h, weight, bias, flying, settings)
            finished = {place: sample for place, row in enumerate(flying) if (sample := row.sample())}
            yield flying, {flying[place].index: sample for place, sample in finished.items()}
            if finished:
                order = stepper.drop(list(finished))
                flying, tokens = [flying[old] for old in order], tokens[order]
            if flying:
                h = stepper.step(tokens)

    def _draw(
        self, h: Tensor, weight: Tensor, bias: Tensor | None, rows: Sequence[_Row], settings: SampleSettings
    ) -> Tensor:
        """Draw one token a row and note it."""
        if not bool(torch.isfinite(h).all()):
            raise ModelError("The model computes numbers that are not finite, so nothing can be sampled from it.")
        logits = _logits(h.to(weight.dtype), weight, bias)
        draws = torch.tensor([row.draws[len(row.ids)] for row in rows], device=h.device)
        tokens, logps = choose(logits, draws, settings)
        for row, token, logp in zip(rows, tokens.tolist(), logps.tolist(), strict=True):
            row.ids.append(token)
            row.logps.append(logp)
        return tokens


def _logits(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, D) -> (B, V)."""
    spare = columns_for(len(h)) - len(h)
    columns = product(weight, F.pad(h, (0, 0, 0, spare)).t() if spare else h.t())
    logits = columns.t()[: len(h)].contiguous()
    return logits if bias is None else logits.add_(bias)


def _add(stepper: Stepper, rows: Sequence[_Row]) -> Tensor:
    """Read the prompts of new rows, equal neighbours once."""
    return stepper.add([(prompt, len(list(group))) for prompt, group in groupby(rows, key=lambda row: row.prompt)])
