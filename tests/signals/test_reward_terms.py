"""Terms by name from the settings, and the decays of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from thumbwheel.config import CompositeSettings, RewardTermSettings, from_tree
from thumbwheel.errors import RegistryError, SettingError
from thumbwheel.records import Message, Prompt
from thumbwheel.signals.reward_terms import broken_rule_decay, length_decay, open_reward, open_terms, repetition_decay
from thumbwheel.signals.rewards import compose

PROMPT: Prompt = (Message(role="user", content="hello"),)


def scores(scorer: Any, *texts: str) -> list[float | None]:
    return list(scorer([PROMPT] * len(texts), list(texts)))


def test_repetition() -> None:
    """R6: a 3-gram more than twice -> × .7; twice is allowed; case and punctuation do not hide it; Chinese is read too."""
    assert scores(
        repetition_decay(),
        "a b c a b c",
        "a b c a b c a b c",
        "The cat sat. the CAT sat, the cat sat!",
        "",
        "one two",
        "你好吗你好吗你好吗",
        "hahahahahaha",
    ) == [1.0, 0.7, 0.7, 1.0, 1.0, 0.7, 0.7]
    assert scores(repetition_decay(factor=0.5, n=2, more_than=3), "x y x y x y x y", "x y x y x y z") == [0.5, 1.0]


def test_length() -> None:
    """R6: limit 4: four words 1, eight .7, twelve .49, six √.7 = .836660."""
    decay = length_decay(limit_words=4, factor=0.7)
    assert scores(decay, "", *(" ".join(["word"] * n) for n in (4, 8, 12, 6))) == pytest.approx(
        [1.0, 1.0, 0.7, 0.49, 0.836660], abs=1e-6
    )
    assert scores(length_decay(limit_words=3, factor=0.0), "a b c", "a b c d") == [1.0, 0.0]


def test_a_broken_rule() -> None:
    """R6: × .3 where the rule is broken; where it cannot tell, unscored; it sees the prompt."""
    decay = broken_rule_decay(lambda prompt, text: None if not text else prompt[0].content in text)
    assert scores(decay, "hello there", "good day", "") == [0.3, 1.0, None]


def hedges(prompt: Prompt, text: str) -> bool:
    """A rule: no hedge words."""
    return "perhaps" in text


def brief(prompt: Prompt, text: str) -> float:
    """A rule of one answer."""
    return -float(len(text))


def together(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """A scorer of all answers."""
    return [float(len(texts))] * len(texts)


NO_FUNCTION = 3


def test_terms_from_the_settings() -> None:
    """R6: the reward model, a rule of one's own, one asked for all at once, decays, an ensemble's lower bound."""
    settings = CompositeSettings(
        terms=(
            RewardTermSettings(name="human", scorer="reward_model", weight=2.0),
            RewardTermSettings(name="brief", scorer=f"{__name__}:brief", weight=0.1, required=False),
            RewardTermSettings(name="all", scorer=f"{__name__}:together", asked="together"),
            RewardTermSettings(
                name="low", scorer="lower_bound", members=("reward_model", f"{__name__}:brief"), weight=0.0
            ),
            RewardTermSettings(name="loops", scorer="repetition", role="multiply"),
            RewardTermSettings(name="long", scorer="length", role="multiply", limit_words=9, factor=0.5),
            RewardTermSettings(
                name="hedge", scorer="broken_rule", role="multiply", rule=f"{__name__}:hedges", factor=0.3
            ),
        )
    )
    terms = open_terms(settings, scorers={"reward_model": lambda prompts, texts: np.ones(len(texts))})
    texts = ["so it is", "perhaps so"]
    result = compose(terms, [PROMPT] * 2, texts, max_unscored_share=0.0)
    assert list(result.columns) == ["human", "brief", "all", "low", "loops", "long", "hedge"]
    # 2·1 - .1·8 + 2 = 3.2 as it is; (2 - 1 + 2) · .3 where the rule is broken
    assert result.total.tolist() == pytest.approx([3.2, 0.9])
    # members 1 and -8: mean -3.5, deviation 9/√2
    assert result.columns["low"][0] == pytest.approx(-3.5 - 9 / 2**0.5)


def test_the_default_is_the_reward_model_alone() -> None:
    """R6."""
    (term,) = open_terms(CompositeSettings(), scorers={"reward_model": lambda prompts, texts: [0.5] * len(texts)})
    assert (term.name, term.weight, term.role) == ("reward", 1.0, "add")
    reward = open_reward(
        CompositeSettings(), scorers={"reward_model": lambda prompts, texts: [0.5, None]}, max_unscored_share=0.5
    )
    assert reward([PROMPT] * 2, ["a", "b"]).total.tolist() == pytest.approx([0.5, float("nan")], nan_ok=True)


@pytest.mark.parametrize(
    ("term", "error", "says"),
    [
        ({"scorer": "reward_modle"}, RegistryError, "'reward_modle'.*'x'.*Did you mean 'reward_model'"),
        ({"scorer": "reward_model"}, RegistryError, "no scorer 'reward_model'"),
        ({"scorer": "nowhere:f"}, RegistryError, "cannot be imported"),
        ({"scorer": f"{__name__}:NO_FUNCTION"}, SettingError, "no function"),
        ({"scorer": "length", "role": "multiply"}, SettingError, "limit_words"),
        ({"scorer": "broken_rule", "role": "multiply"}, SettingError, "rule = 'module:attr'"),
        ({"scorer": "broken_rule", "role": "multiply", "rule": "nowhere:f"}, RegistryError, "cannot be imported"),
        ({"scorer": "lower_bound", "members": ("a", "b")}, RegistryError, "no scorer 'a'"),
    ],
)
def test_a_scorer_that_is_nothing_is_refused(term: dict[str, Any], error: type[Exception], says: str) -> None:
    """R6: before the first answer is sampled."""
    others = (RewardTermSettings(name="base", scorer=f"{__name__}:brief"),)
    known = {} if term["scorer"] == "reward_model" else {"reward_model": together}
    with pytest.raises(error, match=says):
        open_terms(CompositeSettings(terms=(*others, RewardTermSettings(name="x", **term))), scorers=known)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ([{"name": "a", "scorer": "reward_model"}] * 2, "one name"),
        ([{"name": "a", "scorer": "repetition", "role": "multiply"}], "role = 'add'"),
        ([{"name": "a", "scorer": "repetition"}], "set role = 'multiply'"),
        ([{"name": "a", "scorer": "reward_model", "role": "multiply", "weight": 0.5}], "no weight"),
        ([{"name": "a", "scorer": "lower_bound", "members": ["reward_model"]}], "two or more"),
        ([], "at least 1"),
        ([{"name": "a", "scorer": "reward_model", "factor": 1.5}], "less than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(terms: list[dict[str, Any]], says: str) -> None:
    """R6."""
    with pytest.raises(ValueError, match=says):
        CompositeSettings.model_validate({"terms": terms})


@pytest.mark.parametrize(
    "make",
    [
        lambda: repetition_decay(factor=1.2),
        lambda: length_decay(limit_words=0),
        lambda: length_decay(limit_words=5, factor=-0.1),
        lambda: broken_rule_decay(hedges, factor=2.0),
    ],
)
def test_a_decay_out_of_range_is_refused(make: Any) -> None:
    """R6."""
    with pytest.raises(SettingError, match="out of range"):
        make()


@pytest.mark.parametrize(("scorer", "members"), [
    ("reward_model", ()), ("reward_model.1", ()), ("lower_bound", ()), ("lower_bound", ("a:b", "reward_model.0")),
])  # fmt: skip
def test_terms_that_ask_the_reward_model(scorer: str, members: tuple[str, ...]) -> None:
    """R8: members of an ensemble are the reward model too, so it may not judge what learned from one of them."""
    assert RewardTermSettings(name="a", scorer=scorer, members=members).asks_reward_model
    terms = [{"name": "a", "scorer": scorer, "members": members}]
    with pytest.raises(SettingError, match="cannot judge it"):
        from_tree({"update": {"method": "online"}, "online": {"reward": {"terms": terms}}})


def test_terms_that_do_not() -> None:
    named = [("lower_bound", ("a:b", "a:c")), ("reward_model.rules:score", ()), ("a:b", ())]
    for scorer, members in named:
        assert not RewardTermSettings(name="a", scorer=scorer, members=members).asks_reward_model
