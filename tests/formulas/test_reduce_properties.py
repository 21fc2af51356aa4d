"""What must hold of every reduction: padding, order and neighbours change nothing; nothing masked leaks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thumbwheel.formulas import reduce

calm = settings(derandomize=True, deadline=None, max_examples=60)
AGGREGATES = {
    "token": reduce.token_mean,
    "sequence": reduce.sequence_mean,
    "constant": lambda loss, mask: reduce.constant_length_mean(loss, mask, length=9),
}
lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def rows(lengths: list[int], *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random losses of the given lengths, right-padded with NaN to the longest."""
    width = max(1, *lengths)
    loss = torch.randn(len(lengths), width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
    return torch.where(mask, loss, math.nan), mask


def value_and_gradient(name: str, loss: Tensor, mask: Tensor) -> tuple[float, Tensor]:
    leaf = loss.clone().requires_grad_()
    result = AGGREGATES[name](leaf, mask)
    result.backward()
    assert leaf.grad is not None
    return result.item(), leaf.grad[mask]


@pytest.mark.parametrize("name", AGGREGATES)
@calm
@given(lengths, st.integers(0, 4))
def test_padding_on_either_side_changes_nothing(name: str, lengths: list[int], pad: int) -> None:
    """P9."""
    loss, mask = rows(lengths)
    poison, nothing = torch.full((len(lengths), pad), math.nan), torch.zeros(len(lengths), pad, dtype=torch.bool)
    value, gradient = value_and_gradient(name, loss, mask)
    for padded in (
        (torch.cat((loss, poison), 1), torch.cat((mask, nothing), 1)),
        (torch.cat((poison, loss), 1), torch.cat((nothing, mask), 1)),
    ):
        other_value, other_gradient = value_and_gradient(name, *padded)
        assert other_value == pytest.approx(value, abs=1e-12)
        assert torch.allclose(other_gradient, gradient, atol=1e-12)


@pytest.mark.parametrize("name", AGGREGATES)
@calm
@given(lengths)
def test_a_masked_answer_is_as_good_as_absent(name: str, lengths: list[int]) -> None:
    """P5: a truncated answer that is masked leaves the denominator too."""
    loss, mask = rows(lengths)
    kept = mask.any(dim=1)
    value, gradient = value_and_gradient(name, loss, mask)
    if kept.any():
        alone, alone_gradient = value_and_gradient(name, loss[kept], mask[kept])
        assert alone == pytest.approx(value, abs=1e-12)
        assert torch.allclose(alone_gradient, gradient)
    else:
        assert value == 0.0


@pytest.mark.parametrize("name", AGGREGATES)
def test_all_masked_is_zero_with_zero_gradient(name: str) -> None:
    """P5: every answer of the batch masked gives 0 and no NaN."""
    loss = torch.full((3, 4), math.nan, requires_grad=True)
    result = AGGREGATES[name](loss, torch.zeros(3, 4, dtype=torch.bool))
    result.backward()
    assert result.item() == 0.0
    assert loss.grad is not None
    assert loss.grad.abs().sum().item() == 0.0


@calm
@given(lengths)
def test_packed_sums_equal_padded_ones(lengths: list[int]) -> None:
    """P9: without padding, in any order of tokens."""
    loss, mask = rows(lengths)
    row = torch.arange(len(lengths))[:, None].expand_as(mask)[mask]
    packed, n = loss[mask], len(lengths)
    order = torch.randperm(packed.numel(), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(reduce.sum_by_row(packed, row, n), reduce.masked_sum(loss, mask, dim=1))
    assert torch.allclose(reduce.mean_by_row(packed[order], row[order], n), reduce.masked_mean(loss, mask, dim=1))


def test_long_half_precision_sums_are_kept_in_float32() -> None:
    """P9: 4096 · .1 in bfloat16 stands still at 32; here it is 4096 · .10009765625, bfloat16's own .1."""
    values = torch.full((4096,), 0.1, dtype=torch.bfloat16)
    mask, row = torch.ones(4096, dtype=torch.bool), torch.zeros(4096, dtype=torch.long)
    assert reduce.masked_sum(values, mask).item() == pytest.approx(410.0, rel=1e-4)
    assert reduce.sum_by_row(values, row, 1).item() == pytest.approx(410.0, rel=1e-4)
    assert reduce.masked_mean(values, mask).dtype is torch.float32


@calm
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.floats(-1e3, 1e3), st.floats(0.1, 50))
def test_standardise_forgets_shift_and_scale(values: list[float], shift: float, scale: float) -> None:
    """R7."""
    x = torch.tensor(values, dtype=torch.float64)
    if x.max() - x.min() < 1e-3:
        return
    mask = torch.ones_like(x, dtype=torch.bool)
    plain = reduce.standardise(x, mask, unbiased=False, eps=0.0)
    moved = reduce.standardise(x * scale + shift, mask, unbiased=False, eps=0.0)
    assert torch.allclose(plain, moved, atol=1e-6)
    assert plain.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert (plain**2).mean().item() == pytest.approx(1.0, abs=1e-9)


def test_standardise_by_group_leaves_out_what_does_not_count() -> None:
    """P5: rewards (1, None, 0, 0): the baseline is over three, and the unknown one's own advantage is 0."""
    x = torch.tensor([[1.0, math.nan, 0.0, 0.0], [5.0, 5.0, 5.0, math.inf]], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    result = reduce.standardise(x, mask, unbiased=True, eps=0.0, dim=1)
    third = 1 / math.sqrt(3)
    assert result[0].tolist() == pytest.approx([2 * third, 0.0, -third, -third])
    assert result[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("function", [reduce.standardise, reduce.scale_only])
def test_equal_values_have_a_finite_gradient(function: object) -> None:
    """R7: the square root of a variance of 0 has none, and must not be asked."""
    x = torch.full((6,), 0.3, requires_grad=True)
    function(x, torch.ones(6, dtype=torch.bool), unbiased=True).sum().backward()  # type: ignore[operator]
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_an_empty_batch_is_no_error(shape: tuple[int, ...]) -> None:
    """P5, R7: nothing in, nothing out; sums and means of nothing are 0."""
    x, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    assert reduce.standardise(x, mask, unbiased=True).shape == shape
    assert reduce.scale_only(x, mask, unbiased=True).shape == shape
    assert reduce.masked_mean(x, mask).item() == 0.0
    assert reduce.sum_by_row(x.flatten(), torch.zeros(0, dtype=torch.long), 2).tolist() == [0.0, 0.0]


def test_scale_only_of_equal_or_absent_values() -> None:
    """R7: equal values have no scale and stay; the sign is never changed."""
    equal = torch.tensor([2.0, 2.0, 9.0])
    mask = torch.tensor([True, True, False])
    assert reduce.scale_only(equal, mask, unbiased=True).tolist() == [2.0, 2.0, 0.0]
    assert reduce.scale_only(equal, torch.zeros(3, dtype=torch.bool), unbiased=True).tolist() == [0.0] * 3


@pytest.mark.parametrize("function", [reduce.standardise, reduce.scale_only])
def test_normalisation_has_the_gradient_of_its_equation(function: object) -> None:
    """R7: gradcheck in float64, with an entry that does not count."""
    x = torch.tensor([0.3, -1.2, 2.0, 0.7], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, True, False, True])
    assert torch.autograd.gradcheck(lambda v: function(v, mask, unbiased=False), (x,))  # type: ignore[operator]


@calm
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5).filter(any), min_size=1, max_size=4), st.integers(0, 3))
def test_last_real_token_under_padding(masks: list[list[bool]], pad: int) -> None:
    """R1: padding right changes no reading, padding left moves the position by its width and no value."""
    mask = torch.tensor(masks)
    values = torch.arange(mask.numel(), dtype=torch.float32).reshape(mask.shape)
    filler, nothing = torch.full((len(masks), pad), -1.0), torch.zeros(len(masks), pad, dtype=torch.bool)
    expected = [max(t for t, real in enumerate(row) if real) for row in masks]
    assert reduce.last_real(mask).tolist() == expected
    assert reduce.last_real(torch.cat((nothing, mask), 1)).tolist() == [pad + t for t in expected]
    plain = reduce.at_last_real(values, mask)
    right = reduce.at_last_real(torch.cat((values, filler), 1), torch.cat((mask, nothing), 1))
    left = reduce.at_last_real(torch.cat((filler, values), 1), torch.cat((nothing, mask), 1))
    assert plain.tolist() == right.tolist() == left.tolist()


def test_a_row_without_a_token_has_no_last_one() -> None:
    """R1: refused with the row's number."""
    with pytest.raises(ValueError, match=r"Got none in rows \[1\]"):
        reduce.last_real(torch.tensor([[True, False], [False, False]]))


def test_a_constant_length_under_one_is_refused() -> None:
    """P5."""
    with pytest.raises(ValueError, match="at least 1 token"):
        reduce.constant_length_mean(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), length=0)
