"""Policy losses per token, and what each token weighs in the loss of a step. Legend: M trained tokens, R rows (answers).

PPO, GRPO, DAPO and GSPO share one clip: `clipped_surrogate(log_ratio, ...)`. They differ in where the log-ratio comes from
(a token's own, or `sequence_log_ratio`), in the two ends of the clip, in the advantage (`thumbwheel.formulas.advantages`)
and in the weights (`token_reductions`). The loss of a step is Σ weight · loss over its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from thumbwheel.formulas.reduce import count_by_row, mean_by_row, widen
from thumbwheel.registry import Registry

LARGEST_EXPONENT = 20.0
"""The ratio is exact up to e^20 and follows its tangent beyond: e^100 is no float32, and a clamp would end the gradient."""


def clipped_surrogate(
    log_ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """l = -min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A),  ρ = e^Δ;  with a dual clip c and A < 0: min(l, c |A|)

    | symbol | name      | shape | unit | range                                              |
    | ------ | --------- | ----- | ---- | -------------------------------------------------- |
    | Δ      | log_ratio | (M,)  | nats | ℝ; log π - log π_old                               |
    | A      | advantage | (M,)  | -    | ℝ                                                  |
    | ε_low  | clip_low  | ()    | -    | [0, 1]; .2 in PPO                                  |
    | ε_high | clip_high | ()    | -    | [0, ∞); .2 in PPO, .28 in DAPO, 4e-4 in GSPO       |
    | c      | dual_clip | ()    | -    | (1, ∞), 3 in the paper; none: no bound where A < 0 |

    Source: Schulman et al. 2017 (PPO), eq. 7; ends apart: Yu et al. 2025 (DAPO), eq. 8; dual clip: Ye et al. 2020, eq. 5.
    Known value: ε = .2, (ρ, A) = (1.5, 1) -> -1.2, (1.5, -1) -> 1.5, (.5, 1) -> -.5, (.5, -1) -> .8, (5, -1) -> 5 and 3 with
    c = 3. At ρ = 1 the gradient of Δ is -A. No gradient flows into A. Raises ValueError for a bound out of range.
    """
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"The dual clip must be above 1, or it would cut an unchanged policy. Got: {dual_clip}.")
    ratio, advantage = _ratio(log_ratio), widen(advantage).detach()
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)


def clipped(log_ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """(A > 0 and ρ > 1 + ε_high) or (A < 0 and ρ < 1 - ε_low): the tokens whose gradient the clip takes away

    | symbol | name                | shape | unit | range                |
    | ------ | ------------------- | ----- | ---- | -------------------- |
    | Δ      | log_ratio           | (M,)  | nats | ℝ; log π - log π_old |
    | A      | advantage           | (M,)  | -    | ℝ                    |
    | ε      | clip_low, clip_high | ()    | -    | as above             |

    Returns (M,) bool. Known value: ε = .2, (ρ, A) = (1.5, 1) -> True, (1.5, -1) -> False, (.5, 1) -> False, (.5, -1) -> True.
    """
    _check_clip(clip_low, clip_high)
    ratio = _ratio(log_ratio.detach())
    return ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))


def policy_gradient(logp: Tensor, advantage: Tensor) -> Tensor:
    """l = -A log π

    | symbol | name      | shape | unit | range   |
    | ------ | --------- | ----- | ---- | ------- |
    | log π  | logp      | (M,)  | nats | (-∞, 0] |
    | A      | advantage | (M,)  | -    | ℝ       |

    Source: Williams 1992 (REINFORCE). Its gradient is that of the expected reward when the tokens come from π itself; its
    value says nothing. Known value: log π = -2, A = 3 -> 6, gradient -3. No gradient flows into A.
    Left out: a correction for tokens of an older policy; see `clipped_surrogate` and `truncated_weight`.
    """
    return -widen(advantage).detach() * widen(logp)


def sequence_log_ratio(logp: Tensor, old_logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Δᵢₜ = sg[1/|yᵢ| Σₜ (log π - log π_old)] + log πᵢₜ - sg[log πᵢₜ],  sg: without gradient

    | symbol    | name     | shape | unit | range       |
    | --------- | -------- | ----- | ---- | ----------- |
    | log π     | logp     | (M,)  | nats | (-∞, 0]     |
    | log π_old | old_logp | (M,)  | nats | (-∞, 0]     |
    | i         | row      | (M,)  | -    | {0 … R - 1} |
    | R         | n_rows   | ()    | -    | ≥ 0         |

    Source: Zheng et al. 2025 (GSPO), eq. 14. Every token of an answer has the answer's ratio, and pulls on its own
    log-probability only; with one advantage an answer and "sequence_mean" weights the gradient is that of eq. 5.
    Known value: three tokens of +.1 -> .1 each, so ρ = 1.105171 (a sum would give 1.349859). Rows must be whole.
    """
    logp = widen(logp)
    mean = mean_by_row((logp - widen(old_logp)).detach(), row, n_rows)
    return mean[row] + (logp - logp.detach())


