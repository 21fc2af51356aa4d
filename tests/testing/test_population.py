"""The simulated users: their taste as written down, noise and lapses as drawn, the same people from the same seed."""

from __future__ import annotations

import random

import pytest

from thumbwheel.testing.population import Population, User, shortened, taste

QUESTION = "Why is the sky blue?"
SHORT = "The sky is blue because air scatters blue light most."
PADDED = "Certainly! " + "The sky is blue because air scatters blue light the most of all. " * 6 + "I hope this helps!"


def test_taste_by_hand() -> None:
    # 10 words, no filler, ends with a full stop, takes up "sky" and "blue" of the question's {why?}: why is common.
    assert taste(QUESTION, SHORT) == pytest.approx(1.0)
    # The same text cut off: -1.
    assert taste(QUESTION, SHORT[:-1]) == pytest.approx(0.0)
    # 55 words with no link to the question: -(55 - 30)/25.
    assert taste(QUESTION, "word " * 54 + "word.") == pytest.approx(-1.0)
    # One filler and one exclamation mark, four words.
    assert taste(QUESTION, "Certainly! Sky blue air.") == pytest.approx(1.0 - 0.7 - 0.15)
    # Under four words: -2.
    assert taste(QUESTION, "Sky.") == pytest.approx(0.5 - 2.0)


def test_they_prefer_short_and_direct() -> None:
    assert taste(QUESTION, SHORT) > taste(QUESTION, PADDED) + 1


def test_an_edit_drops_filler_and_keeps_two_sentences() -> None:
    assert shortened("Certainly! One thing. Another thing. A third.") == "One thing. Another thing."
    assert shortened("no end") == "no end"


def test_a_choice_is_noisy_as_stated() -> None:
    """σ(1/1) = .7311; with a lapse of .2: .8 · .7311 + .1 = .6849."""
    rng = random.Random(0)
    user = User(name="u", temperature=1.0, lapse=0.2, side_bias=0.0)
    share = sum(user.prefers_first(1.0, 0.0, rng) for _ in range(20_000)) / 20_000
    assert share == pytest.approx(0.6849, abs=0.01)


def test_the_same_seed_gives_the_same_people_and_clicks() -> None:
    def clicks(seed: int) -> list[object]:
        people = Population(seed=seed)
        return [people.react(QUESTION, (SHORT, PADDED)) for _ in range(40)]

    assert clicks(3) == clicks(3)
    assert clicks(3) != clicks(4)


def test_every_way_to_react_happens_and_better_answers_win() -> None:
    people = Population(seed=1)
    reactions = [people.react(QUESTION, (SHORT, PADDED))[1] for _ in range(1000)]
    kinds = {reaction.kind for group in reactions for reaction in group}
    assert kinds >= {"choice", "thumb", "stars", "edit"}
    assert 0.05 < sum(not group for group in reactions) / 1000 < 0.2
    choices = [reaction.answer for group in reactions for reaction in group if reaction.kind == "choice"]
    assert sum(answer == 0 for answer in choices) / len(choices) > 0.85
