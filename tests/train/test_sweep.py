"""P7: which strength of the pull is picked, why, and that a killed sweep goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.errors import CheckpointError, SettingError
from thumbwheel.train.sweep import Found, Point, pick, sweep

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
    with pytest.raises(CheckpointError, match="other settings"):
        sweep([0.5, 0.1], run, tmp_path, reference=lambda: REFERENCE, inputs={"seed": 1})
    (tmp_path / "0.1" / "point.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="made again"):
        go()


@pytest.mark.parametrize("values", [[], [0.1, 0.1], [0.0], [float("inf")]])
def test_values_that_cannot_be_tried_are_refused(values: list[float], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="values to try"):
        sweep(values, lambda v, f: point(v, 1, 0.1), tmp_path, reference=lambda: REFERENCE, inputs={})
