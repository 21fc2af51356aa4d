"""P7: which strength of the pull is picked, why, and that a killed sweep goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.config import ModelSettings, OnlineSettings, SampleSettings
from thumbwheel.errors import CheckpointError, SettingError, TrainingError
from thumbwheel.records import Message, Prompt
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.lessons import Reference
from thumbwheel.train.sweep import Found, Point, measured, pick, sweep

REFERENCE = Point(0.0, 0.0, 0.05, 0.0, 0.0, 100)


def point(value: float, reward: float, kl: float, error: float = 0.05) -> Point:
    return Point(value, reward, error, kl, 20 * kl, 100)


@pytest.mark.parametrize(
    ("points", "picked", "said"),
    [
        ([point(0.01, 3.0, 1.4), point(0.1, 2.0, 0.4), point(0.5, 0.5, 0.1)], 0.1, "0.1: reward 2"),
        ([point(0.01, 3.0, 1.4), point(0.1, 2.5, 1.2)], None, "above 1 everywhere: raise β"),
        ([point(0.01, 3.0, 0.8), point(0.1, 2.5, 0.6)], None, "Raise β"),
        ([point(0.1, 0.1, 0.2), point(0.5, 0.0, 0.1)], None, "not above the reference's"),
        ([point(0.1, 2.0, 0.4), point(0.2, 1.95, 0.2)], 0.2, "0.1 earned 2, which is within noise"),
    ],
    ids=["largest below the limit", "all far", "all beyond", "no gain", "alike: the nearer one"],
)
def test_the_rule(points: list[Point], picked: float | None, said: str) -> None:
    got, why = pick(points, REFERENCE, max_kl_per_token_nats=0.5)
    assert got == picked
    assert said in why


def test_a_killed_sweep_goes_on_with_the_next_value(tmp_path: Path) -> None:
    ran: list[float] = []

    def run(value: float, folder: Path) -> Point:
        if value == 0.5 and ran.count(0.5) == 0:
            ran.append(value)
            raise KeyboardInterrupt
        ran.append(value)
        return point(value, 1 / value, 0.04 / value)

    def go() -> Found:
        return sweep([0.5, 0.1], run, tmp_path, reference=lambda: REFERENCE, inputs={"seed": 0})

    with pytest.raises(KeyboardInterrupt):
        go()
    found = go()
    assert ran == [0.1, 0.5, 0.5]  # in rising order; 0.1 was not run again
    assert [p.value for p in found.points] == [0.1, 0.5]
    assert found.picked == 0.1
    with pytest.raises(CheckpointError, match="other seed"):
        sweep([0.5, 0.1], run, tmp_path, reference=lambda: REFERENCE, inputs={"seed": 1})
    (tmp_path / "0.1" / "point.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="made again"):
        go()


@pytest.mark.parametrize("values", [[], [0.1, 0.1], [0.0], [float("inf")]])
def test_values_that_cannot_be_tried_are_refused(values: list[float], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="values to try"):
        sweep(values, lambda v, f: point(v, 1, 0.1), tmp_path, reference=lambda: REFERENCE, inputs={})


@dataclass
class Said:
    total: Sequence[float]
    columns: dict[str, Any]


def test_a_policy_is_measured_by_reward_and_by_kl_to_its_reference() -> None:
    """One answer in four unscored, the others worth 1, 2, 3: mean 2, standard error 1/√3. KL to oneself is 0, to another not."""
    model = tiny_language_model(seed=1, layers=1, dim=32)
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    prompts: list[Prompt] = [(Message(role="user", content=letter),) for letter in "abcd"]
    settings, sampling = OnlineSettings(recipe="rloo", max_unscored_share=0.3), SampleSettings(max_new_tokens=5, batch_size=4)

    def of(reward: Any, reference: Reference) -> Point:
        return measured(0.1, model, prompts, reward, settings, sampling, reference=reference)

    def reward(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([1.0, 2.0, math.nan, 3.0], {})

    own = of(reward, Reference(model))
    assert (own.value, own.reward, own.answers, own.kl_per_token_nats) == (0.1, 2.0, 3, 0.0)
    assert own.error == pytest.approx(1 / math.sqrt(3))
    other = of(reward, Reference(tiny_language_model(seed=2, layers=1, dim=32)))
    assert other.kl_per_token_nats > 0.1
    assert other.kl_per_response_nats > other.kl_per_token_nats
    with pytest.raises(TrainingError, match="nothing can be compared"):
        of(lambda prompts, texts: Said([math.nan] * len(texts), {}), Reference(model))
