"""Unique prompts and the split by prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import answer, episode, user

from thumbwheel.errors import SettingError
from thumbwheel.records import Demonstration, Message
from thumbwheel.signals.prompts import held_out, prompt_key, prompts, split_by_prompt


def row(prompt: str, response: str = "yes") -> Demonstration:
    return Demonstration(prompt=(user(prompt),), response=Message(role="assistant", content=response))


@pytest.mark.parametrize("other", ["what is 2+2?", "  What  is\n2+2?\t", "WHAT IS 2+2?", "What\u00a0is 2+2?"])
def test_case_and_white_space_make_no_other_prompt(other: str) -> None:
    assert prompt_key((user("What is 2+2?"),)) == prompt_key((user(other),))


@pytest.mark.parametrize(
    "other",
    [
        (user("What is 2+3?"),),
        (Message(role="system", content="What is 2+2?"),),
        (user("What is"), user("2+2?")),
        (Message(role="user", content="What is 2+2?", tools='[{"name": "sum"}]'),),
    ],
)
def test_other_words_roles_turns_or_tools_do(other: tuple[Message, ...]) -> None:
    assert prompt_key((user("What is 2+2?"),)) != prompt_key(other)


def test_prompts_are_unique_and_in_order() -> None:
    steps = (
        answer("A", "x", prompt="b"),
        answer("B", "y", prompt="a", index=1),
        answer("C", "z", prompt=" B ", index=2),
    )
    assert [prompt[0].content for prompt in prompts([episode(*steps), episode(*steps, id="e2")])] == ["b", "a"]


def test_no_prompt_is_on_both_sides_and_the_share_is_about_right() -> None:
    """1000 prompts at 0.3: within five standard deviations (14.5) of 300."""
    rows = [row(f"prompt {i}") for i in range(1000)] + [row(f"PROMPT  {i}", "other") for i in range(1000)]
    train, held = split_by_prompt(rows, 0.3, seed=0)
    assert len(train) + len(held) == 2000
    assert not {prompt_key(r.prompt) for r in train} & {prompt_key(r.prompt) for r in held}
    assert abs(len(held) / 2 - 300) < 73


def test_another_seed_holds_out_other_prompts() -> None:
    rows = [row(f"prompt {i}") for i in range(200)]
    assert split_by_prompt(rows, 0.5, seed=0)[1] != split_by_prompt(rows, 0.5, seed=1)[1]


@given(
    st.lists(st.text(min_size=1).filter(lambda t: t.isprintable()), unique=True),
    st.lists(st.text().filter(str.isprintable)),
)
def test_adding_rows_moves_no_row(old: list[str], new: list[str]) -> None:
    before = split_by_prompt([row(p) for p in old], 0.4, seed=3)[1]
    after = split_by_prompt([row(p) for p in [*new, *old]], 0.4, seed=3)[1]
    assert all(r in after for r in before)
    train = split_by_prompt([row(p) for p in [*new, *old]], 0.4, seed=3)[0]
    assert not any(r in train for r in before)


def test_the_ends_of_the_share_hold() -> None:
    rows = [row(f"prompt {i}") for i in range(50)]
    assert split_by_prompt(rows, 0.0, seed=0) == (rows, [])
    assert split_by_prompt(rows, 1.0, seed=0) == ([], rows)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="share to hold out"):
        held_out((user("x"),), share, seed=0)
