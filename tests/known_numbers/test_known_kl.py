"""KL estimators and exact values on a three-armed policy, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thumbwheel.formulas.kl import exact_entropy, exact_kl, kl_estimators

PI = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REF = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def expected(name: str, logits: Tensor) -> Tensor:
    """Σ π(a) k(log π(a) - log π_ref(a)): what sampling from π gives on average, π itself held still."""
    logp = logits.log_softmax(-1)
    return (PI * kl_estimators.get(name).fn(logp - REF.log())).sum()


@pytest.mark.parametrize(
    ("name", "value", "gradient", "usable"),
    [
        ("k1", 0.274887, (0.0, 0.0, 0.0), False),
        ("k2", 0.293856, (0.320702, -0.082466, -0.238236), True),
        ("k3", 0.274887, (0.3, 0.0, -0.3), True),
    ],
)
def test_estimators(name: str, value: float, gradient: tuple[float, ...], *, usable: bool) -> None:
    """P3, P4: k1 as a loss regularises nothing and says so."""
    logits = PI.log().requires_grad_()
    loss = expected(name, logits)
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx(gradient, abs=1e-6)
    assert kl_estimators.get(name).usable_as_loss is usable


def test_exact_kl_and_its_gradient() -> None:
    """P3: KL(π‖ref) = .274887 with the gradient that k2 has; KL(ref‖π) with the one that k3 has; of itself 0."""
    logits = PI.log().requires_grad_()
    forward = exact_kl(logits, REF.log())
    forward.backward()
    assert forward.item() == pytest.approx(0.274887, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.320702, -0.082466, -0.238236], abs=1e-6)
    logits.grad = None
    exact_kl(REF.log(), logits).backward()
    assert logits.grad.tolist() == pytest.approx([0.3, 0.0, -0.3], abs=1e-6)
    assert exact_kl(PI.log() + 5, PI.log()).item() == pytest.approx(0.0, abs=1e-12)


def test_actions_that_are_not_on_offer() -> None:
    """P3: an impossible action adds nothing, neither value nor NaN gradient; one that only π has is infinitely far."""
    logits = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    kl = exact_kl(logits, torch.tensor([0.0, 0.0, -math.inf]))
    (kl + exact_entropy(logits)).backward()
    assert kl.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert exact_kl(torch.zeros(2), torch.tensor([0.0, -math.inf])).item() == math.inf


def test_exact_entropy() -> None:
    """E2: four equal logits -> ln 4 = 1.386294; (.5, .3, .2) -> 1.029653; one possible action -> 0."""
    assert exact_entropy(torch.zeros(4)).item() == pytest.approx(1.386294, abs=1e-6)
    assert exact_entropy(PI.log()).item() == pytest.approx(1.029653, abs=1e-6)
    assert exact_entropy(torch.tensor([3.0, -math.inf])).item() == 0.0


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("ratio", [-1000.0, -100.0, 100.0, 1000.0])
def test_far_policies_stay_finite(name: str, ratio: float) -> None:
    """P3: value and gradient of log-ratios of ±100 and beyond, in float32, and the gradient pulls back."""
    delta = torch.tensor(ratio, requires_grad=True)
    estimate = kl_estimators.get(name).fn(delta)
    estimate.backward()
    assert delta.grad is not None
    assert estimate.isfinite()
    assert delta.grad.isfinite()
    if name != "k1":
        assert estimate.item() > 0
        assert math.copysign(1, delta.grad.item()) == math.copysign(1, ratio)


def test_k3_at_100_is_the_log_ratio() -> None:
    """P3: e^-100 - 1 + 100 = 99."""
    assert kl_estimators.get("k3").fn(torch.tensor(100.0)).item() == 99.0


def test_k3_keeps_its_digits_near_zero() -> None:
    """P3: Δ = 1e-4 in float32 -> Δ²/2 · (1 - Δ/3) = 4.99983e-9, where the plain subtraction has no digit left."""
    assert kl_estimators.get("k3").fn(torch.tensor(1e-4)).item() == pytest.approx(4.999833e-9, rel=1e-6)
