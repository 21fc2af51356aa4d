"""The composed reward that commands learn from and measure with, as `online.reward` lists its terms."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.config import Settings
from thumbwheel.errors import SettingError
from thumbwheel.signals.reward_terms import open_reward
from thumbwheel.signals.rewards import CompositeReward


def reward_from(settings: Settings, reward_model: Path | None) -> CompositeReward:
    """The reward; whoever asks it counts the answers without one. `reward_model` is the folder of a reward model.

    Raises SettingError where a term asks for a reward model and none is named.
    """
    from thumbwheel.train.reward_ensemble import reward_scorers

    s = settings.online
    scorers = {} if reward_model is None else reward_scorers(reward_model, settings)
    if reward_model is None and any(term.asks_reward_model for term in s.reward.terms):
        raise SettingError.of(
            "The reward asks for a reward model, and none was named.",
            allowed="--reward FOLDER, or online.reward.terms of your own such as {name='length', scorer='my_pkg.rules:score'}",
            got="neither",
            next="Make one with: thumbwheel train reward comparisons.jsonl --out my-reward",
        )
    return open_reward(s.reward, scorers=scorers, max_unscored_share=1.0)
