"""Where answers end, and what of them can be said while they grow."""

from __future__ import annotations

import pytest

from thumbwheel.config import SampleSettings
from thumbwheel.engines.ending import Ending, Speech
from thumbwheel.testing.models import tiny_language_model

TEMPLATE = tiny_language_model().template


def ids(text: str) -> list[int]:
    """One token a byte, as the tiny tokenizer has it."""
    return list(TEMPLATE.tokenizer(text, add_special_tokens=False).input_ids)


def ending(stop: tuple[str, ...] = (), *, longest: int = 10, room: int = 100) -> Ending:
    return Ending(TEMPLATE, SampleSettings(stop=stop, max_new_tokens=longest), room)


@pytest.mark.parametrize(
    ("longest", "room", "reason"), [(3, 3, "max_tokens"), (3, 9, "max_tokens"), (9, 3, "context_overflow")]
)
def test_a_limit_has_the_name_of_what_set_it(longest: int, room: int, reason: str) -> None:
    """Terminated and truncated are two things, and so are the two limits."""
    end = ending(longest=longest, room=room)
    assert end.sample(ids("ab"), [-1.0] * 2, 7) is None
    sample = end.sample(ids("abc"), [-1.0] * 3, 7)
    assert sample is not None
    assert (sample.stop_reason, sample.text, sample.logp, sample.seed) == (reason, "abc", -3.0, 7)


def test_no_room_is_an_answer_of_nothing() -> None:
    """A prompt as long as the model's positions."""
    sample = ending(room=0).sample((), (), 1)
    assert sample is not None
    assert (sample.stop_reason, sample.token_ids, sample.text) == ("context_overflow", (), "")
    assert ending(room=1).sample((), (), 1) is None


def test_the_first_of_several_stop_strings_cuts() -> None:
    """The one that begins first, when one token completes two."""
    end = ending(("cd", "bcd"))
    assert end.sample(ids("abc"), [0.0] * 3, 0) is None
    sample = end.sample(ids("abcd"), [0.0] * 4, 0)
    assert sample is not None
    assert (sample.stop_reason, sample.text, len(sample.token_ids)) == ("stop_string", "a", 4)


def test_an_end_token_on_the_last_place_completes() -> None:
    """Not cut off: it ended by itself."""
    sample = ending(longest=2).sample([*ids("a"), TEMPLATE.end_id], [0.0, 0.0], 0)
    assert sample is not None
    assert (sample.stop_reason, sample.text) == ("completed", "a")


def said(text: str, *stop: str) -> list[str]:
    end = ending(tuple(stop), longest=1000)
    speech = Speech(end)
    data = ids(text)
    return [speech.piece(data[: n + 1]) for n in range(len(data))]


def test_a_piece_never_ends_inside_a_character() -> None:
    """é is two bytes, ☃ three and 🚀 four."""
    assert said("aé☃🚀") == ["a", "", "é", "", "", "☃", "", "", "", "🚀"]


def test_what_may_become_a_stop_string_is_held_back() -> None:
    """ "END" is begun twice here before it is there."""
    assert said("xEEN!", "END") == ["x", "", "E", "", "EN!"]
    assert said("xEN", "END") == ["x", "", ""]


def test_what_was_held_back_is_said_at_the_end() -> None:
    """Cut off by its length, an answer keeps what only looked like a stop string, and half a character."""
    end = ending(("END",), longest=4)
    speech = Speech(end)
    data = [*ids("aEN"), ids("é")[0]]
    pieces = [speech.piece(data[: n + 1]) for n in range(3)]
    sample = end.sample(data, [0.0] * 4, 0)
    assert sample is not None
    assert [*pieces, speech.rest(sample)] == ["a", "", "", "EN\N{REPLACEMENT CHARACTER}"]