def truncated_weight(old_logp: Tensor, behaviour_logp: Tensor, *, cap: float) -> Tensor:
    """w = min(π_old / μ, C): what a token weighs when the engine that sampled it (μ) is not quite the trainer (π_old)

    | symbol    | name           | shape | unit | range                                           |
    | --------- | -------------- | ----- | ---- | ----------------------------------------------- |
    | log π_old | old_logp       | (M,)  | nats | (-∞, 0], by the trainer, before its first update |
    | log μ     | behaviour_logp | (M,)  | nats | (-∞, 0], by the engine, as sampled              |
    | C         | cap            | ()    | -    | (0, ∞), 2 is usual                              |

    Source: Ionides 2008 (truncated importance sampling); between engine and trainer: Yao et al. 2025. No gradient.
    Known value: log-ratio ln 1.5, C = 2 -> 1.5; ln 3, C = 2 -> 2; 0 -> 1. Raises ValueError for a cap that is not above 0.
    """
    if not cap > 0:
        raise ValueError(f"The cap of importance weights must be above 0. Got: {cap}. 2 is usual.")
    log_ratio = (widen(old_logp) - widen(behaviour_logp)).detach()
    return log_ratio.clamp(max=math.log(cap)).exp()


def value_clip(value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """l = ½ max((v - R)², (clip(v, v_old - ε, v_old + ε) - R)²);  without ε: ½ (v - R)²

    | symbol | name      | shape | unit      | range                      |
    | ------ | --------- | ----- | --------- | -------------------------- |
    | v      | value     | (M,)  | as reward | ℝ                          |
    | v_old  | old_value | (M,)  | as reward | ℝ, when the answers came   |
    | R      | returns   | (M,)  | as reward | ℝ                          |
    | ε      | clip      | ()    | as reward | (0, ∞), or none: no clip   |

    Source: Schulman et al. 2016 (squared error); the clip is that of the published code of PPO. No gradient into v_old, R.
    Known value: v = 1, v_old = .3, R = 2, ε = .2 -> 1.125, gradient 0; without a clip -> .5, gradient -1.
    Raises ValueError for a clip that is not above 0.
    """
    value, target = widen(value), widen(returns).detach()
    error = (value - target) ** 2
    if clip is not None:
        if not clip > 0:
            raise ValueError(f"The value clip must be above 0, or none. Got: {clip}.")
        old = widen(old_value).detach()
        error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target) ** 2)
    return error / 2


TokenReduction = Callable[..., Tensor]
"""(row (M,), counted (R,) bool, *, tokens, rows, length) -> (M,) float32 weights."""

token_reductions: Registry[TokenReduction] = Registry("token reduction")


def token_mean_weights(row: Tensor, counted: Tensor, *, tokens: int, rows: int, length: int) -> Tensor:
    """w = c / N_tokens: every token weighs the same, so a long answer weighs more than a short one

    | symbol   | name    | shape | unit   | range                                                     |
    | -------- | ------- | ----- | ------ | --------------------------------------------------------- |
    | i        | row     | (M,)  | -      | {0 … R - 1}                                               |
    | c        | counted | (R,)  | -      | False: the answer is left out (cut short, without reward) |
    | N_tokens | tokens  | ()    | tokens | ≥ 0, counted tokens of the whole step                     |
    | N_rows   | rows    | ()    | rows   | ≥ 0, counted answers with a token, of the whole step      |
    | L        | length  | ()    | tokens | ≥ 1, the longest answer allowed                           |

    Source: Yu et al. 2025 (DAPO), token-level loss. Known value: 2 tokens of loss 1 and 6 of loss 2 -> 1.75.
    The totals are the step's, not the micro-batch's, so that micro-batches add up to the step. No counted token -> all 0.
    """
    return counted[row].float() / max(1, tokens)


def sequence_mean_weights(row: Tensor, counted: Tensor, *, tokens: int, rows: int, length: int) -> Tensor:
    """w = c / (N_rows |yᵢ|): every answer weighs the same

    | symbol | name                                 | shape      | unit | range             |
    | ------ | ------------------------------------ | ---------- | ---- | ----------------- |
    | |yᵢ|   | -                                    | ()         | -    | tokens of answer i |
    | others | row, counted, tokens, rows, length   | see above  | -    | see above         |

    Source: Shao et al. 2024 (GRPO), eq. 3. Known value: 2 tokens of loss 1 and 6 of loss 2 -> 1.5. Rows must be whole.
    """
    return counted[row].float() / (max(1, rows) * count_by_row(row, len(counted)).clamp(min=1)[row])


def constant_length_weights(row: Tensor, counted: Tensor, *, tokens: int, rows: int, length: int) -> Tensor:
    """w = c / (N_rows L): a token weighs the same in every answer and every batch

    | symbol | name                                 | shape      | unit | range     |
    | ------ | ------------------------------------ | ---------- | ---- | --------- |
    | all    | row, counted, tokens, rows, length   | see above  | -    | see above |

    Source: Liu et al. 2025 (Dr. GRPO). Known value: 2 tokens of loss 1, 6 of loss 2, L = 8 -> .875.
    Raises ValueError for a length under 1.
    """
    if length < 1:
        raise ValueError(
            f"The constant length must be at least 1 token. Got: {length}. Use the longest answer allowed."
        )
    return counted[row].float() / (max(1, rows) * length)


token_reductions.add("token_mean", token_mean_weights)
token_reductions.add("sequence_mean", sequence_mean_weights)
token_reductions.add("constant_length", constant_length_weights)


def _ratio(log_ratio: Tensor) -> Tensor:
    x = widen(log_ratio)
    return x.clamp(max=LARGEST_EXPONENT).exp() * (1 + (x - LARGEST_EXPONENT).clamp(min=0))


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not 0 <= clip_low <= 1 or not 0 <= clip_high < math.inf:
        raise ValueError(
            "The clip range is 1 - clip_low … 1 + clip_high, with clip_low in [0, 1] and clip_high in [0, inf). "
            f"Got: clip_low = {clip_low}, clip_high = {clip_high}. 0.2 and 0.2 are usual."
        )
