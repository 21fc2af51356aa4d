"""Prompts: which are the same, which are unique, and a split that keeps each on one side for good."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from thumbwheel.errors import SettingError, explain
from thumbwheel.records import Episode, Message, canonical_json


class HasPrompt(Protocol):
    """Any row with a prompt: Preference, Labelled, Demonstration, ProcessLabelled."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages before the answer."""
        ...


R = TypeVar("R", bound=HasPrompt)


def prompt_key(prompt: Sequence[Message]) -> str:
    """SHA-256 (hex) of a prompt; prompts that differ in case or white space only have the same key.

    Text is NFKC-normalised, case-folded, and runs of white space become one space. Roles, tool calls and tools count.
    """
    parts = [
        [
            message.role,
            _plain(message.content),
            [[call.name, _plain(call.arguments)] for call in message.tool_calls],
            _plain(message.tools or ""),
        ]
        for message in prompt
    ]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def prompts(episodes: Iterable[Episode]) -> list[tuple[Message, ...]]:
    """Every prompt answered in the episodes, once each by `prompt_key`, in order of first sight."""
    unique: dict[str, tuple[Message, ...]] = {}
    for episode in episodes:
        for step in episode.steps:
            unique.setdefault(prompt_key(step.state), step.state)
    return list(unique.values())


def held_out(prompt: Sequence[Message], share: float, seed: int) -> bool:
    """True for about `share` of all prompts; depends on the prompt and the seed alone.

    Raises SettingError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise SettingError(explain("The share to hold out is out of range.", allowed="[0, 1]", got=share))
    digest = hashlib.sha256(f"{seed}:{prompt_key(prompt)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def split_by_prompt(rows: Iterable[R], share: float, seed: int) -> tuple[list[R], list[R]]:
    """(training rows, held-out rows): no prompt is on both sides, and adding rows moves no row to the other side.

    `share` of the prompts, in the long run, is held out; the order of rows is kept. Raises SettingError as `held_out`.
    """
    train: list[R] = []
    held: list[R] = []
    for row in rows:
        (held if held_out(row.prompt, share, seed) else train).append(row)
    return train, held


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
