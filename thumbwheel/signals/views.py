"""Every view for training in one place, and by name (`thumbwheel export VIEW FILE`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from thumbwheel.config import FeedbackSettings
from thumbwheel.records import Episode
from thumbwheel.registry import Registry
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.answers import demonstrations, labelled
from thumbwheel.signals.groups import groups
from thumbwheel.signals.pairs import preferences
from thumbwheel.signals.prompts import held_out, prompt_key, prompts, split_by_prompt
from thumbwheel.signals.traces import process_labelled, transitions

View = Callable[[Iterable[Episode], FeedbackSettings], Accounted[Any]]

views: Registry[View] = Registry("view")
views.add("preferences", preferences)
views.add("labelled", labelled)
views.add("demonstrations", demonstrations)
views.add("process_labelled", process_labelled)
views.add("transitions", transitions)
views.add("groups", groups)

__all__ = [
    "View",
    "demonstrations",
    "groups",
    "held_out",
    "labelled",
    "preferences",
    "process_labelled",
    "prompt_key",
    "prompts",
    "split_by_prompt",
    "transitions",
    "views",
]
