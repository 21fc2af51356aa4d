"""Losses of a reward model on comparisons: only the order of the scores is learned. Legend: B pairs, R answers, P pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from thumbwheel.formulas.reduce import widen


def logistic_loss(logit: Tensor, preference: Tensor | None = None) -> Tensor:
    """-p log σ(z) - (1 - p) log σ(-z)

    | symbol | name       | shape | unit | range                                    |
    | ------ | ---------- | ----- | ---- | ---------------------------------------- |
    | z      | logit      | (B,)  | nats | ℝ                                        |
    | p      | preference | (B,)  | -    | [0, 1], P(chosen is better); none: all 1 |

    Returns (B,). A tie is p = ½. Known value: z = 0 -> ln 2 with gradient ½ - p; lowest at z = ln(p / (1 - p)).
    Finite, with a finite gradient, for every finite z.
    """
    logit = widen(logit)
    if preference is None:
        return -logsigmoid(logit)
    preference = preference.to(logit.dtype)
    return -preference * logsigmoid(logit) - (1 - preference) * logsigmoid(-logit)


def bradley_terry(
    chosen: Tensor,
    rejected: Tensor,
    *,
    tau: float = 1.0,
    margin: Tensor | None = None,
    preference: Tensor | None = None,
) -> Tensor:
    """-p log σ(d) - (1 - p) log σ(-d),  d = (r_w - r_l - (2p - 1) m) / τ

    | symbol | name       | shape | unit  | range                                    |
    | ------ | ---------- | ----- | ----- | ---------------------------------------- |
    | r_w    | chosen     | (B,)  | score | ℝ                                        |
    | r_l    | rejected   | (B,)  | score | ℝ                                        |
    | τ      | tau        | ()    | score | (0, ∞); .1 to .3 once scores are scaled  |
    | m      | margin     | (B,)  | score | [0, ∞); none: 0                          |
    | p      | preference | (B,)  | -     | [0, 1], P(chosen is better); none: all 1 |

    Source: Bradley & Terry 1952; Ouyang et al. 2022, eq. 1; margin: Touvron et al. 2023 (Llama 2), eq. 2; a tie counts
    half for each side. Returns (B,). The factor 2p - 1 makes the loss the same when the two answers change places (p
    becomes 1 - p), and gives a tie no margin.
    Known value (τ = 1): gap .8 -> .371101, swapped 1.171101, margin .5 -> .554355; gradient σ(d) - p on d.
    Left out: a parameter for how often people call a tie (Rao & Kupper 1967, Davidson 1970). Raises ValueError for τ ≤ 0.
    """
    if not tau > 0:
        raise ValueError(f"The temperature tau must be in (0, inf). Got: {tau}.")
    gap = widen(chosen) - widen(rejected)
    if margin is not None:
        gap = gap - (margin if preference is None else (2 * preference - 1) * margin)
    return logistic_loss(gap / tau, preference)


def centring(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(r_w + r_l)²

    | symbol | name     | shape | unit  | range |
    | ------ | -------- | ----- | ----- | ----- |
    | r_w    | chosen   | (B,)  | score | ℝ     |
    | r_l    | rejected | (B,)  | score | ℝ     |

    Source: Eisenstein et al. 2023 ("Helping or herding?"). Bradley-Terry leaves the mean score free; this term,
    times a small weight, holds it near 0. Returns (B,). Known value: (2, -1) -> 1, gradient 2 on both.
    """
    return (widen(chosen) + widen(rejected)) ** 2


@dataclass(frozen=True)
class GroupPairs:
    """Every pair inside every group, as indices into the answers (R,). `weight` sums to 1 over the pairs of a group."""

    chosen: Tensor  # (P,) index of the better graded answer; of the earlier one in a tie
    rejected: Tensor  # (P,) index of the other
    preference: Tensor  # (P,) 1, or ½ for a tie
    weight: Tensor  # (P,) 1 / number of pairs of the group


def group_pairs(grade: Tensor, group: Tensor, *, keep_ties: bool) -> GroupPairs:
    """{(i, j): i < j, groupᵢ = groupⱼ}, each turned so that its first answer has the better grade

    | symbol | name  | shape | unit  | range                                                        |
    | ------ | ----- | ----- | ----- | ------------------------------------------------------------ |
    | -      | grade | (R,)  | grade | higher is better (a rank: give its negative); NaN is unknown |
    | -      | group | (R,)  | -     | integers; answers to one prompt share one                    |

    A group of K distinct grades gives K(K - 1)/2 pairs, so one forward pass per answer serves them all (Ouyang et al.
    2022, sec. 3.5); the weight is that paper's 1/(K choose 2), so a prompt counts once however many answers it has.
    Equal grades are a pair with preference ½, or no pair where `keep_ties` is false. An unknown grade is in no pair.
    Known value: grades (3, 1, 2) of one group -> pairs (0, 1), (0, 2), (2, 1), weight ⅓ each.
    """
    together = group[:, None] == group[None, :]  # (R, R)
    known = grade == grade  # NaN is the one value that differs from itself
    pair = together.triu(diagonal=1) & known[:, None] & known[None, :]
    if not keep_ties:
        pair = pair & (grade[:, None] != grade[None, :])
    first, second = pair.nonzero(as_tuple=True)
    swapped = grade[second] > grade[first]
    chosen, rejected = torch.where(swapped, second, first), torch.where(swapped, first, second)
    preference = torch.where(grade[first] == grade[second], 0.5, 1.0)
    pairs_of_group = together.float() @ pair.sum(dim=1).float()  # (R,)
    return GroupPairs(chosen, rejected, preference, 1.0 / pairs_of_group[first])


def bradley_terry_groups(
    score: Tensor, grade: Tensor, group: Tensor, *, tau: float = 1.0, keep_ties: bool = True
) -> Tensor:
    """1/G Σ_g 1/P_g Σ_{(w, l) in g} -p log σ((r_w - r_l)/τ) - (1 - p) log σ(-(r_w - r_l)/τ)

    | symbol | name  | shape | unit  | range                                       |
    | ------ | ----- | ----- | ----- | ------------------------------------------- |
    | r      | score | (R,)  | score | ℝ                                           |
    | -      | grade | (R,)  | grade | as in `group_pairs`                         |
    | -      | group | (R,)  | -     | integers                                    |
    | G      | -     | ()    | -     | groups that have a pair                     |
    | P_g    | -     | ()    | -     | pairs of the group                          |
    | τ      | tau   | ()    | score | (0, ∞)                                      |

    Source: Ouyang et al. 2022, eq. 1. Returns (); 0 with gradient 0 where no group has a pair.
    Known value: scores (1, 0, -1) graded in that order, τ = 1 -> ⅓ (2 · .313262 + .126928) = .251151.
    """
    pairs = group_pairs(grade, group, keep_ties=keep_ties)
    loss = bradley_terry(score[pairs.chosen], score[pairs.rejected], tau=tau, preference=pairs.preference)  # (P,)
    return (loss * pairs.weight).sum() / pairs.weight.sum().clamp(min=1)
