"""What the encoder reward model looks at: blocks of features of an answer beside its prompt, on one scale.

| block      | columns | what it is                                                                              |
| ---------- | ------- | --------------------------------------------------------------------------------------- |
| length     | 1       | log(1 + characters)                                                                     |
| surface    | F + 2   | `thumbwheel.models.surface`, tokens a word, share of words in three tokens or more      |
| likeness   | 2K      | cosine of answer and prompt at each of the encoder's K depths, and its square           |
| content@k  | D       | the answer's vector at depth k, of length 1                                             |
| volume@k   | D       | the answer's vector at depth k times √tokens: content that adds up over a long answer   |
| match@k    | D       | product of the answer's and the prompt's vectors of length 1: where the two agree       |

Every block is centred on the training answers and scaled so that an answer's mean square length is 1, which lets one
ridge fit them all. Named columns (length, surface, likeness) are standardised first and clipped at ±4 deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thumbwheel.errors import SettingError, explain
from thumbwheel.models.encoder import Encoded, SentenceEncoder
from thumbwheel.models.surface import NAMES, surface_features
from thumbwheel.records import Message, Prompt

Floats = NDArray[np.float64]
CLIP = 4.0
NAMED = ("length", "surface", "likeness")
Progress = Callable[[int, int], None]


def text_of(message: Message | str) -> str:
    """The answer as read by the encoder: its text, then its tool calls."""
    if isinstance(message, str):
        return message
    calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return "\n".join(part for part in (message.content, *calls) if part)


def question_of(prompt: Prompt) -> str:
    """What the answer is held against: the last thing the user said, or the last message where there is no user."""
    return next((turn.content for turn in reversed(prompt) if turn.role == "user"), prompt[-1].content)


@dataclass(frozen=True)
class Answers:
    """n answers as numbers, before any scaling. `answer` and `question` are the encoder's view of both."""

    surface: Floats  # (n, F)
    answer: Encoded
    question: Encoded

    def block(self, name: str) -> Floats:
        """(n, columns) of the block of that name. Raises SettingError where there is none."""
        kind, _, depth = name.partition("@")
        if kind == "length" and not depth:
            return self.surface[:, :1]
        if kind == "surface" and not depth:
            return np.column_stack([self.surface, self.answer.pieces, self.answer.broken])
        if kind == "likeness" and not depth:
            cosine = np.einsum("nkd,nkd->nk", self._answer_units, self._question_units)
            return np.column_stack([cosine, cosine**2])
        if kind in ("content", "volume", "match") and depth.isdigit() and int(depth) < self.answer.vectors.shape[1]:
            k = int(depth)
            if kind == "content":
                return self._answer_units[:, k]
            if kind == "match":
                return self._answer_units[:, k] * self._question_units[:, k]
            volume: Floats = self.answer.vectors[:, k].astype(np.float64) * np.sqrt(self.answer.tokens + 2.0)[:, None]
            return volume
        last = self.answer.vectors.shape[1] - 1
        allowed = f"length, surface, likeness, and content@k, volume@k, match@k for a depth k of 0 to {last}"
        raise SettingError(explain("There is no such block of features.", allowed=allowed, got=name))

    @cached_property
    def _answer_units(self) -> Floats:
        return _units(self.answer.vectors)

    @cached_property
    def _question_units(self) -> Floats:
        return _units(self.question.vectors)


def read_answers(
    encoder: SentenceEncoder,
    prompts: Sequence[Prompt],
    responses: Sequence[str | Message],
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Answers:
    """The features of `responses`, each beside its prompt; with `cache` the encoder's part is kept on disk."""
    questions, texts = [question_of(prompt) for prompt in prompts], [text_of(response) for response in responses]
    answer = encoder.encode(texts, cache=cache, progress=progress)
    return Answers(surface_features(questions, texts), answer, encoder.encode(questions, cache=cache))


@dataclass(frozen=True)
class Scaling:
    """How one block was brought to its scale: (x - mean) / deviation, clipped where its columns have names, times factor."""

    name: str
    mean: Floats  # (columns,)
    deviation: Floats  # (columns,); 1 where columns are not scaled one by one
    factor: float

    @classmethod
    def fitted(cls, name: str, block: Floats) -> Scaling:
        """The scaling that fits a block (n, columns). A column that does not vary becomes 0."""
        mean, deviation = block.mean(axis=0), np.ones(block.shape[1])
        if name in NAMED:
            spread = block.std(axis=0)
            deviation = np.where(spread > 1e-9 * np.maximum(1, np.abs(mean)), spread, np.inf)
        plain = cls(name, mean, deviation, 1.0)
        size = float(np.sqrt((plain(block) ** 2).sum(axis=1).mean()))
        return cls(name, mean, deviation, 1 / size if size > 1e-12 else 0.0)

    def __call__(self, block: Floats) -> Floats:
        """(n, columns) -> (n, columns)."""
        scaled = (block - self.mean) / self.deviation
        if self.name in NAMED:
            scaled = np.clip(scaled, -CLIP, CLIP)
        return scaled * self.factor


def columns_of(name: str, width: int) -> list[str]:
    """A name for each of the block's `width` columns."""
    if name == "length":
        return [NAMES[0]]
    if name == "surface":
        return [*NAMES, "tokens_a_word", "words_in_three_tokens"]
    return [f"{name}[{i}]" for i in range(width)]


def _units(vectors: NDArray[np.float32]) -> Floats:
    """(n, K, D), each vector of length 1; a zero vector stays one."""
    wide = vectors.astype(np.float64)
    units: Floats = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return units
