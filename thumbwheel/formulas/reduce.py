"""Sums and means over the tokens that count. Masks: True counts. Sums are kept in float32 or wider.

What a mask leaves out never enters, neither its value nor its gradient, also where it is NaN or infinite. Where nothing
counts the result is 0 with gradient 0. Legend: B rows, T tokens of a row, M tokens of a packed batch, R its rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """float16 and bfloat16 as float32 (bfloat16 cannot tell .901 from .902); float32 and float64 as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def masked_sum(values: Tensor, mask: Tensor, *, dim: int | None = None) -> Tensor:
    """Σ mᵢ xᵢ

    | symbol | name   | shape | unit | range                |
    | ------ | ------ | ----- | ---- | -------------------- |
    | x      | values | any   | any  | ℝ; anything where m=0 |
    | m      | mask   | as x  | -    | {0, 1}               |

    Sums all of it, or along `dim`. Known value: x = (1, 2, NaN), m = (1, 1, 0) -> 3.
    Left out: weights (see `weighted_mean`).
    """
    kept = torch.where(mask, widen(values), 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, *, dim: int | None = None) -> Tensor:
    """Σ mᵢ xᵢ / max(1, Σ mᵢ)

    | symbol | name   | shape | unit | range                |
    | ------ | ------ | ----- | ---- | -------------------- |
    | x      | values | any   | any  | ℝ; anything where m=0 |
    | m      | mask   | as x  | -    | {0, 1}               |

    Known value: x = (1, 2, NaN), m = (1, 1, 0) -> 1.5; m = 0 everywhere -> 0, gradient 0.
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim=dim) / count.clamp(min=1)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ wᵢ xᵢ / Σ wᵢ, and 0 where Σ wᵢ = 0

    | symbol | name   | shape | unit | range  |
    | ------ | ------ | ----- | ---- | ------ |
    | x      | values | (B,)  | any  | ℝ      |
    | w      | weight | (B,)  | -    | [0, ∞) |

    A row of weight 0 does not enter at all. Known value: x = (1, 5), w = (3, 1) -> 2.
    Left out: negative weights, which would make the mean no mean.
    """
    weight = widen(weight)
    total = weight.sum()
    kept = torch.where(weight > 0, widen(values), 0.0)
    return (kept * weight).sum() / torch.where(total > 0, total, torch.ones_like(total))


def token_mean(loss: Tensor, mask: Tensor) -> Tensor:
    """Σᵢ Σₜ m lᵢₜ / Σᵢ Σₜ m: every token weighs the same, so a long answer weighs more than a short one.

    | symbol | name | shape  | unit | range  |
    | ------ | ---- | ------ | ---- | ------ |
    | l      | loss | (B, T) | nats | ℝ      |
    | m      | mask | (B, T) | -    | {0, 1} |

    Source: Yu et al. 2025 (DAPO), token-level loss. Known value: 2 tokens of loss 1 and 6 of loss 2 -> 1.75.
    """
    return masked_mean(loss, mask)


def sequence_mean(loss: Tensor, mask: Tensor) -> Tensor:
    """1/B' Σᵢ (Σₜ m lᵢₜ / Σₜ m): every answer weighs the same; B' counts the answers that have a token.

    | symbol | name | shape  | unit | range  |
    | ------ | ---- | ------ | ---- | ------ |
    | l      | loss | (B, T) | nats | ℝ      |
    | m      | mask | (B, T) | -    | {0, 1} |

    Source: Shao et al. 2024 (GRPO), eq. 3. Known value: 2 tokens of loss 1 and 6 of loss 2 -> 1.5.
    An answer with no token that counts is in neither numerator nor denominator.
    """
    return masked_mean(masked_mean(loss, mask, dim=1), mask.any(dim=1))


def constant_length_mean(loss: Tensor, mask: Tensor, *, length: int) -> Tensor:
    """1/B' Σᵢ (Σₜ m lᵢₜ / L): a token weighs the same in every answer and every batch.

    | symbol | name   | shape  | unit   | range  |
    | ------ | ------ | ------ | ------ | ------ |
    | l      | loss   | (B, T) | nats   | ℝ      |
    | m      | mask   | (B, T) | -      | {0, 1} |
    | L      | length | ()     | tokens | ≥ 1    |

    Source: Liu et al. 2025 (Dr. GRPO). Known value: 2 tokens of loss 1, 6 of loss 2, L = 8 -> 0.875.
    B' counts the answers that have a token. Raises ValueError for a length under 1.
    """
    if length < 1:
        raise ValueError(
            f"The constant length must be at least 1 token. Got: {length}. Use the longest answer allowed."
        )
    return masked_mean(masked_sum(loss, mask, dim=1) / length, mask.any(dim=1))


def standardise(x: Tensor, mask: Tensor, *, unbiased: bool, eps: float = 1e-8, dim: int | None = None) -> Tensor:
    """(x - mean) / (std + ε); mean and std over what counts

    | symbol | name     | shape | unit | range                                         |
    | ------ | -------- | ----- | ---- | --------------------------------------------- |
    | x      | values   | any   | any  | ℝ; anything where the mask is 0               |
    | -      | mask     | as x  | -    | {0, 1}                                        |
    | std    | -        | -     | as x | divides by n - 1 if `unbiased`, by n otherwise |
    | ε      | eps      | ()    | as x | [0, ∞)                                        |

    Over all of x, or along `dim`. What does not count comes back as 0. Equal values give exactly 0, whatever rounding does
    to their mean. Known value: 1…9, biased -> (9: 1.549193, 5: 0); unbiased -> (9: 1.460593).
    Left out: running statistics; see the trainer that needs them.
    """
    centred, scale = _centred_and_scale(x, mask, unbiased=unbiased, eps=eps, dim=dim)
    return torch.where(mask & (scale > 0), centred / torch.where(scale > 0, scale, 1.0), 0.0)


