"""Simulated users with a hidden preference, noise and lapses: a test bench, never a stand-in for people.

They like answers that are short, direct, on the question and finished. Nothing in the training code can see `taste`; it
reaches the pipe only as clicks. Everything they send is marked `origin="simulated"`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FILLERS = (
    "certainly",
    "of course",
    "sure,",
    "sure!",
    "absolutely",
    "great question",
    "i'd be happy",
    "i would be happy",
    "i'm happy to",
    "here are",
    "here is",
    "here's",
    "as an ai",
    "it is important to note",
    "it's important to note",
    "important to remember",
    "remember,",
    "remember that",
    "in conclusion",
    "in summary",
    "overall,",
    "i hope this helps",
    "feel free to",
    "let me know",
    "by following these",
)
_WORD = re.compile(r"\w+", re.UNICODE)
_SENTENCE = re.compile(r"[^.!?]+[.!?]+(?:\s|$)")
_COMMON_WORDS = """a an and are as at be by do does for from give good how i in is it make me my name of on or so some the to two
three what when why with you your"""
_COMMON = frozenset(_COMMON_WORDS.split())


def taste(prompt: str, answer: str) -> float:
    """How much these users like an answer, in units where 1 is a clear preference. Hidden from all training code.

    -1 for every 25 words over 30; -0.7 for each filler phrase (at most three); -1 for an unfinished last sentence; -2
    for fewer than four words; -0.15 for each exclamation mark (at most four); up to +1 for taking up the question's words.
    """
    low = answer.lower()
    words = _WORD.findall(low)
    asked = {w for w in _WORD.findall(prompt.lower()) if w not in _COMMON}
    value = -max(0, len(words) - 30) / 25
    value -= 0.7 * min(3, sum(filler in low for filler in FILLERS))
    value -= 0.0 if re.search(r"[.!?)\"'`]\s*$", answer) else 1.0
    value -= 2.0 if len(words) < 4 else 0.0
    value -= 0.15 * min(4, answer.count("!"))
    value += len(asked & set(words)) / max(1, len(asked))
    return value


@dataclass(frozen=True)
class User:
    """One simulated person.

    temperature > 0: noise of a choice. lapse in [0, 1]: chance of clicking blindly. side_bias: added to the first answer.
    """

    name: str
    temperature: float
    lapse: float
    side_bias: float

    def prefers_first(self, first: float, second: float, rng: random.Random) -> bool:
        """A noisy choice between two tastes: a lapse is a coin, otherwise σ((first - second + side_bias)/temperature)."""
        if rng.random() < self.lapse:
            return rng.random() < 0.5
        return rng.random() < 1 / (1 + math.exp(-(first - second + self.side_bias) / self.temperature))


@dataclass(frozen=True)
class Reaction:
    """What a user did with the answers on screen; `answer` indexes them in display order."""

    kind: Literal["choice", "tie", "thumb", "stars", "edit"]
    answer: int = 0
    up: bool = True
    stars: int = 0
    text: str = ""


def shortened(answer: str) -> str:
    """The edit such a user makes: openings and closings of pure filler go, the first two sentences that say something stay."""
    sentences = [m.group().strip() for m in _SENTENCE.finditer(answer)] or [answer.strip()]
    telling = [s for s in sentences if not any(filler in s.lower() for filler in FILLERS)] or sentences
    return " ".join(telling[:2])


class Population:
    """`n` users drawn from `seed`. Equal seeds give equal people and equal reactions in equal order."""

    def __init__(self, n: int = 24, *, seed: int = 0) -> None:
        rng = random.Random(f"population {seed}")
        self.users = tuple(
            User(
                name=f"sim-{i:03d}",
                temperature=rng.uniform(0.25, 0.7),
                lapse=rng.uniform(0.0, 0.12),
                side_bias=rng.gauss(0.0, 0.15),
            )
            for i in range(n)
        )
        self._rng = random.Random(f"reactions {seed}")

    def react(self, prompt: str, answers: Sequence[str]) -> tuple[User, tuple[Reaction, ...]]:
        """One user looks at one prompt and two answers. Of 100: 58 choose, 12 thumb both (the second is a retry), 12 edit,
        8 give stars, 10 say nothing."""
        user = self._rng.choice(self.users)
        first, second = (taste(prompt, answer) for answer in answers)
        mood = self._rng.random()
        if mood < 0.58:
            if abs(first - second) < 0.1:
                return user, (Reaction("tie"),)
            return user, (Reaction("choice", answer=0 if user.prefers_first(first, second, self._rng) else 1),)
        if mood < 0.70:
            return user, tuple(
                Reaction("thumb", answer=i, up=self._likes(user, t)) for i, t in enumerate((first, second))
            )
        if mood < 0.82:
            worse = 1 if user.prefers_first(first, second, self._rng) else 0
            text = shortened(answers[worse])
            return user, (Reaction("edit", answer=worse, text=text),) if text != answers[worse].strip() else ()
        if mood < 0.90:
            noisy = (t + self._rng.gauss(0, user.temperature) for t in (first, second))
            return user, tuple(
                Reaction("stars", answer=i, stars=max(1, min(5, round(3.5 + t)))) for i, t in enumerate(noisy)
            )
        return user, ()

    def _likes(self, user: User, value: float) -> bool:
        """A thumb compares the answer with a passable one (taste -0.8)."""
        return user.prefers_first(value, -0.8, self._rng)
