"""Log-probabilities from hidden states, in chunks, against the plain formula in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from thumbwheel.models import logps


def plain(h: Tensor, w: Tensor, y: Tensor, b: Tensor | None, temperature: float) -> Tensor:
    z = (h.double() @ w.double().T + (0 if b is None else b.double())) / temperature
    return z.gather(1, y[:, None])[:, 0] - torch.logsumexp(z, 1)


def inputs(n: int, *, trained_head: bool, biased: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    dice = torch.Generator().manual_seed(1)
    h = torch.randn(n, 12, generator=dice).requires_grad_()
    w = torch.randn(50, 12, generator=dice).requires_grad_(trained_head)
    b = torch.randn(50, generator=dice).requires_grad_(trained_head) if biased else None
    return h, w, torch.randint(0, 50, (n,), generator=dice), b


@pytest.mark.parametrize("trained_head", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_gradient_equal_the_plain_formula(*, trained_head: bool, biased: bool, temperature: float) -> None:
    """P9 and golden values: log-probabilities divide logits by the sampling temperature."""
    h, w, y, b = inputs(600, trained_head=trained_head, biased=biased)  # more than two chunks
    upstream = torch.linspace(-2, 2, 600)
    got = logps.token_logps(h, w, y, bias=b, temperature=temperature)
    wanted = [x for x in (h, w, b) if x is not None and x.requires_grad]
    mine = torch.autograd.grad((got * upstream).sum(), wanted)
    want = plain(h, w, y, b, temperature)
    theirs = torch.autograd.grad((want * upstream.double()).sum(), wanted)
    assert torch.allclose(got.double(), want, atol=1e-5)
    for a, c in zip(mine, theirs, strict=True):
        assert float((a - c).abs().max() / c.abs().max()) < 1e-5


def test_the_gradient_can_be_asked_for_twice_and_of_no_token_at_all() -> None:
    """The last chunk's probabilities are used up by the first backward pass; the second makes them again."""
    h, w, y, _ = inputs(300, trained_head=True, biased=False)
    got = logps.token_logps(h, w, y).sum()
    first = torch.autograd.grad(got, (h, w), retain_graph=True)
    second = torch.autograd.grad(got, (h, w))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    (nothing,) = torch.autograd.grad(logps.token_logps(h[:0], w, y[:0]).sum(), (w,))
    assert torch.equal(nothing, torch.zeros_like(w))


@pytest.mark.parametrize("trained_head", [True, False])
def test_entropy_and_its_gradient_equal_the_plain_formula(*, trained_head: bool) -> None:
    """P3: an entropy term that keeps no logits. Two chunks and a rest."""
    h, w, _, b = inputs(600, trained_head=trained_head, biased=True)
    upstream = torch.linspace(-2, 2, 600)
    wanted = [x for x in (h, w, b) if x is not None and x.requires_grad]
    got = logps.token_entropies(h, w, bias=b, temperature=0.7)
    mine = torch.autograd.grad((got * upstream).sum(), wanted)
    assert b is not None
    p = torch.softmax((h.double() @ w.double().T + b.double()) / 0.7, 1)
    want = -(p * p.log()).sum(1)
    theirs = torch.autograd.grad((want * upstream.double()).sum(), wanted)
    assert torch.allclose(got.double(), want, atol=1e-5)
    for a, c in zip(mine, theirs, strict=True):
        assert float((a - c).abs().max() / c.abs().max()) < 1e-5


def test_two_equal_logits_give_minus_ln_2() -> None:
    """By hand: two tokens alike share the mass."""
    got = logps.token_logps(torch.ones(1, 1), torch.zeros(2, 1), torch.tensor([1]))
    assert math.isclose(float(got), -math.log(2), abs_tol=1e-7)


def test_a_target_far_below_the_others_keeps_its_digits() -> None:
    """A log-probability of -200 nats is below what a float32 softmax can hold; it must not become -inf."""
    h = torch.tensor([[1.0], [1.0]], requires_grad=True)
    w = torch.tensor([[0.0], [200.0], [150.0]])
    got = logps.token_logps(h, w, torch.tensor([0, 1]))
    assert got.tolist() == pytest.approx([-200.0, 0.0], abs=1e-4)
    got.sum().backward()
    assert math.isclose(float(h.grad[0]), -200.0, rel_tol=1e-6)  # w_y - E w = 0 - 200


def test_no_tensor_as_large_as_all_logits_is_ever_made() -> None:
    """P9: no full-vocabulary logits kept, forward or backward."""
    n, vocabulary = 5 * logps.CHUNK, 400
    h = torch.randn(n, 8, requires_grad=True)
    w = torch.randn(vocabulary, 8, requires_grad=True)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        logps.token_logps(h, w, torch.zeros(n, dtype=torch.long)).sum().backward()
    assert largest <= logps.CHUNK * vocabulary


def test_bfloat16_logps_are_float32_and_never_positive() -> None:
    """The target's logit is exact and its share of the sum is put right with it, so a sure token stays at or below 0."""
    dice = torch.Generator().manual_seed(0)
    w = torch.randn(1000, 64, generator=dice).bfloat16()
    y = torch.randint(0, 1000, (300,), generator=dice)
    h = (w[y].float() * torch.linspace(0.0, 1.0, 300)[:, None]).bfloat16()
    got = logps.token_logps(h, w, y)
    want = plain(h, w, y, None, 1.0)
    assert got.dtype == torch.float32
    assert bool((got <= 1e-6).all())
    assert float((got - want).abs().max()) < 0.05


def test_entropy_of_equal_logits_is_the_log_of_their_number() -> None:
    """By hand: ln 5."""
    got = logps.token_entropies(torch.ones(2, 1), torch.zeros(5, 1))
    assert torch.allclose(got, torch.full((2,), math.log(5)), atol=1e-6)


def test_no_trained_token_gives_an_empty_answer() -> None:
    """A batch whose rows carry no loss must not fail."""
    assert logps.token_logps(torch.ones(0, 4), torch.ones(9, 4), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("n", [0, 5, 600])
def test_both_of_one_product_equal_the_plain_formulas(n: int) -> None:
    """Log-probability and entropy without a gradient; two chunks and a rest, whose rows are no whole block either."""
    h, w, y, b = inputs(n, trained_head=False, biased=True)
    assert b is not None
    logp, entropy = logps.logps_and_entropies(h, w, y, bias=b, temperature=0.7)
    assert not logp.requires_grad
    p = torch.softmax((h.double() @ w.double().T + b.double()) / 0.7, 1)
    assert torch.allclose(logp.double(), plain(h, w, y, b, 0.7), atol=1e-5)
    assert torch.allclose(entropy.double(), -(p * p.log()).sum(1), atol=1e-5)


def test_entropy_where_all_mass_is_on_one_token_is_nothing() -> None:
    """By hand: 1 ln 1 = 0, and tokens whose probability is 0 in float32 add nothing, not even a NaN."""
    h, w = torch.ones(1, 1), torch.tensor([[300.0], [0.0], [-300.0]])
    logp, entropy = logps.logps_and_entropies(h, w, torch.tensor([0]))
    assert float(entropy[0]) == 0.0
    assert float(logp[0]) == 0.0


def test_entropy_of_half_precision_is_close() -> None:
    """By hand: ln 7 from probabilities of 8 bits."""
    h, w = torch.ones(2, 1, dtype=torch.bfloat16), torch.zeros(7, 1, dtype=torch.bfloat16)
    entropy = logps.logps_and_entropies(h, w, torch.tensor([0, 1]))[1]
    assert torch.allclose(entropy, torch.full((2,), math.log(7)), atol=8e-3)
