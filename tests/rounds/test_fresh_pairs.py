"""L3: a round weighs up the reward model's pairs of the live version, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.config import from_tree
from thumbwheel.records import Message, Preference
from thumbwheel.rounds import learn


def pairs(fresh: int, others: int) -> list[Preference]:
    def said(text: str) -> Message:
        return Message(role="assistant", content=text)

    return [
        Preference(
            prompt=(said(f"q{n}"),), chosen=said("a"), rejected=said("b"), policy_version="v2" if n < fresh else "v1"
        )
        for n in range(fresh + others)
    ]


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Preference]]:
    """What reward models would be fitted on."""
    seen: list[Sequence[Preference]] = []

    def fit(rows: Sequence[Preference], *args: Any, **how: Any) -> dict[str, float]:
        seen.append(rows)
        return {}

    monkeypatch.setattr(learn, "fit_reward_model", fit)
    monkeypatch.setattr(learn, "check_reward", lambda *args, **how: None)
    return seen


@pytest.mark.parametrize(("changes", "weight", "told"), [
    ({}, 3.0, "1 of 10 pairs (10% of the weight) are answers of v2; weighed up to 30%"),
    ({"fresh_weight_cap": 2.0}, 2.0, "1 of 10 pairs (10% of the weight) are answers of v2; weighed up to 20%"),
    ({"fresh_share": 0.0}, 1.0, "1 of 10 pairs (10% of the weight) are answers of v2"),
])  # fmt: skip
def test_pairs_of_the_live_version_are_weighed_up(
    changes: dict[str, float], weight: float, told: str, tmp_path: Path, fitted: list[Sequence[Preference]]
) -> None:
    """By hand: one of ten times 3 is 30 %."""
    settings = from_tree({"reward": changes})
    outcome = learn.fit_reward(pairs(1, 9), [], settings, folder=tmp_path, tick=None, live="v2")
    assert fitted[0][0].weight == pytest.approx(weight)
    assert sum(row.weight for row in fitted[0]) == pytest.approx(10.0)
    assert outcome["accounts"] == {"fresh": told}


def test_without_a_live_version_nothing_is_weighed(tmp_path: Path, fitted: list[Sequence[Preference]]) -> None:
    rows = pairs(1, 9)
    outcome = learn.fit_reward(rows, [], from_tree({}), folder=tmp_path, tick=None)
    assert fitted == [rows]
    assert outcome["accounts"] == {}
