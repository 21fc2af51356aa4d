"""A sampled answer as the fields of a step: what was drawn, under which odds, so that it can be learned from later."""

from __future__ import annotations

from typing import TypedDict

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Sample
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import StopReason


class SampledFields(TypedDict):
    """What a step records of its sampling; some of `thumbwheel.recorder.StepFields`."""

    token_ids: tuple[int, ...]
    token_logps: tuple[float, ...]
    behaviour_logp: float
    tokenizer: str
    truncated: bool
    terminated: bool
    stop_reason: StopReason
    tags: dict[str, str]


def sampled_fields(sample: Sample, template: ChatTemplate, settings: SampleSettings) -> SampledFields:
    """Fields for `Recorder.step`: ids and their log-probabilities, tokenizer, how it ended; as tags how it was sampled.

    `thumbwheel.signals.groups.sampling_of` reads the tags back.
    """
    cut = sample.stop_reason in ("max_tokens", "context_overflow")
    ended: StopReason = sample.stop_reason if sample.stop_reason != "stop_string" else "completed"
    return {
        "token_ids": sample.token_ids,
        "token_logps": sample.token_logps,
        "behaviour_logp": sample.logp,
        "tokenizer": template.tokenizer_hash,
        "truncated": cut,
        "terminated": not cut,
        "stop_reason": ended,
        "tags": {
            "temperature": repr(settings.temperature),
            "top_p": repr(settings.top_p),
            "top_k": repr(settings.top_k),
            "template": template.hash,
        },
    }
