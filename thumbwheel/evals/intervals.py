"""From formulas to records: a figure with its interval, resampled by prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from thumbwheel.config import EvalSettings
from thumbwheel.formulas import stats
from thumbwheel.formulas.figures import Floats, Interval
from thumbwheel.formulas.stats import Indices
from thumbwheel.records import Figure


def figure_of(name: str, interval: Interval, *, unit: str = "", note: str = "") -> Figure:
    """The record of an interval; what is undefined keeps its reason in the note."""
    return Figure(
        name=name,
        value=interval.value,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        unit=unit,
        note="; ".join(part for part in (interval.reason, note) if part),
    )


def rate_figure(
    name: str, outcome: Floats, prompts: Sequence[str], settings: EvalSettings, *, note: str = ""
) -> Figure:
    """Mean of `outcome` (n,) in {0, 1/2, 1} with Wilson's interval at the effective number of rows, given their prompts.

    One prompt is one witness, however many rows it has: the interval is then Wilson's at n = 1, and the note says so.
    """
    rate = stats.win_rate(outcome, prompt=np.asarray(prompts), level=settings.confidence)
    if rate.value is None and len(outcome):
        rate = stats.wilson(float(outcome.mean()), 1, level=settings.confidence)
        note = "; ".join(part for part in (note, "one prompt only, so the interval spans nearly everything") if part)
    made = figure_of(name, rate, unit="share", note=note)
    return made.model_copy(update={"n": len(outcome)})


@dataclass(frozen=True)
class Resampling:
    """Bootstrap over whole prompts. `prompts` names the prompt of each row; the same seed draws the same prompts for every
    figure, so figures of one evaluation can be compared."""

    prompts: Sequence[str]
    settings: EvalSettings
    seed: int

    def figure(self, name: str, statistic: Callable[[Indices], float], *, unit: str = "", note: str = "") -> Figure:
        """`statistic(rows)` over all rows, with its interval. NaN is undefined. With one prompt there is no interval."""
        n = len(self.prompts)
        value = statistic(np.arange(n)) if n else math.nan
        if not math.isfinite(value):
            return Figure(name=name, value=None, n=n, unit=unit, note=note or "undefined on these rows")
        found = stats.bootstrap(
            statistic,
            n,
            rng=np.random.default_rng(self.seed),
            level=self.settings.confidence,
            resamples=self.settings.bootstrap_samples,
            cluster=np.asarray(self.prompts),
        )
        if found.value is None:
            reason = "one prompt only, so there is no interval" if len(set(self.prompts)) == 1 else found.reason
            return Figure(
                name=name, value=value, n=n, unit=unit, note="; ".join(part for part in (reason, note) if part)
            )
        return figure_of(name, found, unit=unit, note=note)
