"""What must hold of every policy loss: the exact gradient by enumeration, micro-batches that add up, nothing infinite."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thumbwheel.formulas import reduce
from thumbwheel.formulas.advantages import advantage_rules
from thumbwheel.formulas.policy import (
    clipped,
    clipped_surrogate,
    policy_gradient,
    sequence_log_ratio,
    token_reductions,
    truncated_weight,
    value_clip,
)

calm = settings(derandomize=True, deadline=None, max_examples=80)
LOGITS = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
REWARD = torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64)


def exact_gradient(reward: Tensor, logits: Tensor = LOGITS) -> Tensor:
    """∇ Σ π(a) r(a) = π(a) (r(a) - Σ π r), by hand."""
    pi = logits.softmax(-1)
    return pi * (reward - (pi * reward).sum())


def enumerated(rule: str, size: int, reward: Tensor) -> Tensor:
    """-∇ E[1/G Σᵢ loss(aᵢ)] over every group of `size` arms, each as often as the policy draws it."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for arms in itertools.product(range(3), repeat=size):
        drawn = torch.tensor(arms)
        advantage = torch.from_numpy(advantage_rules.get(rule)(reward[drawn].numpy(), [0] * size))
        log_ratio = logp[drawn] - logp[drawn].detach()
        losses = [policy_gradient(logp[drawn], advantage)]
        losses.append(clipped_surrogate(log_ratio, advantage, clip_low=0.2, clip_high=0.2, dual_clip=3.0))
        chance = logp[drawn].sum().detach().exp()
        total = total + chance * torch.stack(losses).mean(1).mean()
    return -torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_leave_one_out_is_the_exact_gradient(size: int) -> None:
    """P5: RLOO is unbiased, with REINFORCE's loss and with PPO's at a ratio of 1 alike."""
    assert enumerated("rloo", size, REWARD).tolist() == pytest.approx(exact_gradient(REWARD).tolist(), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_centred_by_its_own_mean_is_a_little_short(size: int) -> None:
    """P5: Dr. GRPO gives (G - 1)/G of the exact gradient, in its very direction."""
    expected = exact_gradient(REWARD) * (size - 1) / size
    assert enumerated("dr_grpo", size, REWARD).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_grpo_on_right_and_wrong_has_the_exact_direction() -> None:
    """P5: rewards 1 and 0, two answers: (±½)/(√½ + 1e-6) wherever they differ, .707106 times the exact gradient."""
    reward = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    scale = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert scale == pytest.approx(0.707106, abs=1e-6)
    expected = exact_gradient(reward) * scale
    assert enumerated("grpo", 2, reward).tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    four, exact = enumerated("grpo", 4, reward), exact_gradient(reward)
    assert torch.cosine_similarity(four, exact, dim=0).item() == pytest.approx(1.0)
    assert four.norm() > exact.norm()


@pytest.mark.parametrize("baseline", [0.0, 0.7, -3.0])
def test_no_baseline_moves_the_gradient(baseline: float) -> None:
    """P3: one answer a prompt; what is taken off every reward takes off nothing."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    loss = (logp.detach().exp() * policy_gradient(logp, REWARD - baseline)).sum()
    assert (-torch.autograd.grad(loss, logits)[0]).tolist() == pytest.approx(exact_gradient(REWARD).tolist())


def test_off_policy_the_ratio_corrects() -> None:
    """P3: drawn from an older policy, within the clip: the gradient is that of the new policy's expected reward."""
    old = LOGITS + torch.tensor([0.05, -0.05, 0.02], dtype=torch.float64)
    old_logp = old.log_softmax(-1)
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    loss = (old_logp.exp() * clipped_surrogate(logp - old_logp, REWARD, clip_low=0.2, clip_high=0.2)).sum()
    assert not clipped(logp - old_logp, REWARD, clip_low=0.2, clip_high=0.2).any()
    assert (-torch.autograd.grad(loss, logits)[0]).tolist() == pytest.approx(exact_gradient(REWARD).tolist())


def test_the_engines_own_distribution_is_corrected_up_to_the_cap() -> None:
    """P5: drawn from μ and weighed: exact while no ratio passes the cap; smaller, never larger, beyond."""
    behaviour = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64).log()
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    weight = truncated_weight(logp, behaviour, cap=10.0)
    loss = (behaviour.exp() * weight * policy_gradient(logp, REWARD)).sum()
    assert (-torch.autograd.grad(loss, logits)[0]).tolist() == pytest.approx(exact_gradient(REWARD).tolist())
    assert truncated_weight(logp, behaviour, cap=2.0).max().item() == 2.0