def scale_only(x: Tensor, mask: Tensor, *, unbiased: bool, eps: float = 1e-8, dim: int | None = None) -> Tensor:
    """x / (std + ε): the scale of `standardise` without its shift, so signs are kept

    | symbol | name     | shape | unit | range                                         |
    | ------ | -------- | ----- | ---- | --------------------------------------------- |
    | x      | values   | any   | any  | ℝ; anything where the mask is 0               |
    | -      | mask     | as x  | -    | {0, 1}                                        |
    | std    | -        | -     | as x | divides by n - 1 if `unbiased`, by n otherwise |
    | ε      | eps      | ()    | as x | [0, ∞)                                        |

    Over all of x, or along `dim`. What does not count comes back as 0. Equal values have no scale and come back unchanged.
    Known value: 1…9, biased -> (9: 3.485685, 5: 1.936492).
    """
    _, scale = _centred_and_scale(x, mask, unbiased=unbiased, eps=eps, dim=dim)
    return torch.where(mask, widen(x), 0.0) / torch.where(scale > 0, scale, 1.0)


def _centred_and_scale(
    x: Tensor, mask: Tensor, *, unbiased: bool, eps: float, dim: int | None
) -> tuple[Tensor, Tensor]:
    """x - mean, and std + ε; a scale of 0 says that all values that count are equal (or that none counts)."""
    axes = tuple(range(x.dim())) if dim is None else (dim,)
    x = widen(x)
    if x.numel() == 0:
        return x, torch.zeros_like(x)
    top = torch.where(mask, x.detach(), -torch.inf).amax(axes, keepdim=True)
    bottom = torch.where(mask, x.detach(), torch.inf).amin(axes, keepdim=True)
    # The spread decides what "equal" is: a variance of equal values is rounding noise, a difference of them is 0.
    varied = top > bottom
    # Rewards that differ in the sixth digit keep their difference, since x - bottom is exact for close numbers.
    above = torch.where(mask, x - torch.where(varied, bottom, 0.0), 0.0)
    count = mask.sum(axes, keepdim=True)
    centred = torch.where(mask, above - above.sum(axes, keepdim=True) / count.clamp(min=1), 0.0)
    variance = (centred**2).sum(axes, keepdim=True) / (count - int(unbiased)).clamp(min=1)
    std = torch.where(varied, variance, 1.0).sqrt()  # the square root of 0 has no gradient
    return centred, torch.where(varied, std + eps, 0.0)


def sum_by_row(values: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """sᵣ = Σ_{i: rowᵢ = r} xᵢ

    | symbol | name   | shape | unit | range        |
    | ------ | ------ | ----- | ---- | ------------ |
    | x      | values | (M,)  | any  | ℝ            |
    | -      | row    | (M,)  | -    | {0 … R - 1}  |
    | R      | n_rows | ()    | -    | ≥ 0          |

    Returns (R,). Known value: x = (1, 2, 4), row = (0, 2, 0), R = 3 -> (5, 0, 2). Order of tokens does not matter.
    """
    values = widen(values)
    return torch.zeros(n_rows, dtype=values.dtype, device=values.device).index_add(0, row, values)


def mean_by_row(values: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """sᵣ / max(1, nᵣ), nᵣ = #{i: rowᵢ = r}

    | symbol | name   | shape | unit | range        |
    | ------ | ------ | ----- | ---- | ------------ |
    | x      | values | (M,)  | any  | ℝ            |
    | -      | row    | (M,)  | -    | {0 … R - 1}  |
    | R      | n_rows | ()    | -    | ≥ 0          |

    Returns (R,). Known value: x = (1, 2, 4), row = (0, 2, 0), R = 3 -> (2.5, 0, 2). A row without a token gives 0.
    """
    return sum_by_row(values, row, n_rows) / count_by_row(row, n_rows).clamp(min=1)


def count_by_row(row: Tensor, n_rows: int) -> Tensor:
    """nᵣ = #{i: rowᵢ = r}, as (R,) integers. Known value: row = (0, 2, 0), R = 3 -> (2, 0, 1)."""
    return torch.bincount(row, minlength=n_rows)


def last_real(mask: Tensor) -> Tensor:
    """max {t: mᵢₜ = 1}

    | symbol | name | shape  | unit | range  |
    | ------ | ---- | ------ | ---- | ------ |
    | m      | mask | (B, T) | -    | {0, 1} |

    Returns (B,) positions. Padding on either side and holes inside change nothing but the position's number.
    Known value: (0, 1, 1, 0) -> 2. Raises ValueError for a row in which nothing counts: it has no last token.
    """
    empty = ~mask.any(dim=1)
    if bool(empty.any()):
        rows = empty.nonzero().flatten().tolist()
        raise ValueError(f"Every row needs a token that counts. Got none in rows {rows[:10]}. Drop these rows first.")
    return mask.shape[1] - 1 - mask.flip(1).to(torch.uint8).argmax(dim=1)


def at_last_real(values: Tensor, mask: Tensor) -> Tensor:
    """values[i, last_real(mask)[i]]: (B, T) or (B, T, D) -> (B,) or (B, D). Raises ValueError as `last_real` does."""
    return values[torch.arange(values.shape[0], device=values.device), last_real(mask)]
