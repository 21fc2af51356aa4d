"""Aggregation and normalisation at values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from thumbwheel.formulas import reduce

# Two answers padded to 8 tokens: two tokens of loss 1, six tokens of loss 2. What is masked is poison.
LOSS = torch.full((2, 8), math.nan, dtype=torch.float64)
LOSS[0, :2] = 1.0
LOSS[1, :6] = 2.0
MASK = ~LOSS.isnan()

ONE_TO_NINE = torch.arange(1.0, 10.0, dtype=torch.float64).reshape(3, 3)
ALL = torch.ones(3, 3, dtype=torch.bool)


def test_three_ways_to_aggregate_tokens() -> None:
    """P2, P5: token mean 14/8, sequence mean (1 + 2)/2, constant length (2/8 + 12/8)/2."""
    assert reduce.token_mean(LOSS, MASK).item() == 1.75
    assert reduce.sequence_mean(LOSS, MASK).item() == 1.5
    assert reduce.constant_length_mean(LOSS, MASK, length=8).item() == 0.875


def test_a_constant_length_of_one_token() -> None:
    """P5: L = 1 is allowed and gives the mean of the sums, (2 + 12)/2."""
    assert reduce.constant_length_mean(LOSS, MASK, length=1).item() == 7.0


def test_gradients_of_the_three_ways() -> None:
    """P2: a token's weight is 1/8; 1/4 or 1/12; 1/16."""
    for aggregate, short, long in (
        (reduce.token_mean, 1 / 8, 1 / 8),
        (reduce.sequence_mean, 1 / 4, 1 / 12),
        (lambda loss, mask: reduce.constant_length_mean(loss, mask, length=8), 1 / 16, 1 / 16),
    ):
        loss = LOSS.clone().requires_grad_()
        aggregate(loss, MASK).backward()
        assert loss.grad is not None
        assert loss.grad[0].tolist() == pytest.approx([short] * 2 + [0.0] * 6)
        assert loss.grad[1].tolist() == pytest.approx([long] * 6 + [0.0] * 2)


@pytest.mark.parametrize(
    ("unbiased", "expected"),
    [
        (False, [-1.549193, -1.161895, -0.774597, -0.387298, 0.0, 0.387298, 0.774597, 1.161895, 1.549193]),
        (True, [-1.460593, -1.095445, -0.730297, -0.365148, 0.0, 0.365148, 0.730297, 1.095445, 1.460593]),
    ],
)
def test_standardise_one_to_nine(*, unbiased: bool, expected: list[float]) -> None:
    """R7."""
    assert reduce.standardise(ONE_TO_NINE, ALL, unbiased=unbiased).flatten().tolist() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(("unbiased", "std"), [(False, math.sqrt(60 / 9)), (True, math.sqrt(60 / 8))])
def test_scale_only_keeps_the_mean(*, unbiased: bool, std: float) -> None:
    """R7: Σ(x - 5)² = 60 over nine values; 9/2.581989 = 3.485685."""
    scaled = reduce.scale_only(ONE_TO_NINE, ALL, unbiased=unbiased)
    assert scaled.flatten().tolist() == pytest.approx([i / std for i in range(1, 10)], abs=1e-6)
    if not unbiased:
        assert scaled[2, 2].item() == pytest.approx(3.485685, abs=1e-6)


def test_close_rewards_keep_their_difference() -> None:
    """P5: (1.00000, 1.00001) with eps 1e-6 -> ±.619497: 5e-6 / (7.07107e-6 + 1e-6)."""
    rewards = torch.tensor([1.00000, 1.00001], dtype=torch.float64)
    result = reduce.standardise(rewards, torch.ones(2, dtype=torch.bool), unbiased=True, eps=1e-6)
    assert result.tolist() == pytest.approx([-0.619497, 0.619497], abs=1e-6)


@pytest.mark.parametrize(("value", "n"), [(0.3, 6), (1.9, 32), (1e-30, 5), (-7.7, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_rewards_give_exactly_zero(value: float, n: int, dtype: torch.dtype) -> None:
    """P5: the rounding of a mean of equal numbers is no advantage."""
    result = reduce.standardise(torch.full((n,), value, dtype=dtype), torch.ones(n, dtype=torch.bool), unbiased=True)
    assert result.tolist() == [0.0] * n


def test_one_good_answer_among_four() -> None:
    """P5: rewards (1, 0, 0, 0), unbiased, eps 1e-6 -> 1.499997, -.499999."""
    rewards = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    result = reduce.standardise(rewards, torch.ones(4, dtype=torch.bool), unbiased=True, eps=1e-6)
    assert result.tolist() == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)


def test_sums_and_means_by_row() -> None:
    """P9: packed tokens (1, 2, 4) of rows (0, 2, 0)."""
    values, row = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 0])
    assert reduce.sum_by_row(values, row, 3).tolist() == [5.0, 0.0, 2.0]
    assert reduce.mean_by_row(values, row, 3).tolist() == [2.5, 0.0, 2.0]
    assert reduce.count_by_row(row, 4).tolist() == [2, 0, 1, 0]


def test_weighted_mean() -> None:
    """R1: (3·1 + 1·5)/4 = 2, gradient w/Σw; no weight at all gives 0."""
    values = torch.tensor([1.0, 5.0, math.inf], requires_grad=True)
    mean = reduce.weighted_mean(values, torch.tensor([3.0, 1.0, 0.0]))
    mean.backward()
    assert mean.item() == 2.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.75, 0.25, 0.0]
    assert reduce.weighted_mean(values.detach(), torch.zeros(3)).item() == 0.0


def test_last_real_token() -> None:
    """R1: reading is at the last token that counts, on either side of the padding, over holes too."""
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
    assert reduce.last_real(mask).tolist() == [2, 3, 0]
    values = torch.arange(12.0).reshape(3, 4)
    assert reduce.at_last_real(values, mask).tolist() == [2.0, 7.0, 8.0]
    assert reduce.at_last_real(values[..., None].expand(3, 4, 2), mask).tolist() == [[2.0, 2.0], [7.0, 7.0], [8.0, 8.0]]
