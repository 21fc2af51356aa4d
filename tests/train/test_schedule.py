"""Learning rates, stated as numbers worked out by hand."""

from __future__ import annotations

import pytest

from thumbwheel.config import TrainSettings
from thumbwheel.train.schedule import learning_rate


def rates(steps: int, **settings: object) -> list[float]:
    made = TrainSettings.model_validate({"lr": 1.0, **settings})
    return [learning_rate(step, steps, made) for step in range(steps)]


def test_constant_with_warm_up() -> None:
    assert rates(10, warmup_share=0.2)[:4] == [0.5, 1.0, 1.0, 1.0]


def test_linear_falls_evenly_and_never_reaches_zero() -> None:
    assert rates(4, schedule="linear") == [1.0, 0.75, 0.5, 0.25]


def test_linear_after_warm_up_starts_at_the_peak() -> None:
    assert rates(6, schedule="linear", warmup_share=1 / 3) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine() -> None:
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_all_warm_up() -> None:
    assert rates(4, schedule="cosine", warmup_share=1.0) == [0.25, 0.5, 0.75, 1.0]


def test_one_step() -> None:
    assert rates(1, schedule="linear", warmup_share=0.1) == [1.0]
