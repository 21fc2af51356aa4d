"""What must hold of every KL estimate."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas.kl import LARGEST_EXPONENT, exact_entropy, exact_kl, k3, kl_estimators

calm = settings(derandomize=True, deadline=None, max_examples=80)
logits = st.lists(st.floats(-8, 8), min_size=4, max_size=4)


@calm
@given(st.floats(-19.9, 80))
def test_k3_is_its_equation(delta: float) -> None:
    """P3: within 1e-8 of e^-Δ - 1 + Δ wherever float64 resolves that."""
    plain = math.expm1(-delta) + delta
    assert k3(torch.tensor(delta, dtype=torch.float64)).item() == pytest.approx(plain, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nonnegative_estimators_are_never_negative(dtype: torch.dtype) -> None:
    """P3: 0 at Δ = 0 and above it everywhere else that the format resolves, on both sides, tiny and huge."""
    sizes = torch.logspace(-8, 4, 400, dtype=dtype)
    for name in kl_estimators:
        estimator = kl_estimators.get(name)
        if estimator.nonnegative:
            assert (estimator.fn(torch.cat((-sizes, sizes))) > 0).all()
        assert estimator.fn(torch.zeros(1, dtype=dtype)).item() == 0.0


@pytest.mark.parametrize("seam", [-LARGEST_EXPONENT, -0.01, 0.01])
def test_k3_has_no_seam(seam: float) -> None:
    """P3: value and slope run on where one branch hands over to the next."""
    x = torch.tensor([seam - 1e-9, seam + 1e-9], dtype=torch.float64, requires_grad=True)
    value = k3(x)
    value.sum().backward()
    assert x.grad is not None
    assert value[0].item() == pytest.approx(value[1].item(), rel=1e-6)
    assert x.grad[0].item() == pytest.approx(x.grad[1].item(), rel=1e-6)


def test_gradients_are_those_of_the_equations() -> None:
    """P3: gradcheck in float64 away from the far tail."""
    x = torch.tensor([-5.0, -0.3, -0.004, 0.002, 0.5, 30.0], dtype=torch.float64, requires_grad=True)
    for name in kl_estimators:
        assert torch.autograd.gradcheck(kl_estimators.get(name).fn, (x,))


@calm
@given(logits, logits)
def test_exact_kl_against_summing_by_hand(left: list[float], right: list[float]) -> None:
    """P3: and 0 or more, and blind to a constant added to the logits."""

    def softmax(values: list[float]) -> list[float]:
        total = sum(math.exp(v) for v in values)
        return [math.exp(v) / total for v in values]

    p, q = softmax(left), softmax(right)
    by_hand = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    a, b = torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    assert exact_kl(a, b).item() == pytest.approx(by_hand, abs=1e-9)
    assert exact_kl(a + 3, b - 7).item() == pytest.approx(by_hand, abs=1e-9)
    assert exact_kl(a, b).item() >= -1e-12
    assert exact_entropy(a).item() == pytest.approx(-sum(x * math.log(x) for x in p), abs=1e-9)


def test_a_kl_only_loss_on_three_arms_reaches_the_reference() -> None:
    """P4: k2 and k3 as losses bring π to π_ref; k1's own gradient leaves it where it was."""
    reference = torch.tensor([0.2, 0.3, 0.5]).log()
    left: dict[str, float] = {}
    for name in kl_estimators:
        logits = torch.tensor([0.5, 0.3, 0.2]).log().requires_grad_()
        optimiser = torch.optim.SGD([logits], lr=0.5)
        for _ in range(300):
            logp = logits.log_softmax(-1)
            loss = (logp.detach().exp() * kl_estimators.get(name).fn(logp - reference)).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        left[name] = exact_kl(logits.detach(), reference).item()
    assert left["k2"] == pytest.approx(0.0, abs=1e-5)
    assert left["k3"] == pytest.approx(0.0, abs=1e-5)
    assert left["k1"] == pytest.approx(0.274887, abs=1e-4)
