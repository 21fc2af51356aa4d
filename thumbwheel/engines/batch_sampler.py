"""Our own sampler: many answers side by side on one model; finished rows leave and waiting ones enter.

A row draws from its own generator, seeded by its seed alone. Its result is that of its prompt, seed and settings; neighbours
and batch size change it only as far as a matrix product rounds differently for another number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Progress, Sample, Stop
from thumbwheel.engines.choosing import choose
from thumbwheel.engines.columns import columns_for, product
from thumbwheel.engines.decoding import ModuleStepper, Stepper, open_stepper
from thumbwheel.errors import DataError, ModelError, SettingError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt

REFILL_SHARE = 0.25  # rows wait until this share of the batch is free, so that their prompts are read together


@dataclass
class _Row:
    """One answer in the making."""

    index: int
    seed: int
    prompt: tuple[int, ...]
    limit: int
    draws: NDArray[np.float32]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


class BatchSampler:
    """Samples from `model` as it stands: with its adapters, or inside `model.reference()` without what training changed."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @torch.no_grad()
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
        if len(prompts) != len(seeds) or any(seed < 0 for seed in seeds):
            raise DataError(
                f"Every prompt needs a seed of its own, 0 or more. Got {len(prompts)} prompts and {len(seeds)} seeds, "
                f"the least of them {min(seeds, default=None)}."
            )
        if "" in settings.stop:
            raise SettingError("'sample.stop' holds an empty string, at which every answer would end. Leave it out.")
        rows = self._rows(prompts, seeds, settings)
        done: dict[int, Sample] = {}
        for row in rows:
            if row.limit <= 0:
                done[row.index] = Sample("", (), (), "context_overflow", row.seed)
        waiting = sorted((r for r in rows if r.limit > 0), key=lambda r: (-len(r.prompt), r.prompt, r.index))
        if waiting:
            self._run(waiting, settings, done, progress, len(rows))
        return [done[index] for index in range(len(rows))]

    def _rows(self, prompts: Sequence[Prompt], seeds: Sequence[int], settings: SampleSettings) -> list[_Row]:
        room = int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31)
        known: dict[Prompt, tuple[int, ...]] = {}
        rows = []
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            if prompt not in known:
                known[prompt] = tuple(self.model.template.prompt_ids(prompt))
                if not known[prompt]:
                    raise DataError(f"Prompt {index} renders to no token at all, so nothing can be sampled after it.")
            limit = min(settings.max_new_tokens, room - len(known[prompt]))
            draws = np.random.default_rng(seed).random(max(limit, 0), dtype=np.float32)
            rows.append(_Row(index, seed, known[prompt], limit, draws))
        return rows

    def _run(
        self,
        waiting: list[_Row],
        settings: SampleSettings,
        done: dict[int, Sample],
        progress: Progress | None,
        total: int,
    ) -> None:
        size = min(settings.batch_size, len(waiting))
        stepper = open_stepper(self.model, rows=size, tokens=max(len(row.prompt) + row.limit for row in waiting))
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
            finished = {place: s for place, row in enumerate(flying) if (s := self._finish(row, settings))}
            if finished:
                for place, sample in finished.items():
                    done[flying[place].index] = sample
                order = stepper.drop(list(finished))
                flying, tokens = [flying[old] for old in order], tokens[order]
                if progress is not None:
                    progress(len(done), total)
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

    def _finish(self, row: _Row, settings: SampleSettings) -> Sample | None:
        """The row's sample if it has just ended."""
        template = self.model.template
        if row.ids[-1] in template.stop_ids:
            return self._sample(row, row.ids[:-1], "completed", None)
        cut = self._stop_string(row.ids, settings.stop) if settings.stop else None
        if cut is not None:
            return self._sample(row, row.ids, "stop_string", cut)
        if len(row.ids) == row.limit:
            full = row.limit == settings.max_new_tokens
            return self._sample(row, row.ids, "max_tokens" if full else "context_overflow", None)
        return None

    def _stop_string(self, ids: list[int], stops: Sequence[str]) -> int | None:
        """Where in the text the first stop string begins, if one has just been completed."""
        tail = self.model.template.text_of(ids[-(8 + 2 * max(len(stop) for stop in stops)) :])
        if not any(stop in tail for stop in stops):
            return None
        text = self.model.template.text_of(ids)
        found = [place for stop in stops if (place := text.find(stop)) >= 0]
        return min(found) if found else None

    def _sample(self, row: _Row, visible: Sequence[int], reason: Stop, cut: int | None) -> Sample:
        text = self.model.template.text_of(visible)
        return Sample(text[:cut], tuple(row.ids), tuple(row.logps), reason, row.seed)


def _logits(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, D) -> (B, V)."""
    spare = columns_for(len(h)) - len(h)
    columns = product(weight, F.pad(h, (0, 0, 0, spare)).t() if spare else h.t())
    logits = columns.t()[: len(h)].contiguous()
    return logits if bias is None else logits.add_(bias)


def _add(stepper: Stepper, rows: Sequence[_Row]) -> Tensor:
    """Read the prompts of new rows, equal neighbours once."""
    return stepper.add([(prompt, len(list(group))) for prompt, group in groupby(rows, key=lambda row: row.prompt)])
