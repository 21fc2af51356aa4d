"""KL controllers at values worked out by hand."""

from __future__ import annotations

import math

import pytest

from thumbwheel.config import KLSettings
from thumbwheel.train.kl_control import open_controller


@pytest.mark.parametrize(("kl", "expected"), [(12.0, 0.151536), (6.6, 0.150768), (6.0, 0.15), (0.0, 0.148464)])
def test_ziegler(kl: float, expected: float) -> None:
    """P4: begins at .15, target 6 a response, horizon 10 000, 512 answers an update."""
    settings = KLSettings(controller="ziegler", coefficient=0.15, target_per_response_nats=6.0)
    after = open_controller(settings, updates=1).after(kl, responses=512)
    assert after.coefficient == pytest.approx(expected, abs=1e-9)
    assert after.unit == "response"


@pytest.mark.parametrize(
    ("target", "kl", "factor"),
    [({"target_per_token_nats": 0.01}, 0.02, 1.0010005), ({"target_per_response_nats": 4.0}, 8.0, 1.4918247)],
)
def test_exponential(target: dict[str, float], kl: float, factor: float) -> None:
    """P4: .1 a nat does next to nothing to a KL per token."""
    settings = KLSettings(controller="exponential", coefficient=0.1, exponential_gain_per_nat=0.1, **target)
    after = open_controller(settings, updates=1).after(kl, responses=8)
    assert after.coefficient == pytest.approx(0.1 * factor, rel=1e-6)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.021, 0.15), (0.02, 0.1), (0.01, 0.1), (0.005, 0.1), (0.0049, 0.1 / 1.5), (-0.001, 0.1 / 1.5)],
)
def test_band(kl: float, expected: float) -> None:
    """P4: target .01 a token: over .02 β rises, under .005 it falls, between them it stays."""
    settings = KLSettings(controller="band", coefficient=0.1, target_per_token_nats=0.01)
    assert open_controller(settings, updates=1).after(kl, responses=8).coefficient == pytest.approx(expected)


def test_pid() -> None:
    """P4: target .2, P .3, I .1, D .2; KL .3 then .2 then 9 (an error of 42, held to 1)."""
    settings = KLSettings(
        controller="pid", coefficient=0.1, target_per_response_nats=0.2, pid_p=0.3, pid_i=0.1, pid_d=0.2
    )
    first = open_controller(settings, updates=3).after(0.3, responses=8)
    assert first.coefficient == pytest.approx(0.1 * math.exp(0.3 * 0.5 + 0.1 * 0.5 + 0.2 * 0.5))
    second = first.after(0.2, responses=8)
    assert second.coefficient == pytest.approx(0.1 * math.exp(0.1 * 0.5 - 0.2 * 0.5))
    third = second.after(9.0, responses=8)
    assert third.coefficient == pytest.approx(0.1 * math.exp(0.3 + 0.1 * 1.5 + 0.2))


def test_cosine_moves_the_clip_range_along() -> None:
    """P4: .2 in warm-up, then .15 → .05, and the clip from 1 to ½ of itself (.2 → .1); half-way .1 and ¾."""
    controller = open_controller(KLSettings(controller="cosine", cosine_warmup_share=0.1), updates=21)
    seen = []
    for _ in range(23):
        seen.append((controller.coefficient, controller.clip_scale))
        controller = controller.after(5.0, responses=8)
    assert seen[:2] == [(0.2, 1.0), (0.2, 1.0)]
    assert seen[2] == pytest.approx((0.15, 1.0))
    assert seen[11] == pytest.approx((0.1, 0.75))
    assert seen[20] == seen[22] == pytest.approx((0.05, 0.5))


def test_fixed() -> None:
    """P4: .1, whatever KL says."""
    controller = open_controller(KLSettings(), updates=5)
    assert controller.coefficient == controller.after(50.0, responses=8).coefficient == 0.1
    assert controller.clip_scale == 1.0
