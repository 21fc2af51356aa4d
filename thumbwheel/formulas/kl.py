"""How far one policy is from another, in nats: three estimators on sampled tokens, and the exact values from logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thumbwheel.formulas.reduce import widen
from thumbwheel.registry import Registry

LARGEST_EXPONENT = 20.0
"""k3 is exact up to a log-ratio of -20 and follows its tangent beyond, where e^20 has long said "far away"."""


@dataclass(frozen=True)
class KLEstimator:
    """One estimator of KL(π‖π_ref) on actions sampled from π. `fn` maps log π - log π_ref to an estimate, elementwise."""

    fn: Callable[[Tensor], Tensor]
    usable_as_loss: bool  # does its own expected gradient pull π to π_ref?
    nonnegative: bool


kl_estimators: Registry[KLEstimator] = Registry("KL estimator")


def k1(log_ratio: Tensor) -> Tensor:
    """k1 = Δ

    | symbol | name      | shape | unit | range                                            |
    | ------ | --------- | ----- | ---- | ------------------------------------------------ |
    | Δ      | log_ratio | any   | nats | ℝ; log π - log π_ref of actions sampled from π   |

    Source: Schulman 2020, "Approximating KL divergence". Unbiased, of either sign, large variance.
    Known value: π = (.5, .3, .2), π_ref = (.2, .3, .5) -> E k1 = .274887 = KL(π‖π_ref).
    No loss: its expected gradient is E ∇log π = 0 whatever the policies are. As a penalty inside a reward it is right.
    """
    return widen(log_ratio)


def k2(log_ratio: Tensor) -> Tensor:
    """k2 = Δ²/2

    | symbol | name      | shape | unit  | range                                          |
    | ------ | --------- | ----- | ----- | ---------------------------------------------- |
    | Δ      | log_ratio | any   | nats  | ℝ; log π - log π_ref of actions sampled from π |

    Source: Schulman 2020. Biased in value; as a loss its expected gradient is exactly ∇KL(π‖π_ref).
    Known value: π = (.5, .3, .2), π_ref = (.2, .3, .5) -> E k2 = .293856, gradient (.320702, -.082466, -.238236).
    """
    return widen(log_ratio) ** 2 / 2


def k3(log_ratio: Tensor) -> Tensor:
    """k3 = e^(-Δ) - 1 + Δ

    | symbol | name      | shape | unit  | range                                          |
    | ------ | --------- | ----- | ----- | ---------------------------------------------- |
    | Δ      | log_ratio | any   | nats  | ℝ; log π - log π_ref of actions sampled from π |

    Source: Schulman 2020. Unbiased in value and never negative; as a loss its expected gradient is ∇KL(π_ref‖π).
    Known value: π = (.5, .3, .2), π_ref = (.2, .3, .5) -> E k3 = .274887, gradient (.3, 0, -.3).
    Beyond Δ = -20 it goes on along its tangent: e^100 is no float32, and a clamp would turn the gradient's sign.
    Near 0 it is the series Δ²/2 - Δ³/6 + Δ⁴/24 - Δ⁵/120, where the subtraction would lose every digit.
    """
    x = -widen(log_ratio)
    near = x.clamp(-0.01, 0.01)
    series = near**2 / 2 * (1 + near / 3 * (1 + near / 4 * (1 + near / 5)))
    exact_x = x.clamp(max=LARGEST_EXPONENT)
    beyond = torch.expm1(x.new_tensor(LARGEST_EXPONENT)) * (x - LARGEST_EXPONENT).clamp(min=0)
    return torch.where(x.abs() < 0.01, series, torch.expm1(exact_x) - exact_x + beyond)


kl_estimators.add("k1", KLEstimator(k1, usable_as_loss=False, nonnegative=False))
kl_estimators.add("k2", KLEstimator(k2, usable_as_loss=True, nonnegative=True))
kl_estimators.add("k3", KLEstimator(k3, usable_as_loss=True, nonnegative=True))


def exact_kl(logits: Tensor, other_logits: Tensor) -> Tensor:
    """KL(π‖q) = Σₐ π(a) (log π(a) - log q(a)),  π = softmax(logits), q = softmax(other_logits)

    | symbol | name         | shape    | unit | range                                       |
    | ------ | ------------ | -------- | ---- | ------------------------------------------- |
    | π      | logits       | (..., A) | nats | ℝ, or -∞ for an action that is not on offer |
    | q      | other_logits | (..., A) | nats | ℝ or -∞                                     |

    Returns (...). Known value: π = (.5, .3, .2), q = (.2, .3, .5) -> .274887. An action with π(a) = 0 adds 0; one with
    π(a) > 0 and q(a) = 0 gives +∞, which is the truth.
    """
    logp, logq = widen(logits).log_softmax(-1), widen(other_logits).log_softmax(-1)
    possible = logp > -torch.inf
    log_ratio = torch.where(possible, logp, 0.0) - torch.where(possible, logq, 0.0)
    return (logp.exp() * log_ratio).sum(-1)


def exact_entropy(logits: Tensor) -> Tensor:
    """H(π) = -Σₐ π(a) log π(a),  π = softmax(logits)

    | symbol | name   | shape    | unit | range                                       |
    | ------ | ------ | -------- | ---- | ------------------------------------------- |
    | π      | logits | (..., A) | nats | ℝ, or -∞ for an action that is not on offer |

    Returns (...), in [0, ln A]. Known value: four equal logits -> ln 4 = 1.386294; one possible action -> 0.
    """
    logp = widen(logits).log_softmax(-1)
    return -(logp.exp() * torch.where(logp > -torch.inf, logp, 0.0)).sum(-1)
