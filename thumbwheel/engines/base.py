"""The sampler protocol: prompts and seeds in, answers out. What vLLM, a test's script and our own sampler have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from thumbwheel.config import SampleSettings
from thumbwheel.records import Prompt

Progress = Callable[[int, int], None]
Stop = Literal["completed", "stop_string", "max_tokens", "context_overflow"]


@dataclass(frozen=True)
class Sample:
    """One answer.

    `token_ids` are the ids really drawn, the end token included where one was drawn (`completed`); training uses these
    and never re-tokenises `text`. `token_logps` are their log-probabilities in nats under the distribution really drawn
    from: temperature applied, renormalised after top-k and top-p. `text` is without the end token and from a stop string on.
    """

    text: str
    token_ids: tuple[int, ...]
    token_logps: tuple[float, ...]
    stop_reason: Stop
    seed: int

    @property
    def logp(self) -> float:
        """Summed log-probability, nats: the behaviour log-probability of the answer."""
        return float(sum(self.token_logps))


class Sampler(Protocol):
    """Anything that answers prompts."""

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        seeds: Sequence[int],
        settings: SampleSettings,
        progress: Progress | None = None,
    ) -> list[Sample]:
        """One sample a prompt, in order; equal prompts may share work. A row's result depends on its prompt, its seed and
        the settings, not on its neighbours. `progress(done, total)` is called as answers finish."""
        ...
