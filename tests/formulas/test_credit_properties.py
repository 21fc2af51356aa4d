"""What must hold of every return and every GAE over tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas.credit import gae, returns

calm = settings(derandomize=True, deadline=None, max_examples=80)
number = st.floats(-3, 3)
share = st.floats(0, 1)
token = st.tuples(number, number, st.booleans())  # reward, value, is it an action
answer = st.lists(token, min_size=1, max_size=10)


def tensors(tokens: list[tuple[float, float, bool]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r, v, m = zip(*tokens, strict=True)
    return (
        torch.tensor([r], dtype=torch.float64),
        torch.tensor([v], dtype=torch.float64),
        torch.tensor([m], dtype=torch.bool),
    )


@calm
@given(answer, share, share, number)
def test_against_the_sum_written_out(
    tokens: list[tuple[float, float, bool]], gamma: float, lam: float, last: float
) -> None:
    """C2: Aₖ = Σⱼ (γλ)^(j-k) δⱼ over actions, rewards joined to the action before them."""
    earned: list[list[float]] = []  # [reward, value] of each action
    for r, v, acts in tokens:
        if acts:
            earned.append([r, v])
        elif earned:
            earned[-1][0] += r
    values = [v for _, v in earned] + [last]
    deltas = [r + gamma * values[k + 1] - values[k] for k, (r, _) in enumerate(earned)]
    wanted = [sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]
    r, v, m = tensors(tokens)
    result = gae(r, v, m, gamma=gamma, lam=lam, last_value=torch.tensor([last], dtype=torch.float64))
    assert result[m].tolist() == pytest.approx(wanted, abs=1e-9)
    assert not result[~m].any()


@calm
@given(answer, share, share, st.lists(st.tuples(st.integers(0, 10), number), max_size=5))
def test_masked_tokens_inserted_anywhere_change_nothing(
    tokens: list[tuple[float, float, bool]], gamma: float, lam: float, inserted: list[tuple[int, float]]
) -> None:
    """C2: a tool's output of any length, whatever the value head says on it."""
    longer = list(tokens)
    for place, value in inserted:
        longer.insert(min(place, len(longer)), (0.0, value, False))
    last = torch.tensor([0.7], dtype=torch.float64)
    (r, v, m), (r2, v2, m2) = tensors(tokens), tensors(longer)
    short, long = (
        gae(r, v, m, gamma=gamma, lam=lam, last_value=last),
        gae(r2, v2, m2, gamma=gamma, lam=lam, last_value=last),
    )
    assert long[m2].tolist() == pytest.approx(short[m].tolist(), abs=1e-12)
    assert returns(r2, m2, gamma=gamma)[m2].tolist() == pytest.approx(returns(r, m, gamma=gamma)[m].tolist(), abs=1e-12)


@calm
@given(answer, share, number)
def test_with_lambda_one_it_is_the_return_less_the_value(
    tokens: list[tuple[float, float, bool]], gamma: float, last: float
) -> None:
    """C2: A = G - V at λ = 1, also for an answer cut short."""
    r, v, m = tensors(tokens)
    after = torch.tensor([last], dtype=torch.float64)
    advantage = gae(r, v, m, gamma=gamma, lam=1.0, last_value=after)
    expected = returns(r, m, gamma=gamma, last_value=after) - v
    assert advantage[m].tolist() == pytest.approx(expected[m].tolist(), abs=1e-9)


def test_answers_beside_each_other_do_not_meet() -> None:
    """C2: two answers of unequal length, padded to one, are each as alone; padding may hold anything."""
    r = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.0, -1.0]])
    v = torch.tensor([[0.1, 0.2, math.nan, math.inf], [0.3, 0.1, 0.2, 0.4]])
    m = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    last = torch.tensor([0.0, 0.5])
    both = gae(r, v, m, gamma=0.9, lam=0.8, last_value=last)
    short = gae(r[:1, :2], v[:1, :2], m[:1, :2], gamma=0.9, lam=0.8, last_value=last[:1])
    long = gae(r[1:], v[1:], m[1:], gamma=0.9, lam=0.8, last_value=last[1:])
    assert torch.equal(both[0], torch.cat((short[0], torch.zeros(2))))
    assert torch.equal(both[1], long[0])


def test_an_answer_without_an_action_earns_nothing() -> None:
    """C2: every token masked, a reward before the first action, no tokens at all, no answers at all."""
    last = torch.zeros(1)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert not gae(torch.ones(1, 3), torch.ones(1, 3), nothing, gamma=1.0, lam=1.0, last_value=last).any()
    early = gae(
        torch.tensor([[5.0, 0.0, 1.0]]),
        torch.zeros(1, 3),
        torch.tensor([[False, True, True]]),
        gamma=1.0,
        lam=1.0,
        last_value=last,
    )
    assert early.tolist() == [[0.0, 1.0, 1.0]]
    for shape in ((1, 0), (0, 4), (0, 0)):
        empty = torch.zeros(shape)
        result = gae(empty, empty, empty.bool(), gamma=1.0, lam=1.0, last_value=torch.zeros(shape[0]))
        assert result.shape == shape
        assert returns(empty, empty.bool(), gamma=1.0).shape == shape


def test_rewards_keep_float32_and_no_gradient_leaves() -> None:
    """C2: bfloat16 makes .901 equal to .902; the sum is kept wider. Advantages are data, whatever came in."""
    r = torch.zeros(1, 300, dtype=torch.bfloat16)
    r[0, :] = 0.01
    m = torch.ones(1, 300, dtype=torch.bool)
    v = torch.zeros(1, 300, requires_grad=True)
    result = gae(r, v, m, gamma=1.0, lam=1.0, last_value=torch.zeros(1, dtype=torch.bfloat16))
    assert result.dtype == torch.float32
    assert not result.requires_grad
    assert result[0, 0].item() == pytest.approx(300 * float(r[0, 0]), rel=1e-5)
    first = torch.arange(300)[None] == 0  # all of it is earned by the first token
    assert returns(r, first, gamma=1.0)[0, 0].item() == pytest.approx(300 * float(r[0, 0]), rel=1e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.1, 0.9), (-0.1, 0.9), (0.9, 1.01), (0.9, math.nan)])
def test_a_discount_out_of_range_is_refused(gamma: float, lam: float) -> None:
    """C2."""
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        gae(x, x, x.bool(), gamma=gamma, lam=lam, last_value=torch.zeros(1))
