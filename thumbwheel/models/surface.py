"""Plain features of a text beside its prompt: length, form, care, wording. No model, no dictionary, milliseconds.

With few comparisons these carry most of what can be learned, and each can be read by a person. Rates are per word or per
100 characters; counts are log(1 + count), so that the tenth exclamation mark adds less than the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
SENTENCE_END = re.compile(r"(?<=[.!?。！？])[\s\"')\]]+|\n+")
COUNTED: dict[str, re.Pattern[str]] = {
    "exclamations": re.compile(r"[!！]"),
    "questions": re.compile(r"[?？]"),
    "runs_of_marks": re.compile(r"[!?]{2,}|\.{2,}"),
    "commas": re.compile(r"[,，]"),
    "colons": re.compile(r"[:;：；]"),
    "quotes": re.compile(r"[\"“”«»]"),
    "brackets": re.compile(r"[(\[{（]"),
    "numbers": re.compile(r"\d+"),
    "links": re.compile(r"https?://|www\."),
    "lines": re.compile(r"\n+"),
    "list_items": re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE),
    "emphasis": re.compile(r"\*\*|^#+ ", re.MULTILINE),
    "code": re.compile(r"```|`[^`\n]+`"),
    "stars_in_words": re.compile(r"\w\*+\w|\*{3,}"),
    "small_i": re.compile(r"\bi\b"),
    "no_space_after_mark": re.compile(r"[a-z][.,!?][A-Za-z]"),
    "space_before_mark": re.compile(r"\s[.,!?]"),
    "double_spaces": re.compile(r"\S  +\S"),
    "drawn_out_letters": re.compile(r"([^\W\d_])\1\1"),
}
"""Counted as log(1 + matches)."""


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


WORDING: dict[str, frozenset[str]] = {
    "connectives": _listed(
        "because therefore thus hence since however although though but moreover furthermore consequently so "
        "if then while whereas unless instead example reason first second third finally also"
    ),
    "modals": _listed("can could may might must shall should will would ought"),
    "negations": _listed(
        "no not never none nothing nobody neither nor cannot can't don't doesn't isn't aren't won't didn't wasn't"
    ),
    "evidence": _listed(
        "study studies research evidence fact facts statistics according percent proof proven science "
        "scientific history source data report"
    ),
    "first_person": _listed("i me my mine i'm i've i'll i'd"),
    "second_person": _listed("you your yours you're you'll yourself u ur"),
    "third_person": _listed("they them their he she his him her it its we us our"),
    "function_words": _listed(
        "the a an of to in and is that it for on as with be are this by at from or was were which their they "
        "we he she his her its has have had been there these those who what when where why how than"
    ),
    "chat_spelling": _listed(
        "u ur r n lol omg wtf haha gonna wanna gotta cuz cause ya yea yeah nope dont cant wont im ive doesnt "
        "isnt didnt thats theres alot ppl"
    ),
    "apologies": _listed("sorry apologize apologise apologies unfortunately unable cannot"),
}
"""Share of the words, and log(1 + count), of each list. English; in another language they are 0 and take no part."""

PLAIN = (
    "log_characters",
    "log_words",
    "log_sentences",
    "root_characters",
    "log_words_a_sentence",
    "characters_a_word",
    "words_of_7_letters",
    "words_of_10_letters",
    "syllables_a_word",
    "words_of_3_syllables",
    "reading_ease",
    "grade_level",
    "distinct_words",
    "distinct_words_root",
    "repeated_triples",
    "capital_letters",
    "words_in_capitals",
    "words_with_capital",
    "sentences_in_lower_case",
    "starts_in_lower_case",
    "ends_without_mark",
    "full_stops",
    "apostrophes",
    "odd_characters",
    "is_empty",
    "log_length_over_prompt",
    "words_from_prompt",
    "prompt_covered",
    "copies_prompt",
)

NAMES: tuple[str, ...] = (
    *PLAIN,
    *COUNTED,
    *(f"{name}_{how}" for name in WORDING for how in ("share", "count")),
)
"""The features, in the order of the columns."""


def surface_features(prompts: Sequence[str], responses: Sequence[str]) -> Floats:
    """(n, F) float64, one row a response, columns as in `NAMES`. Finite for every text, the empty one too.

    | feature               | meaning                                                                             |
    | --------------------- | ----------------------------------------------------------------------------------- |
    | log_…, root_…         | length, in log(1 + n) or √n                                                          |
    | reading_ease          | Flesch 1948: 206.835 - 1.015 words/sentence - 84.6 syllables/word; sentences of ≤ 60 |
    | grade_level           | automated readability index (Senter & Smith 1967)                                   |
    | distinct_words        | types per token; `_root`: types per √tokens (Guiraud 1954)                          |
    | repeated_triples      | share of word triples that came before: looping text                                |
    | words_from_prompt     | share of the response's content words that the prompt has too                       |
    | prompt_covered        | share of the prompt's content words that the response has too                       |
    | copies_prompt         | share of the response's word triples that stand in the prompt                       |
    | full_stops, …         | per 100 characters                                                                  |
    | those of `COUNTED`    | log(1 + matches)                                                                    |
    | those of `WORDING`    | share of words, and log(1 + count)                                                  |
    """
    rows = [_features(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))


def _features(prompt: str, text: str) -> list[float]:
    words = WORD.findall(text)
    lower = [word.lower().replace("’", "'") for word in words]
    return [
        *_form(text, words, lower),
        *_beside_prompt(prompt, text, lower),
        *(math.log1p(len(pattern.findall(text))) for pattern in COUNTED.values()),
        *(value for listed in WORDING.values() for value in _wording(lower, listed)),
    ]


def _form(text: str, words: list[str], lower: list[str]) -> list[float]:
    """The features of `PLAIN` that need no prompt."""
    sentences = [part for part in SENTENCE_END.split(text.strip()) if part.strip()]
    n, characters = max(1, len(words)), max(1, len(text))
    a_sentence = n / max(1, len(sentences))
    letters = sum(map(len, words)) / n
    syllables = [_syllables(word) for word in lower]
    spoken = sum(syllables) / n
    triples = list(zip(lower, lower[1:], lower[2:], strict=False))
    in_lower_case = sum(part.strip()[0].islower() for part in sentences) / max(1, len(sentences))
    return [
        math.log1p(len(text)),
        math.log1p(len(words)),
        math.log1p(len(sentences)),
        math.sqrt(len(text)),
        math.log(a_sentence),
        letters,
        sum(len(word) >= 7 for word in words) / n,
        sum(len(word) >= 10 for word in words) / n,
        spoken,
        sum(count >= 3 for count in syllables) / n,
        206.835 - 1.015 * min(a_sentence, 60) - 84.6 * spoken,
        4.71 * letters + 0.5 * min(a_sentence, 60) - 21.43,
        len(set(lower)) / n,
        len(set(lower)) / math.sqrt(n),
        1 - len(set(triples)) / max(1, len(triples)) if triples else 0.0,
        sum(letter.isupper() for letter in text) / characters,
        sum(word.isupper() and len(word) > 1 for word in words) / n,
        sum(word[0].isupper() for word in words) / n,
        in_lower_case,
        float(text.strip()[:1].islower()),
        float(not re.search(r"[.!?。！？\"')\]`]\s*$", text)),
        100 * text.count(".") / characters,
        100 * len(re.findall("['’]", text)) / characters,
        100 * len(re.findall(r"[^\w\s.,!?;:'\"()\-’“”]", text)) / characters,
        float(not text.strip()),
    ]


def _beside_prompt(prompt: str, text: str, lower: list[str]) -> list[float]:
    """log_length_over_prompt, words_from_prompt, prompt_covered, copies_prompt."""
    asked = [word.lower().replace("’", "'") for word in WORD.findall(prompt)]
    idle = WORDING["function_words"]
    theirs, ours = set(asked) - idle, [word for word in lower if word not in idle]
    known = set(zip(asked, asked[1:], asked[2:], strict=False))
    triples = list(zip(lower, lower[1:], lower[2:], strict=False))
    return [
        math.log1p(len(text)) - math.log1p(len(prompt)),
        sum(word in theirs for word in ours) / max(1, len(ours)),
        len(theirs & set(ours)) / max(1, len(theirs)),
        sum(triple in known for triple in triples) / max(1, len(triples)),
    ]


def _wording(lower: list[str], listed: frozenset[str]) -> tuple[float, float]:
    count = sum(word in listed for word in lower)
    return count / max(1, len(lower)), math.log1p(count)


def _syllables(word: str) -> int:
    """Groups of vowels, a silent final e not counted; at least one."""
    groups = len(re.findall(r"[aeiouy]+", word))
    return max(1, groups - (word.endswith("e") and len(word) > 3))
