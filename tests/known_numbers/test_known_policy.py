"""Policy losses at values worked out by hand: PPO's clip, the dual clip, the value clip, GSPO's ratio, token weights."""

from __future__ import annotations

import math

import pytest
import torch

from thumbwheel.formulas.policy import (
    clipped,
    clipped_surrogate,
    policy_gradient,
    sequence_log_ratio,
    token_reductions,
    truncated_weight,
    value_clip,
)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss", "gradient", "cut"),
    [
        # d loss / d Δ = -ρ A where nothing is cut, 0 where it is
        (1.5, 1.0, None, -1.2, 0.0, True),
        (1.5, -1.0, None, 1.5, 1.5, False),
        (0.5, 1.0, None, -0.5, -0.5, False),
        (0.5, -1.0, None, 0.8, 0.0, True),
        (5.0, -1.0, None, 5.0, 5.0, False),
        (5.0, -1.0, 3.0, 3.0, 0.0, False),
        (5.0, 1.0, 3.0, -1.2, 0.0, True),
        (1.0, 2.0, None, -2.0, -2.0, False),
        (1.0, -2.0, 3.0, 2.0, 2.0, False),
        (1.1, 0.0, None, 0.0, 0.0, False),
    ],
)
def test_clip(ratio: float, advantage: float, dual: float | None, loss: float, gradient: float, *, cut: bool) -> None:
    """P3: ε = .2; the dual clip bounds only what a negative advantage can cost."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([advantage], dtype=torch.float64)
    result = clipped_surrogate(log_ratio, a, clip_low=0.2, clip_high=0.2, dual_clip=dual)
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(gradient)
    assert clipped(log_ratio, a, clip_low=0.2, clip_high=0.2).tolist() == [cut]


def test_the_two_ends_of_the_clip_stand_apart() -> None:
    """P5, DAPO: with ε = .2 and .28 a ratio of 1.25 still learns and 1.3 does not; .79 does not learn downwards."""
    log_ratio = torch.tensor([1.25, 1.3, 0.79], dtype=torch.float64).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0])
    loss = clipped_surrogate(log_ratio, advantage, clip_low=0.2, clip_high=0.28)
    assert clipped(log_ratio, advantage, clip_low=0.2, clip_high=0.28).tolist() == [False, True, True]
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([-1.25, -1.28, 0.8])
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([-1.25, 0.0, 0.0])


def test_reinforce() -> None:
    """P5: log π = -2, A = 3 -> 6 with gradient -3."""
    logp = torch.tensor([-2.0], requires_grad=True)
    loss = policy_gradient(logp, torch.tensor([3.0]))
    loss.sum().backward()
    assert (loss.item(), logp.grad) == (6.0, torch.tensor([-3.0]))


def test_gspo_ratio_is_of_the_mean() -> None:
    """P5: three tokens of +.1 -> 1.105171 and not 1.349859; each token pulls with its answer's ratio."""
    old = torch.tensor([-1.0, -2.0, -3.0, -1.0], dtype=torch.float64)
    logp = (old + torch.tensor([0.1, 0.1, 0.1, -0.3], dtype=torch.float64)).requires_grad_()
    ratio = sequence_log_ratio(logp, old, torch.tensor([0, 0, 0, 1]), 2).exp()
    assert ratio.tolist() == pytest.approx([1.105171] * 3 + [0.740818], abs=1e-6)
    ratio.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([1.105171] * 3 + [0.740818], abs=1e-6)


def test_gspo_mixes_the_tokens_of_an_answer() -> None:
    """P5: log-ratios .3 and -.1 have the mean .1."""
    logp, old = torch.tensor([-0.7, -1.1]), torch.tensor([-1.0, -1.0])
    assert sequence_log_ratio(logp, old, torch.tensor([0, 0]), 1).tolist() == pytest.approx([0.1, 0.1], abs=1e-7)


def test_truncated_weight() -> None:
    """P5: π_old/μ of 1.5, 3, 1 and .25 under a cap of 2 -> 1.5, 2, 1, .25, and no gradient."""
    old = torch.tensor([1.5, 3.0, 1.0, 0.25], dtype=torch.float64).log().requires_grad_()
    weight = truncated_weight(old, torch.zeros(4, dtype=torch.float64), cap=2.0)
    assert weight.tolist() == pytest.approx([1.5, 2.0, 1.0, 0.25])
    assert not weight.requires_grad


@pytest.mark.parametrize(
    ("value", "clip", "loss", "gradient"),
    [
        (1.0, 0.2, 1.125, 0.0),  # ½ max((1 - 2)², (.5 - 2)²): the clipped one is larger, and stands still
        (1.0, None, 0.5, -1.0),
        (0.4, 0.2, 1.28, -1.6),  # within .3 ± .2: ½ (.4 - 2)²
        (3.0, 0.2, 1.125, 0.0),  # ½ max(1, 2.25)
        (4.0, 0.2, 2.0, 2.0),  # ½ max(4, 2.25): the way back is open
    ],
)
def test_value_clip(value: float, clip: float | None, loss: float, gradient: float) -> None:
    """P3: v_old = .3, R = 2."""
    v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    result = value_clip(v, torch.tensor([0.3]).double(), torch.tensor([2.0]).double(), clip=clip)
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert v.grad is not None
    assert v.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("name", "loss", "short", "long"),
    [
        ("token_mean", 1.75, 1 / 8, 1 / 8),
        ("sequence_mean", 1.5, 1 / 4, 1 / 12),
        ("constant_length", 0.875, 1 / 16, 1 / 16),
    ],
)
def test_token_weights(name: str, loss: float, short: float, long: float) -> None:
    """P5: 2 tokens of loss 1 and 6 of loss 2, L = 8. A third answer that does not count changes nothing."""
    row = torch.tensor([0] * 2 + [1] * 6 + [2] * 3)
    counted = torch.tensor([True, True, False])
    weight = token_reductions.get(name)(row, counted, tokens=8, rows=2, length=8)
    assert weight.tolist() == pytest.approx([short] * 2 + [long] * 6 + [0.0] * 3)
    token_loss = torch.tensor([1.0] * 2 + [2.0] * 6 + [9.0] * 3)
    assert (weight * token_loss).sum().item() == pytest.approx(loss)
