"""The sampler protocol: prompts and seeds in, answers out. What all engines and a test's script have in common."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from thumbwheel.config import SampleSettings
from thumbwheel.errors import DataError, SettingError
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


Spoken = Generator[str, None, Sample]  # pieces of text as they come; its return value is the whole sample


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


@runtime_checkable
class StreamingSampler(Sampler, Protocol):
    """A sampler that can also speak while it thinks."""

    def stream(self, prompt: Prompt, *, seed: int, settings: SampleSettings) -> Spoken:
        """The answer's text in pieces, which joined are the sample's `text`; the generator returns that sample.

        A piece never ends inside a character, and never holds what may become a stop string. Nothing is computed after
        the generator is closed.
        """
        ...


def listen(spoken: Spoken, show: Callable[[str], None]) -> Sample:
    """Show every piece as it comes, and return the whole sample."""
    while True:
        try:
            piece = next(spoken)
        except StopIteration as end:
            sample: Sample = end.value
            return sample
        show(piece)


def check_request(prompts: Sequence[Prompt], seeds: Sequence[int], settings: SampleSettings) -> None:
    """What every engine asks for. Raises DataError where prompts and seeds differ in number or a seed is negative,
    SettingError on an empty stop string."""
    if len(prompts) != len(seeds) or any(seed < 0 for seed in seeds):
        raise DataError(
            f"Every prompt needs a seed of its own, 0 or more. Got {len(prompts)} prompts and {len(seeds)} seeds, "
            f"the least of them {min(seeds, default=None)}."
        )
    if "" in settings.stop:
        raise SettingError("'sample.stop' holds an empty string, at which every answer would end. Leave it out.")
