"""How varied texts are, and how much they repeat themselves. numpy only.

A text is a sequence of tokens: words, token ids, anything hashable. An n-gram is n tokens in a row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, known

# Scripts that put no space between words: each character stands for a word.
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+")


def words(text: str) -> list[str]:
    """Lower-case words; one for each Chinese, Japanese or Korean character. Fewer than three words: the characters.

    Known value: "Don't stop, 你好" -> don, t, stop, 你, 好."""
    found = _WORD.findall(text.lower())
    return found if len(found) > 2 else [character for character in text if not character.isspace()]


def ngram_counts(tokens: Sequence[Hashable], *, n: int) -> Counter[tuple[Hashable, ...]]:
    """How often each n-gram occurs: max(0, T - n + 1) in all. Known value: "a b a b", n = 2 -> (a b) twice, (b a) once.

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"An n-gram has at least 1 token. Got: n = {n}.")
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def distinct_n(texts: Sequence[Sequence[Hashable]], *, n: int) -> Figure:
    """#(distinct n-grams of all texts together) / #(n-grams of all texts)

    | symbol | name  | shape        | unit  | range |
    | ------ | ----- | ------------ | ----- | ----- |
    | -      | texts | B sequences  | token | any   |
    | n      | n     | ()           | token | ≥ 1   |

    Source: Li et al. 2016. In (0, 1]; falls with the amount of text, so compare only equal amounts.
    Known value: ("a b a b"), n = 2 -> 2/3. Undefined where no text has n tokens.
    """
    counts: Counter[tuple[Hashable, ...]] = Counter()
    for tokens in texts:
        counts.update(ngram_counts(tokens, n=n))
    return Figure(len(counts) / counts.total()) if counts else Figure(None, f"no text has {n} tokens")


def repetition_share(tokens: Sequence[Hashable], *, n: int = 3, more_than: int = 2) -> Figure:
    """Σ_{g: c_g > k} c_g / Σ_g c_g

    | symbol | name      | shape       | unit  | range                         |
    | ------ | --------- | ----------- | ----- | ----------------------------- |
    | c_g    | -         | ()          | count | how often the n-gram g occurs |
    | n      | n         | ()          | token | ≥ 1                           |
    | k      | more_than | ()          | count | ≥ 1                           |

    The share of a text's n-grams that occur more than k times in it; by default 3-grams that occur more than twice.
    In [0, 1]; above 0 says that the text repeats itself. Known value: "a b c a b c a b c" -> 3/7 (only a b c occurs thrice).
    Undefined where the text has fewer than n tokens. Raises ValueError for n < 1 or k < 1.
    """
    if more_than < 1:
        raise ValueError(f"A repetition is more than 1 time at least. Got: more_than = {more_than}.")
    counts = ngram_counts(tokens, n=n)
    if not counts:
        return Figure(None, f"the text has fewer than {n} tokens")
    return Figure(sum(c for c in counts.values() if c > more_than) / counts.total())


def entropy_nats(probabilities: ArrayLike) -> float:
    """H = -Σ pₐ ln pₐ,  0 ln 0 = 0

    | symbol | name          | shape | unit | range             |
    | ------ | ------------- | ----- | ---- | ----------------- |
    | p      | probabilities | (A,)  | -    | [0, 1], sum to 1  |

    Source: Shannon 1948. In [0, ln A]. Known value: (½, ½) -> ln 2; (1, 0) -> 0; (.5, .3, .2) -> 1.029653.
    Raises ValueError for a negative value or a sum that is not 1.
    """
    p = known(probabilities, "probabilities")
    if not p.size or p.min() < 0 or abs(p.sum() - 1) > 1e-6:
        raise ValueError(
            f"Probabilities must be 0 or more and sum to 1. Got a sum of {p.sum():g}; divide counts by theirs."
        )
    p = p[p > 0]
    return max(0.0, float(-(p * np.log(p)).sum()))
