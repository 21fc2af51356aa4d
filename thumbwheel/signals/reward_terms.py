"""Reward terms by name, as `CompositeSettings` lists them; and the decays that come with the package.

terms = [
    {"name": "human", "scorer": "reward_model"},
    {"name": "safety", "scorer": "my_pkg.safety:unsafe", "asked": "together", "weight": -2.0},
    {"name": "repetition", "scorer": "repetition", "role": "multiply"},
]
reward = open_reward(CompositeSettings(terms=terms), scorers={"reward_model": model.score})
reward(prompts, texts).total
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thumbwheel.config import CompositeSettings, RewardTermSettings
from thumbwheel.errors import RegistryError, SettingError, did_you_mean, explain
from thumbwheel.formulas.variety import ngram_counts, words
from thumbwheel.records import Prompt
from thumbwheel.registry import Registry
from thumbwheel.signals.rewards import CompositeReward, RewardTerm, Scorer, lower_bound, per_answer

SPREAD, SPREAD_COLUMN = "reward_model.spread", "reward_spread"
Rule = Callable[[Prompt, str], Any]
decays: Registry[Callable[[RewardTermSettings], Scorer]] = Registry("reward decay")
"""Name -> (settings of the term) -> scorer of factors in [0, 1]."""


def open_terms(settings: CompositeSettings, *, scorers: Mapping[str, Scorer]) -> tuple[RewardTerm, ...]:
    """The terms that the settings list. `scorers` are those made at run time, by name: {"reward_model": …}.

    A term's scorer is one of these, a decay of this package, "lower_bound" of its `members` (or of the reward model's), or
    "module:attr".
    Raises RegistryError for a name that is nothing, SettingError for one that is no function.
    """
    return tuple(
        RewardTerm(term.name, _scorer(term.scorer, term, scorers), term.weight, term.role, term.required)
        for term in settings.terms
    )


def open_reward(
    settings: CompositeSettings, *, scorers: Mapping[str, Scorer], max_unscored_share: float = 0.2
) -> CompositeReward:
    """The reward that the settings describe, ready to be asked. Raises as `open_terms` does.

    Where the reward model is an ensemble, the disagreement of its members has a column too, of weight 0: "reward_spread".
    """
    terms = open_terms(settings, scorers=scorers)
    if SPREAD in scorers and SPREAD_COLUMN not in {term.name for term in terms}:
        terms = (*terms, RewardTerm(SPREAD_COLUMN, scorers[SPREAD], weight=0.0, required=False))
    return CompositeReward(terms, max_unscored_share=max_unscored_share)


def _scorer(name: str, term: RewardTermSettings, scorers: Mapping[str, Scorer]) -> Scorer:
    if name in scorers:
        return scorers[name]
    if name == "lower_bound":
        members = [_scorer(member, term, scorers) for member in term.members or _ensemble(term, scorers)]
        return lower_bound(members, deviations=term.deviations)
    if name in decays:
        return decays.get(name)(term)
    if ":" not in name:
        known = sorted({*scorers, *decays, "lower_bound"})
        raise RegistryError(
            explain(
                f"There is no scorer '{name}' for the reward term '{term.name}'.{did_you_mean(name, known)}",
                allowed=", ".join(known) + ", or 'module:attr'",
            )
        )
    function = _function(name, term)
    return per_answer(function) if term.asked == "each" else function


def _ensemble(term: RewardTermSettings, scorers: Mapping[str, Scorer]) -> list[str]:
    """Names of the reward model's members: "reward_model.0", "reward_model.1", …"""
    found = [
        name for name in scorers if name.rpartition(".")[0] == "reward_model" and name.rpartition(".")[2].isdigit()
    ]
    if len(found) < 2:
        raise SettingError(
            explain(
                f"The reward term '{term.name}' takes the lower bound of the reward model's members, and it has none.",
                allowed="a reward model trained with reward.members = 2 or more, or 'members' of your own",
                got=", ".join(sorted(scorers)) or "no reward model",
            )
        )
    return found


def _function(name: str, term: RewardTermSettings) -> Any:
    thing: Any = Registry[Any]("scorer").get(name)
    if not callable(thing):
        raise SettingError(
            explain(
                f"The scorer '{name}' of the reward term '{term.name}' is no function.",
                allowed="(prompt, text) -> score; with asked = 'together', (prompts, texts) -> scores",
                got=type(thing).__name__,
            )
        )
    return thing


@decays.register("repetition")
def repetition(term: RewardTermSettings) -> Scorer:
    """`factor` where a 3-gram of words occurs more than twice, else 1 (R6: × 0.7)."""
    return repetition_decay(factor=term.factor)


@decays.register("length")
def length(term: RewardTermSettings) -> Scorer:
    """1 up to `limit_words`, `factor` at twice as many, and on so."""
    if term.limit_words is None:
        raise SettingError(f"The reward term '{term.name}' decays by length: set its limit_words.")
    return length_decay(limit_words=term.limit_words, factor=term.factor)


@decays.register("broken_rule")
def broken_rule(term: RewardTermSettings) -> Scorer:
    """`factor` where the rule named by `rule` says that the answer breaks it, else 1."""
    if term.rule is None:
        raise SettingError(
            f"The reward term '{term.name}' decays where a rule is broken: name it as rule = 'module:attr'."
        )
    return broken_rule_decay(_function(term.rule, term), factor=term.factor)


def repetition_decay(*, factor: float = 0.7, n: int = 3, more_than: int = 2) -> Scorer:
    """`factor` for an answer in which some n words in a row occur more than `more_than` times, 1 for the others.

    A text in a script without spaces is read character by character. Raises SettingError for a factor outside [0, 1].
    """
    _check_factor(factor)

    def decay(prompt: Prompt, text: str) -> float:
        counts = ngram_counts(words(text), n=n)
        return factor if counts and max(counts.values()) > more_than else 1.0

    return per_answer(decay)


def length_decay(*, limit_words: int, factor: float = 0.7) -> Scorer:
    """factor^(max(0, words/limit - 1)): 1 up to the limit, `factor` at twice the limit, its square at thrice.

    It has no edge to stop short of, so that a few words more never cost all at once. Raises SettingError for a factor
    outside [0, 1] or a limit under 1.
    """
    _check_factor(factor)
    if limit_words < 1:
        raise SettingError(
            explain("The limit of a length decay is out of range.", allowed="1 or more", got=limit_words)
        )

    def decay(prompt: Prompt, text: str) -> float:
        over = len(words(text)) / limit_words - 1
        return float(factor**over) if over > 0 else 1.0

    return per_answer(decay)


def broken_rule_decay(rule: Rule, *, factor: float = 0.3) -> Scorer:
    """`factor` where rule(prompt, text) is true, 1 where it is false; unscored where it says None (it cannot tell)."""
    _check_factor(factor)

    def decay(prompt: Prompt, text: str) -> float | None:
        broken = rule(prompt, text)
        return None if broken is None else factor if broken else 1.0

    return per_answer(decay)


def _check_factor(factor: float) -> None:
    if not 0 <= factor <= 1:
        raise SettingError(explain("A decay's factor is out of range.", allowed="[0, 1]", got=factor))
