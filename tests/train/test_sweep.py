"""P7: which strength of the pull is picked, why, and that a killed sweep goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.config import ModelSettings, OnlineSettings, SampleSettings, Settings
from thumbwheel.errors import CheckpointError, SettingError, TrainingError
from thumbwheel.records import Message, Prompt
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.lessons import Reference
from thumbwheel.train.sweep import (
    BETA,
    COEFFICIENT,
    TARGET_PER_RESPONSE,
    TARGET_PER_TOKEN,
    Found,
    Knob,
    Point,
    further,
    knob_of,
    measured,
    pick,
    sweep,
)

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
        ([point(0.1, 2.0, 0.4), point(0.2, 0.14, 0.2, error=2.0)], 0.1, "0.1: reward 2"),
        ([point(0.01, 3.0, 0.5), point(0.1, 0.1, 0.1)], None, "Try values between 0.01 and 0.1"),
    ],
    ids=[
        "largest below the limit",
        "all far",
        "all beyond",
        "no gain",
        "alike: the nearer one",
        "alike and no gain",
        "a gap",
    ],
)
def test_the_rule(points: list[Point], picked: float | None, said: str) -> None:
    got, why = pick(points, REFERENCE, max_kl_per_token_nats=0.5)
    assert got == picked
    assert said in why


def test_what_to_try_is_said_in_the_words_of_the_setting() -> None:
    """A larger β is nearer to the reference; a larger target is farther from it."""
    far = [point(6.0, 3.0, 0.8)]
    assert pick(far, REFERENCE, max_kl_per_token_nats=0.5, knob=TARGET_PER_RESPONSE)[1].endswith("Lower the target.")
    poor = [point(6.0, 0.0, 0.1)]
    assert (
        "Raise the target, train longer"
        in pick(poor, REFERENCE, max_kl_per_token_nats=0.5, knob=TARGET_PER_RESPONSE)[1]
    )
    assert "Lower β, train longer" in pick(poor, REFERENCE, max_kl_per_token_nats=0.5)[1]


@pytest.mark.parametrize(
    ("points", "picked", "knob", "values"),
    [
        ([point(0.1, 1, 0.9), point(0.5, 1, 0.8)], None, BETA, (1.0, 2.5)),
        ([point(3.0, 1, 0.9), point(6.0, 1, 0.8)], None, TARGET_PER_RESPONSE, (0.6, 1.5)),
        ([point(0.1, 0, 0.2), point(0.5, 0, 0.1)], None, BETA, (0.02, 0.05)),
        ([point(0.1, 9, 0.2), point(0.5, 0, 0.1)], 0.1, BETA, (0.02, 0.05)),
        ([point(3.0, 0, 0.1), point(6.0, 9, 0.2)], 6.0, TARGET_PER_RESPONSE, (12.0, 30.0)),
        ([point(0.1, 0, 0.2), point(0.5, 9, 0.1)], 0.5, BETA, ()),
        ([point(0.01, 9, 0.9), point(0.08, 5, 0.1), point(0.5, 1, 0.1)], 0.08, BETA, (0.02, 0.04)),
        ([point(0.01, 9, 0.9), point(0.08, 0, 0.1)], None, BETA, (0.02, 0.04)),
        ([point(0.01, 9, 0.9), point(0.08, 5, 0.1), point(0.5, 6, 0.1)], 0.5, BETA, ()),
    ],
    ids=[
        "too far",
        "too far, target",
        "no gain",
        "at the end",
        "at the end, target",
        "inside",
        "at the limit",
        "a gap",
        "past it",
    ],
)
def test_what_to_try_next(points: list[Point], picked: float | None, knob: Knob, values: tuple[float, ...]) -> None:
    """Twice and five times past an end; between 0.01 and 0.08 at even ratios: 0.02 and 0.04."""
    why, got = further(points, picked, max_kl_per_token_nats=0.5, knob=knob)
    assert got == pytest.approx(values)
    assert bool(why) == bool(values)


def test_the_values_are_of_what_the_method_is_held_by() -> None:
    """P4: of β, or of the target of a controller that has one; the other settings stay."""
    pid = Settings.model_validate(
        {"online": {"recipe": "ppo", "kl": {"controller": "pid", "target_per_token_nats": 0.1}}}
    )
    assert knob_of(pid, online=True) is TARGET_PER_TOKEN
    assert knob_of(pid, online=False) is BETA
    assert knob_of(Settings(), online=True) is COEFFICIENT
    tried = TARGET_PER_TOKEN.set(pid, 0.3)
    assert tried.online.kl.target_per_token_nats == 0.3
    assert tried.online.advantage == "gae"
    assert BETA.set(pid, 0.7).update.beta == 0.7
    with pytest.raises(SettingError, match="schedule of its own"):
        knob_of(Settings.model_validate({"online": {"kl": {"controller": "cosine"}}}), online=True)
    with pytest.raises(SettingError, match="coefficient_bounds"):
        COEFFICIENT.set(pid, 1e9)


def test_what_goes_wrong_names_the_value_and_keeps_the_rest(tmp_path: Path) -> None:
    def run(value: float, folder: Path) -> Point:
        if value > 0.1:
            raise TrainingError("The loss is not finite.")
        return point(value, 1.0, 0.1)

    with pytest.raises(TrainingError, match="not finite") as raised:
        sweep([0.1, 0.5], run, tmp_path, reference=lambda: REFERENCE, inputs={})
    assert raised.value.__notes__ == ["This was at β = 0.5. Points that are finished are kept for the next sweep."]
    found = sweep([0.1], run, tmp_path, reference=lambda: REFERENCE, inputs={})
    told = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert told == {
        "over": "update.beta", "max_kl_per_token_nats": 0.5, "picked": 0.1, "why": found.why,
        "reference": asdict(REFERENCE), "points": [asdict(point(0.1, 1.0, 0.1))],
    }  # fmt: skip
    assert told["points"][0]["kl_per_response_nats"] == 2.0


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    def never() -> Point:
        raise RuntimeError("ran")

    with pytest.raises(CheckpointError, match="cannot be written"):
        sweep([0.1], lambda v, f: never(), tmp_path / "file", reference=never, inputs={})
    (tmp_path / "inputs.json").write_text("[1, 2", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read"):
        sweep([0.1], lambda v, f: never(), tmp_path, reference=never, inputs={})


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


@pytest.mark.parametrize("values", [[], [0.1, 0.1], [0.1, 0.1 + 1e-16], [0.0], [-0.1], [float("inf")], [float("nan")]])
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
    settings, sampling = (
        OnlineSettings(recipe="rloo", max_unscored_share=0.3),
        SampleSettings(max_new_tokens=5, batch_size=4),
    )

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