def test_whole_answers_of_unequal_length_by_enumeration() -> None:
    """P5: answers of one or two tokens (token 0 ends an answer); RLOO with a constant length is exact, token by token."""
    table = torch.tensor([[0.3, -0.2, 0.1], [-0.4, 0.2, 0.5]], dtype=torch.float64, requires_grad=True)
    answers = [(0,), *((first, second) for first in (1, 2) for second in range(3))]
    reward = torch.tensor([0.3, 1.0, -0.2, 0.4, 0.0, 0.9, -1.0], dtype=torch.float64)
    logp = table.log_softmax(-1)
    by_answer = [torch.stack([logp[t, token] for t, token in enumerate(answer)]) for answer in answers]
    chance = torch.stack([tokens.sum() for tokens in by_answer]).exp()
    exact = torch.autograd.grad((chance * reward).sum(), table, retain_graph=True)[0]
    loss = torch.zeros((), dtype=torch.float64)
    for pair in itertools.product(range(len(answers)), repeat=2):
        tokens = torch.cat([by_answer[i] for i in pair])
        row = torch.tensor([place for place, i in enumerate(pair) for _ in answers[i]])
        advantage = torch.from_numpy(advantage_rules.get("rloo")(reward[list(pair)].numpy(), [0, 0]))
        weight = token_reductions.get("constant_length")(
            row, torch.ones(2, dtype=torch.bool), tokens=len(row), rows=2, length=1
        )
        loss = loss + chance[list(pair)].prod().detach() * (weight * policy_gradient(tokens, advantage[row])).sum()
    assert (-torch.autograd.grad(loss, table)[0]).flatten().tolist() == pytest.approx(exact.flatten().tolist())


def test_the_sequence_ratio_has_the_gradient_of_its_equation() -> None:
    """P5: GSPO eq. 5 by automatic differentiation of exp(mean log-ratio), against the form token by token."""
    torch.manual_seed(0)
    row, lengths = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([3, 2, 1])
    old = -torch.rand(6, dtype=torch.float64)
    logp = (old + 0.1 * torch.randn(6, dtype=torch.float64)).requires_grad_()
    advantage = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    mean = torch.zeros(3, dtype=torch.float64).index_add(0, row, logp - old) / lengths
    wanted = torch.autograd.grad(-(mean.exp() * advantage).mean(), logp)[0]
    weight = token_reductions.get("sequence_mean")(row, torch.ones(3, dtype=torch.bool), tokens=6, rows=3, length=9)
    log_ratio = sequence_log_ratio(logp, old, row, 3)
    loss = (weight * clipped_surrogate(log_ratio, advantage[row], clip_low=1.0, clip_high=9.0)).sum()
    assert torch.autograd.grad(loss, logp)[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-7)


@calm
@given(
    st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from(sorted(token_reductions)),
)
def test_micro_batches_add_up_to_the_step(answers: list[tuple[int, bool]], cut: int, name: str) -> None:
    """P5, P9: whole answers cut anywhere give the step's loss and gradient, which is that of the padded form."""
    lengths = [n for n, _ in answers]
    counted = torch.tensor([c for _, c in answers])
    row = torch.repeat_interleave(torch.arange(len(answers)), torch.tensor(lengths))
    token_loss = torch.linspace(-1, 2, len(row), dtype=torch.float64)
    tokens, rows = int(counted[row].sum()), int(counted.sum())
    rule = token_reductions.get(name)
    whole = rule(row, counted, tokens=tokens, rows=rows, length=9)
    parts = []
    for first in range(0, len(answers), cut):
        here = (row >= first) & (row < first + cut)
        parts.append(rule(row[here] - first, counted[first : first + cut], tokens=tokens, rows=rows, length=9))
    assert torch.cat(parts).tolist() == pytest.approx(whole.tolist(), rel=1e-6)
    padded = torch.zeros(len(answers), 7, dtype=torch.float64)
    mask = torch.zeros(len(answers), 7, dtype=torch.bool)
    for i, n in enumerate(lengths):
        padded[i, :n] = token_loss[row == i]
        mask[i, :n] = counted[i]
    by_padding = {
        "token_mean": lambda: reduce.token_mean(padded, mask),
        "sequence_mean": lambda: reduce.sequence_mean(padded, mask),
        "constant_length": lambda: reduce.constant_length_mean(padded, mask, length=9),
    }[name]()
    assert (whole * token_loss).sum().item() == pytest.approx(by_padding.item(), abs=1e-6)


def test_a_cut_answer_that_does_not_count_is_in_no_denominator() -> None:
    """P5: ten tokens, and a truncated answer of a hundred that is masked: the loss is that of the first alone."""
    row = torch.tensor([0] * 10 + [1] * 100)
    for name in token_reductions:
        rule = token_reductions.get(name)
        both = rule(row, torch.tensor([True, False]), tokens=10, rows=1, length=100)
        alone = rule(row[:10], torch.tensor([True]), tokens=10, rows=1, length=100)
        assert torch.equal(both[:10], alone)
        assert not both[10:].any()


