"""Which token of an answer earned its reward: returns and GAE over tokens, some of which are no actions.

Legend: R answers, T tokens. The mask is True on tokens the policy chose (and is trained on); what stands between them (a
tool's output, a retrieved passage, padding) is no action. Time goes from action to action: inserting masked tokens anywhere
changes nothing on an action. A reward on a masked token belongs to the last action before it; a value on one never enters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thumbwheel.formulas.reduce import widen


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, last_value: Tensor) -> Tensor:
    """Aₖ = δₖ + γλ Aₖ₊₁,  δₖ = rₖ + γ Vₖ₊₁ - Vₖ,  over the actions k = 1 … K of an answer,  A_{K+1} = 0

    | symbol  | name       | shape  | unit      | range                                                           |
    | ------- | ---------- | ------ | --------- | --------------------------------------------------------------- |
    | r       | rewards    | (R, T) | as reward | ℝ; on a masked token: the last action before it earns it        |
    | V       | values     | (R, T) | as reward | ℝ; anything where the mask is 0                                 |
    | m       | mask       | (R, T) | -         | True: an action                                                 |
    | γ       | gamma      | ()     | -         | [0, 1]                                                          |
    | λ       | lam        | ()     | -         | [0, 1]                                                          |
    | V_{K+1} | last_value | (R,)   | as reward | 0 where the answer terminated, V(what follows) where truncated  |

    Source: Schulman et al. 2016 (GAE), eq. 16. Returns (R, T), 0 where masked, without gradient. Known value:
    r = (0, 0, 0, 0, 1), V = (.1, .2, 9.9, 9.9, .4), m = (1, 1, 0, 0, 1), γ = .9, λ = .8 -> (.50624, .592, ·, ·, .6).
    A reward before the first action was earned by none and is left out. Raises ValueError for γ or λ outside [0, 1].
    """
    _check_share(gamma, "gamma")
    _check_share(lam, "lam")
    rewards, values = _earned(rewards, mask), widen(values).detach()
    next_value = widen(last_value).detach().to(values.dtype)
    advantage = torch.zeros_like(next_value)
    columns = []
    for t in reversed(range(mask.shape[1])):
        acts = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(acts, delta + gamma * lam * advantage, advantage)
        next_value = torch.where(acts, values[:, t], next_value)
        columns.append(torch.where(acts, advantage, 0.0))
    return torch.stack(columns[::-1], dim=1) if columns else torch.zeros_like(rewards)


def returns(rewards: Tensor, mask: Tensor, *, gamma: float, last_value: Tensor | None = None) -> Tensor:
    """Gₖ = rₖ + γ Gₖ₊₁,  over the actions k = 1 … K of an answer,  G_{K+1} = V_{K+1}

    | symbol  | name       | shape  | unit      | range                                                                |
    | ------- | ---------- | ------ | --------- | -------------------------------------------------------------------- |
    | r       | rewards    | (R, T) | as reward | ℝ; on a masked token: the last action before it earns it             |
    | m       | mask       | (R, T) | -         | True: an action                                                      |
    | γ       | gamma      | ()     | -         | [0, 1]                                                               |
    | V_{K+1} | last_value | (R,)   | as reward | none: 0; V(what follows) for answers that were truncated             |

    Returns (R, T), 0 where masked, without gradient. Known value: m = (1, 1, 0, 0, 1, 1), reward 1 at the end, γ = 1 -> 1 on
    all four actions; γ = .5 -> (.125, .25, ·, ·, .5, 1). Raises ValueError for γ outside [0, 1].
    """
    zeros = torch.zeros(mask.shape[0], dtype=widen(rewards).dtype, device=rewards.device)
    last = zeros if last_value is None else last_value
    return gae(rewards, torch.zeros_like(widen(rewards)), mask, gamma=gamma, lam=1.0, last_value=last)


def _earned(rewards: Tensor, mask: Tensor) -> Tensor:
    """Rewards on actions only: one on a masked token moves to the last action before it."""
    rewards = widen(rewards).detach()
    waiting = torch.zeros(rewards.shape[0], dtype=rewards.dtype, device=rewards.device)
    columns = []
    for t in reversed(range(mask.shape[1])):
        waiting = waiting + rewards[:, t]
        columns.append(torch.where(mask[:, t], waiting, 0.0))
        waiting = torch.where(mask[:, t], 0.0, waiting)
    return torch.stack(columns[::-1], dim=1) if columns else rewards


def _check_share(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"'{name}' must be in [0, 1]. Got: {value}.")
