"""Plain features of a text (R1): each against a value counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thumbwheel.models.surface import NAMES, surface_features


def features(text: str, prompt: str = "") -> dict[str, float]:
    (row,) = surface_features([prompt], [text])
    return dict(zip(NAMES, row, strict=True))


def test_names_are_distinct_and_fit_the_columns() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert surface_features(["a", "b"], ["c", "d"]).shape == (2, len(NAMES))
    assert surface_features([], []).shape == (0, len(NAMES))


def test_counted_by_hand() -> None:
    """Two sentences of four words and three; 33 characters; one comma, one exclamation mark."""
    found = features("The cat, it slept. Because of me!")
    assert found["log_characters"] == pytest.approx(math.log(34))
    assert found["log_words"] == pytest.approx(math.log(8))
    assert found["log_sentences"] == pytest.approx(math.log(3))
    assert found["log_words_a_sentence"] == pytest.approx(math.log(3.5))
    assert found["characters_a_word"] == pytest.approx((3 + 3 + 2 + 5 + 7 + 2 + 2) / 7)
    assert found["words_of_7_letters"] == pytest.approx(1 / 7)
    assert found["commas"] == pytest.approx(math.log(2))
    assert found["exclamations"] == pytest.approx(math.log(2))
    assert found["full_stops"] == pytest.approx(100 / 33)
    assert found["capital_letters"] == pytest.approx(2 / 33)
    assert found["connectives_count"] == pytest.approx(math.log(2))
    assert found["first_person_share"] == pytest.approx(1 / 7)
    assert found["distinct_words"] == 1.0
    assert found["ends_without_mark"] == 0.0


def test_reading_ease_of_a_sentence_by_hand() -> None:
    """Flesch: 206.835 - 1.015 · 6 - 84.6 · 1 for six words of one syllable in one sentence."""
    assert features("The cat sat on the mat.")["reading_ease"] == pytest.approx(206.835 - 6.09 - 84.6)


def test_looping_text() -> None:
    """Nine words "a b c" three times: seven triples, of which three are distinct."""
    assert features("a b c a b c a b c")["repeated_triples"] == pytest.approx(4 / 7)
    assert features("a b c d e")["repeated_triples"] == 0.0


def test_care_with_form() -> None:
    found = features("i think so.but u r wrong  , sooo wrong!!!")
    assert found["small_i"] == pytest.approx(math.log(2))
    assert found["no_space_after_mark"] == pytest.approx(math.log(2))
    assert found["drawn_out_letters"] == pytest.approx(math.log(2))
    assert found["runs_of_marks"] == pytest.approx(math.log(2))
    assert found["chat_spelling_count"] == pytest.approx(math.log(3))
    assert found["starts_in_lower_case"] == 1.0


def test_marks_of_a_structured_answer() -> None:
    found = features("# Plan\n\n1. **Mix**\n2. Bake\n- Eat\n```py\nx\n```")
    assert found["list_items"] == pytest.approx(math.log(4))
    assert found["emphasis"] == pytest.approx(math.log(4))
    assert found["code"] == pytest.approx(math.log(3))


def test_beside_the_prompt() -> None:
    """Of the prompt's content words {cats, eat, fish} the answer has two; two of its four content words are theirs."""
    found = features("Cats eat mice daily", "Do cats eat fish?".replace("Do ", ""))
    assert found["words_from_prompt"] == pytest.approx(2 / 4)
    assert found["prompt_covered"] == pytest.approx(2 / 3)
    assert features("why do cats eat fish", "Tell me why do cats eat fish")["copies_prompt"] == 1.0
    assert features("abc", "abcdef")["log_length_over_prompt"] == pytest.approx(math.log(4) - math.log(7))


def test_apostrophes_of_both_kinds_are_one_word() -> None:
    assert features("I don't")["log_words"] == features("I don’t")["log_words"] == pytest.approx(math.log(3))
    assert features("I don’t")["negations_count"] == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "🙂", "你好。再见！", "a" * 10_000, "!!!???", "1 2 3", "\t\t", "é" * 3]
)
def test_every_text_has_finite_features(text: str) -> None:
    assert np.isfinite(surface_features(["", text, "q"], [text, text, text])).all()


def test_an_empty_answer_says_so() -> None:
    assert features("  ")["is_empty"] == 1.0
    assert features("no")["is_empty"] == 0.0
