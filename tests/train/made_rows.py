"""Records and small models for the tests of the updates."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Demonstration, Labelled, Message, Preference, Prompt
from thumbwheel.testing.models import tiny_language_model


def asked(text: str) -> Prompt:
    return (Message(role="user", content=text),)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def demonstration(prompt: str, answer: str, **fields: object) -> Demonstration:
    return Demonstration.model_validate({"prompt": asked(prompt), "response": said(answer), **fields})


def pair(prompt: str, chosen: str, rejected: str, **fields: object) -> Preference:
    return Preference.model_validate(
        {"prompt": asked(prompt), "chosen": said(chosen), "rejected": said(rejected), **fields}
    )


def thumb(prompt: str, answer: str, value: float, **fields: object) -> Labelled:
    return Labelled.model_validate({"prompt": asked(prompt), "response": said(answer), "value": value, **fields})


def pairs(n: int) -> list[Preference]:
    """Chosen answers say yes, rejected ones no; lengths differ from pair to pair."""
    return [pair(f"question {index}", "yes" * (1 + index % 3), "no" * (1 + (2 * index) % 5)) for index in range(n)]


def thumbs(n: int) -> list[Labelled]:
    return [
        thumb(f"question {index}", ("yes" if index % 2 else "no") * (1 + index % 3), 1.0 if index % 2 else -1.0)
        for index in range(n)
    ]


def demonstrations(n: int) -> list[Demonstration]:
    return [demonstration(f"question {index}", f"answer {'yes' * (index % 4)}") for index in range(n)]


def learning_model(seed: int = 0, **config: object) -> LanguageModel:
    """A tiny float32 model, all of whose weights learn."""
    model = tiny_language_model(seed, layers=1, dim=32, **config)
    model.network.requires_grad_(True)
    return model


def saved_model(folder: Path, seed: int = 0) -> Path:
    """A folder with a tiny model's weights, to be loaded as a base."""
    tiny_language_model(seed, layers=1, dim=32).save(folder)
    return folder
