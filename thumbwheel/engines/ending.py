"""When an answer ends, why, and which part of it a person reads. The same for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Sample, Stop
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import Prompt

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what an unfinished character decodes to


class Ending:
    """How answers to one prompt end: at an end token, at a stop string, at the length asked for, or at the model's own length."""

    def __init__(self, template: ChatTemplate, settings: SampleSettings, room: int) -> None:
        self.template = template
        self.stops = settings.stop
        self.limit = min(settings.max_new_tokens, room)
        self.at_limit: Stop = "max_tokens" if settings.max_new_tokens <= room else "context_overflow"

    def sample(self, ids: Sequence[int], logps: Sequence[float], seed: int) -> Sample | None:
        """The sample if it has ended with the last of `ids`, else None."""
        if len(ids) == 0:
            return Sample("", (), (), self.at_limit, seed) if self.limit <= 0 else None
        if ids[-1] in self.template.stop_ids:
            return Sample(self.template.text_of(ids[:-1]), tuple(ids), tuple(logps), "completed", seed)
        if self.stops and (cut := self._stop_string(ids)) is not None:
            return Sample(self.template.text_of(ids)[:cut], tuple(ids), tuple(logps), "stop_string", seed)
        if len(ids) >= self.limit:
            return Sample(self.template.text_of(ids), tuple(ids), tuple(logps), self.at_limit, seed)
        return None

    def _stop_string(self, ids: Sequence[int]) -> int | None:
        """Where in the text the first stop string begins, if one has just been completed."""
        tail = self.template.text_of(ids[-(8 + 2 * max(len(stop) for stop in self.stops)) :])
        if not any(stop in tail for stop in self.stops):
            return None
        text = self.template.text_of(ids)
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        return min(found) if found else None


class Speech:
    """Turns an answer in the making into pieces of text that will stand."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        self.said = ""

    def piece(self, ids: Sequence[int]) -> str:
        """What can be said now, after `ids`, and was not yet; possibly nothing."""
        text = self.ending.template.text_of(ids).rstrip(BROKEN)
        return self._say(text[: len(text) - self._held(text)])

    def rest(self, sample: Sample) -> str:
        """What is left to say at the end."""
        return self._say(sample.text)

    def _say(self, text: str) -> str:
        new = text[len(self.said) :]
        self.said += new
        return new

    def _held(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self.ending.stops), default=1)
        for size in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.ending.stops):
                return size
        return 0


def room_for(model: LanguageModel, prompt: Sequence[int]) -> int:
    """Tokens that fit behind the prompt into the model's positions."""
    longest = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)
    return longest - len(prompt)


def ids_of(model: LanguageModel, prompt: Prompt) -> tuple[int, ...]:
    """The prompt's tokens, up to where the answer begins."""
    return tuple(model.template.prompt_ids(prompt))
