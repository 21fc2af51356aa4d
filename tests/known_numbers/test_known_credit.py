"""Returns and GAE over tokens, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thumbwheel.formulas.credit import gae, returns

ZERO = torch.zeros(1, dtype=torch.float64)


def one(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def acts(*values: int) -> Tensor:
    return torch.tensor([values], dtype=torch.bool)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [(0.9, 0.8, [0.50624, 0.592, 0.0, 0.0, 0.6]), (1.0, 0.95, [0.8315, 0.77, 0.0, 0.0, 0.6])],
)
@pytest.mark.parametrize("poison", [9.9, math.nan, math.inf])
def test_tokens_that_are_no_actions(gamma: float, lam: float, expected: list[float], poison: float) -> None:
    """C2: what the value head says on a tool's output never enters."""
    values = one(0.1, 0.2, poison, poison, 0.4)
    result = gae(one(0, 0, 0, 0, 1), values, acts(1, 1, 0, 0, 1), gamma=gamma, lam=lam, last_value=ZERO)
    assert result[0].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("lam", "last", "expected"),
    [
        (0.8, 0.0, [0.49328, 0.574, 0.7]),
        (0.8, 0.5, [0.72656, 0.898, 1.15]),
        (1.0, 0.0, [0.71, 0.7, 0.7]),
        (0.0, 0.0, [0.08, 0.07, 0.7]),
    ],
)
def test_terminated_and_truncated_differ(lam: float, last: float, expected: list[float]) -> None:
    """C2: r = (0, 0, 1), V = (.1, .2, .3), γ = .9; cut short, the value of what would follow takes part."""
    result = gae(
        one(0, 0, 1), one(0.1, 0.2, 0.3), acts(1, 1, 1), gamma=0.9, lam=lam, last_value=torch.tensor([last]).double()
    )
    assert result[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_a_reward_on_a_masked_token_belongs_to_the_action_before() -> None:
    """C2: r = (0, 0, 0, 1), mask (1, 1, 1, 0), V = 0, γ = λ = 1 -> (1, 1, 1, 0); discounted it is not a step further away."""
    r, m = one(0, 0, 0, 1), acts(1, 1, 1, 0)
    assert gae(r, one(0, 0, 0, 0), m, gamma=1.0, lam=1.0, last_value=ZERO)[0].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert returns(r, m, gamma=0.5)[0].tolist() == [0.25, 0.5, 1.0, 0.0]


def test_values_on_masked_tokens_never_enter() -> None:
    """C2: mask (1, 0, 0, 0, 1), V = (0, 9, 9, 9, 0)."""
    result = gae(one(0, 0, 0, 0, 1), one(0, 9, 9, 9, 0), acts(1, 0, 0, 0, 1), gamma=1.0, lam=0.5, last_value=ZERO)
    assert result[0].tolist() == [0.5, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("gamma", "expected"), [(1.0, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]), (0.5, [0.125, 0.25, 0.0, 0.0, 0.5, 1.0])]
)
def test_returns_over_a_tools_output(gamma: float, expected: list[float]) -> None:
    """C1, C2: mask (1, 1, 0, 0, 1, 1), reward 1 at the end."""
    assert returns(one(0, 0, 0, 0, 0, 1), acts(1, 1, 0, 0, 1, 1), gamma=gamma)[0].tolist() == expected


def test_a_return_is_discounted_once() -> None:
    """C1: γ = .9, three actions, reward 1 at the end -> (.81, .9, 1); of a truncated one with V = 2 after it, + γ^k 2."""
    r, m = one(0, 0, 1), acts(1, 1, 1)
    assert returns(r, m, gamma=0.9)[0].tolist() == pytest.approx([0.81, 0.9, 1.0])
    cut = returns(r, m, gamma=0.9, last_value=torch.tensor([2.0]).double())
    assert cut[0].tolist() == pytest.approx([0.81 + 1.458, 0.9 + 1.62, 1.0 + 1.8])


def test_at_token_level_lambda_forgets() -> None:
    """C2: λ = .95 over a thousand tokens: the first keeps .95^999 = 6e-23 of the reward."""
    r, m = torch.zeros(1, 1000, dtype=torch.float64), torch.ones(1, 1000, dtype=torch.bool)
    r[0, -1] = 1.0
    first = gae(r, torch.zeros_like(r), m, gamma=1.0, lam=0.95, last_value=ZERO)[0, 0].item()
    assert first == pytest.approx(5.57e-23, rel=0.01)