def test_where_nothing_counts_the_loss_is_zero() -> None:
    """P5: every answer masked, and no answer at all: no NaN, loss and gradient 0."""
    for name in token_reductions:
        for n in (4, 0):
            row, counted = torch.zeros(n, dtype=torch.long), torch.zeros(min(n, 1), dtype=torch.bool)
            weight = token_reductions.get(name)(row, counted, tokens=0, rows=0, length=5)
            logp = torch.zeros(n, requires_grad=True)
            (weight * policy_gradient(logp, torch.ones(n))).sum().backward()
            assert weight.tolist() == [0.0] * n
            assert logp.grad is not None
            assert logp.grad.tolist() == [0.0] * n


@pytest.mark.parametrize("size", [0.0, 19.99, 20.01, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_ratio_is_infinite(size: float, dtype: torch.dtype) -> None:
    """P3: log-ratios of ±100 stay finite, value and gradient, and a policy that ran away is still pulled back."""
    x = torch.tensor([size, -size, size, -size], dtype=dtype, requires_grad=True)
    loss = clipped_surrogate(x, torch.tensor([1.0, 1.0, -1.0, -1.0]), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad[2] > 0
    assert (truncated_weight(x, -x, cap=2.0) <= 2.0).all()


def test_an_impossible_token_is_no_nan() -> None:
    """P3: log-probability -∞ under the new policy is a ratio of 0."""
    x = torch.tensor([-math.inf, -math.inf], requires_grad=True)
    loss = clipped_surrogate(x, torch.tensor([1.0, -1.0]), clip_low=0.2, clip_high=0.2)
    assert loss.tolist() == pytest.approx([0.0, 0.8])


@calm
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 1), st.floats(0, 3), st.none() | st.floats(1.5, 9))
def test_the_clip_is_its_equation(delta: float, a: float, low: float, high: float, dual: float | None) -> None:
    """P3: against plain arithmetic; what is called cut has no gradient, and what is not and is no tie has one."""
    ratio = math.exp(delta)
    bounded = max(-ratio * a, -min(max(ratio, 1 - low), 1 + high) * a)
    if dual is not None and a < 0:
        bounded = min(bounded, -dual * a)
    x = torch.tensor([delta], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([a], dtype=torch.float64)
    loss = clipped_surrogate(x, advantage, clip_low=low, clip_high=high, dual_clip=dual)
    loss.sum().backward()
    assert loss.item() == pytest.approx(bounded, abs=1e-12)
    assert x.grad is not None
    if clipped(x, advantage, clip_low=low, clip_high=high).item():
        assert x.grad.item() == 0.0
    elif dual is None and min(abs(ratio - 1 + low), abs(ratio - 1 - high)) > 1e-9:
        assert x.grad.item() == pytest.approx(-ratio * a)


def test_gradients_flow_into_the_policy_only() -> None:
    """P3: advantages, returns and old values are data."""
    logp, other = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    loss = clipped_surrogate(logp, other, clip_low=0.2, clip_high=0.2) + policy_gradient(logp, other)
    loss = loss + value_clip(logp, other, other, clip=0.2) + value_clip(logp, other, other, clip=None)
    (loss + truncated_weight(other, other, cap=2.0)).sum().backward()
    assert other.grad is None
    assert logp.grad is not None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: clipped_surrogate(x, x, clip_low=-0.1, clip_high=0.2), "clip_low"),
        (lambda x: clipped_surrogate(x, x, clip_low=1.1, clip_high=0.2), "clip_low"),
        (lambda x: clipped_surrogate(x, x, clip_low=0.2, clip_high=math.inf), "clip_high"),
        (lambda x: clipped_surrogate(x, x, clip_low=0.2, clip_high=math.nan), "clip_high"),
        (lambda x: clipped(x, x, clip_low=math.nan, clip_high=0.2), "clip_low"),
        (lambda x: clipped_surrogate(x, x, clip_low=0.2, clip_high=0.2, dual_clip=1.0), "above 1"),
        (lambda x: truncated_weight(x, x, cap=0.0), "above 0"),
        (lambda x: value_clip(x, x, x, clip=0.0), "above 0"),
        (
            lambda x: token_reductions.get("constant_length")(
                torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.bool), tokens=1, rows=1, length=0
            ),
            "at least 1 token",
        ),
    ],
)
def test_a_bound_out_of_range_is_refused(call, says: str) -> None:  # type: ignore[no-untyped-def]
    """P3, P5."""
    with pytest.raises(ValueError, match=says):
        call(torch.zeros(1))
