"""Losses that move a policy by comparisons (the DPO family) or by single thumbs (KTO). Legend: B pairs or answers.

Throughout, for a pair with chosen answer w and rejected answer l:

    h = (log π(w) - log π_ref(w)) - (log π(l) - log π_ref(l))

`preference` is p = P(w is better) in [0, 1]; none means 1, a tie is ½. Every loss is the same when w and l change places
and p becomes 1 - p. Every loss and its gradient are finite for log-ratios of ±100 and far beyond. `preference_losses` says
what each needs: its `options` are the keywords its function takes, and an option that is not among them is to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thumbwheel.formulas.bradley_terry import logistic_loss
from thumbwheel.formulas.reduce import widen
from thumbwheel.registry import Registry


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss and what it needs. `fn` returns (B,) and is called, with `**options` out of `options`, as

    | paired | needs_reference | call                                                                                |
    | ------ | --------------- | ----------------------------------------------------------------------------------- |
    | yes    | yes             | fn(logp_chosen, logp_rejected, ref_chosen, ref_rejected, beta=, preference=, **options) |
    | yes    | no              | fn(logp_chosen, logp_rejected, beta=, preference=, **options)                       |
    | no     | yes             | fn(logp, ref, label, kl, beta=, **options)                                          |
    """

    fn: Callable[..., Tensor]
    needs_reference: bool = True
    length_averaged: bool = False  # log-probabilities are means over the answer's tokens, policy and reference alike
    paired: bool = True
    options: frozenset[str] = frozenset()


preference_losses: Registry[PreferenceLoss] = Registry("preference loss")


def log_ratio_gap(logp_chosen: Tensor, logp_rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """h = (log π(w) - log π_ref(w)) - (log π(l) - log π_ref(l))

    | symbol     | name                        | shape | unit | range  |
    | ---------- | --------------------------- | ----- | ---- | ------ |
    | log π(·)   | logp_chosen, logp_rejected  | (B,)  | nats | (-∞, 0] |
    | log π_ref  | ref_chosen, ref_rejected    | (B,)  | nats | (-∞, 0] |

    Returns (B,) nats, 0 where policy and reference agree. Known value: (-1, -4, -2, -3) -> 2.
    """
    return (widen(logp_chosen) - widen(ref_chosen)) - (widen(logp_rejected) - widen(ref_rejected))


def implicit_reward(logp: Tensor, ref: Tensor, *, beta: float) -> Tensor:
    """r = β (log π(y) - log π_ref(y)): the reward that a policy trained with DPO has made its own

    | symbol    | name | shape | unit  | range   |
    | --------- | ---- | ----- | ----- | ------- |
    | log π     | logp | (B,)  | nats  | (-∞, 0] |
    | log π_ref | ref  | (B,)  | nats  | (-∞, 0] |
    | β         | beta | ()    | 1/nat | (0, ∞)  |

    Source: Rafailov et al. 2023, sec. 5. Returns (B,). Known value: (-1, -3), β = .1 -> .2. Left out: β log Z(x), which is
    the same for both answers to a prompt.
    """
    return beta * (widen(logp) - widen(ref))


def dpo(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    preference: Tensor | None = None,
) -> Tensor:
    """-p log σ(βh) - (1 - p) log σ(-βh)

    | symbol | name          | shape | unit  | range                         |
    | ------ | ------------- | ----- | ----- | ----------------------------- |
    | h      | log-ratio gap | (B,)  | nats  | ℝ                             |
    | β      | beta          | ()    | 1/nat | (0, ∞), .01 to .5 in practice |
    | p      | preference    | (B,)  | -     | [0, 1], none: 1               |

    Source: Rafailov et al. 2023, eq. 7. Known value: βh = .2 -> .598139; h = 0 -> ln 2, gradient +β/2 on log π(l) and
    -β/2 on log π(w); lowest at βh = ln(p / (1 - p)). Left out: nothing holds log π(w) itself up, see `mean_nll`.
    """
    return logistic_loss(beta * log_ratio_gap(logp_chosen, logp_rejected, ref_chosen, ref_rejected), preference)


def cdpo(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float,
    preference: Tensor | None = None,
) -> Tensor:
    """-p' log σ(βh) - (1 - p') log σ(-βh),  p' = (1 - ε) p + ε (1 - p)

    | symbol | name            | shape | unit  | range                                      |
    | ------ | --------------- | ----- | ----- | ------------------------------------------ |
    | h      | log-ratio gap   | (B,)  | nats  | ℝ                                          |
    | β      | beta            | ()    | 1/nat | (0, ∞)                                     |
    | ε      | label_smoothing | ()    | -     | [0, ½), share of labels taken to be flipped |
    | p      | preference      | (B,)  | -     | [0, 1], none: 1                            |

    Source: Mitchell 2023, "A note on DPO with noisy preferences". Known value: ε = .1, βh = .2 -> .618139;
    stationary at βh = ln((1 - ε)/ε) = 2.197225. Raises ValueError for ε outside [0, ½).
    """
    flipped = _flip_rate(label_smoothing)
    gap = log_ratio_gap(logp_chosen, logp_rejected, ref_chosen, ref_rejected)
    certain = torch.ones_like(gap) if preference is None else preference.to(gap.dtype)
    return logistic_loss(beta * gap, (1 - flipped) * certain + flipped * (1 - certain))


def robust_dpo(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float,
    preference: Tensor | None = None,
) -> Tensor:
    """((1 - ε) L(h) - ε L(-h)) / (1 - 2ε),  L the DPO loss

    | symbol | name            | shape | unit  | range                                         |
    | ------ | --------------- | ----- | ----- | --------------------------------------------- |
    | h      | log-ratio gap   | (B,)  | nats  | ℝ                                             |
    | β      | beta            | ()    | 1/nat | (0, ∞)                                        |
    | ε      | label_smoothing | ()    | -     | [0, ½), share of labels known to be flipped   |
    | p      | preference      | (B,)  | -     | [0, 1], none: 1                               |

    Source: Ray Chowdhury et al. 2024 ("Provably robust DPO"). Its mean over labels flipped at rate ε is the DPO loss of
    the unflipped ones. Known value: ε = .1, βh = .2 -> .573139.
    It is not bounded below: for large h it falls as -ε βh / (1 - 2ε). Raises ValueError for ε outside [0, ½).
    """
    flipped = _flip_rate(label_smoothing)
    logit = beta * log_ratio_gap(logp_chosen, logp_rejected, ref_chosen, ref_rejected)
    as_labelled, as_flipped = logistic_loss(logit, preference), logistic_loss(-logit, preference)
    return ((1 - flipped) * as_labelled - flipped * as_flipped) / (1 - 2 * flipped)


def ipo(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    preference: Tensor | None = None,
) -> Tensor:
    """p (h - 1/(2τ))² + (1 - p) (h + 1/(2τ))²,  τ = beta

    | symbol | name          | shape | unit  | range           |
    | ------ | ------------- | ----- | ----- | --------------- |
    | h      | log-ratio gap | (B,)  | nats  | ℝ               |
    | τ      | beta          | ()    | 1/nat | (0, ∞)          |
    | p      | preference    | (B,)  | -     | [0, 1], none: 1 |

    Source: Azar et al. 2023, eq. 17; lowest at h = (p - ½)/τ. Two meanings are in public use, and the paper's is the first:
    "ipo_summed" takes sums over an answer's tokens, "ipo_averaged" takes means, of policy and reference alike.
    Known value: h_w = 3 over 6 tokens, h_l = 1 over 2 tokens, τ = .1: summed 9.0, averaged 25.0.
    """
    gap = log_ratio_gap(logp_chosen, logp_rejected, ref_chosen, ref_rejected)
    return _mixed((gap - 1 / (2 * beta)) ** 2, (gap + 1 / (2 * beta)) ** 2, preference)


def hinge(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    preference: Tensor | None = None,
) -> Tensor:
    """p max(0, 1 - βh) + (1 - p) max(0, 1 + βh)

    | symbol | name          | shape | unit  | range           |
    | ------ | ------------- | ----- | ----- | --------------- |
    | h      | log-ratio gap | (B,)  | nats  | ℝ               |
    | β      | beta          | ()    | 1/nat | (0, ∞)          |
    | p      | preference    | (B,)  | -     | [0, 1], none: 1 |

    Source: Zhao et al. 2023 (SLiC-HF), eq. 1, with log-ratios to the reference as in Liu et al. 2023 (RSO).
    Known value: βh = .2 -> .8; βh ≥ 1 -> 0. A tie costs 1 anywhere in |βh| ≤ 1. Left out: SLiC's own regulariser.
    """
    logit = beta * log_ratio_gap(logp_chosen, logp_rejected, ref_chosen, ref_rejected)
    return _mixed(torch.relu(1 - logit), torch.relu(1 + logit), preference)


def simpo(
    logp_chosen: Tensor,
    logp_rejected: Tensor,
    *,
    beta: float,
    simpo_gamma: float,
    preference: Tensor | None = None,
) -> Tensor:
    """-p log σ(z) - (1 - p) log σ(-z),  z = β (l_w - l_l) - (2p - 1) γ

    | symbol   | name                       | shape | unit       | range                           |
    | -------- | -------------------------- | ----- | ---------- | ------------------------------- |
    | l_w, l_l | logp_chosen, logp_rejected | (B,)  | nats/token | (-∞, 0], means over the answer  |
    | β        | beta                       | ()    | token/nat  | (0, ∞), 2 to 10 in the paper    |
    | γ        | simpo_gamma                | ()    | nats       | [0, ∞), target margin           |
    | p        | preference                 | (B,)  | -          | [0, 1], none: 1                 |

    Source: Meng et al. 2024, eq. 6. γ is the paper's own, not its ratio to β. No reference. As in `bradley_terry` the margin
    has the direction of the label, so a tie has none. Known value: l = (-1, -2), β = 2, γ = .5 -> -log σ(1.5) = .201413.
    """
    logit = beta * (widen(logp_chosen) - widen(logp_rejected))
    margin = simpo_gamma if preference is None else (2 * preference.to(logit.dtype) - 1) * simpo_gamma
    return logistic_loss(logit - margin, preference)


def odds_ratio(logp_chosen: Tensor, logp_rejected: Tensor, *, preference: Tensor | None = None) -> Tensor:
    """-p log σ(o) - (1 - p) log σ(-o),  o = (l_w - log(1 - e^l_w)) - (l_l - log(1 - e^l_l))

    | symbol   | name                       | shape | unit       | range                          |
    | -------- | -------------------------- | ----- | ---------- | ------------------------------ |
    | l_w, l_l | logp_chosen, logp_rejected | (B,)  | nats/token | (-∞, 0], means over the answer |
    | p        | preference                 | (B,)  | -          | [0, 1], none: 1                |

    Source: Hong et al. 2024 (ORPO), eq. 7. Known value: l = (-2, -5) -> o = 3.138653, loss .042428.
    A mean log-probability nearer to 0 than the number format resolves is held there: its odds would be infinite.
    """
    return logistic_loss(log_odds(logp_chosen) - log_odds(logp_rejected), preference)


def log_odds(logp: Tensor) -> Tensor:
    """log(P / (1 - P)) = l - log(1 - e^l), for l (B,) in (-∞, 0]. Known value: l = ln ½ -> 0; l = -2 -> -1.854587."""
    logp = widen(logp).clamp(max=-torch.finfo(widen(logp).dtype).eps)
    return logp - torch.log(-torch.expm1(logp))


def orpo(logp_chosen: Tensor, logp_rejected: Tensor, *, beta: float, preference: Tensor | None = None) -> Tensor:
    """-(p l_w + (1 - p) l_l) + λ OR(l_w, l_l),  λ = beta, OR the `odds_ratio` loss

    | symbol   | name                       | shape | unit       | range                          |
    | -------- | -------------------------- | ----- | ---------- | ------------------------------ |
    | l_w, l_l | logp_chosen, logp_rejected | (B,)  | nats/token | (-∞, 0], means over the answer |
    | λ        | beta                       | ()    | -          | (0, ∞), .1 in the paper        |
    | p        | preference                 | (B,)  | -          | [0, 1], none: 1                |

    Source: Hong et al. 2024, eq. 6. The likelihood of the chosen answer is part of it, so no reference is needed.
    Known value: l = (-2, -5), λ = .1 -> 2 + .1 · .042428 = 2.004243.
    """
    chosen, rejected = widen(logp_chosen), widen(logp_rejected)
    return _mixed(-chosen, -rejected, preference) + beta * odds_ratio(chosen, rejected, preference=preference)


def kto(
    logp: Tensor,
    ref: Tensor,
    label: Tensor,
    kl: Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """q λ_D (1 - σ(β (r - z))) + (1 - q) λ_U (1 - σ(β (z - r))),  r = log π(y) - log π_ref(y)

    | symbol | name               | shape | unit  | range                                         |
    | ------ | ------------------ | ----- | ----- | --------------------------------------------- |
    | log π  | logp, ref          | (B,)  | nats  | (-∞, 0]                                       |
    | q      | label              | (B,)  | -     | 1 or True liked, 0 or False disliked; or soft |
    | z      | kl                 | ()    | nats  | [0, ∞), from `kto_kl`                         |
    | β      | beta               | ()    | 1/nat | (0, ∞)                                        |
    | λ_D    | desirable_weight   | ()    | -     | (0, ∞)                                        |
    | λ_U    | undesirable_weight | ()    | -     | (0, ∞)                                        |

    Source: Ethayarajh et al. 2024, eq. 8. Known value: β = .1, r = 2, z = .5, liked -> .462570; disliked -> .537430.
    No gradient flows through z. The paper keeps λ_D n_D / λ_U n_U at or a little over 1, for n_D liked answers and n_U others.
    """
    logit = beta * (widen(logp) - widen(ref) - kl.detach())
    liked = label.to(logit.dtype)
    return liked * desirable_weight * torch.sigmoid(-logit) + (1 - liked) * undesirable_weight * torch.sigmoid(logit)


def kto_kl(logp_mismatched: Tensor, ref_mismatched: Tensor) -> Tensor:
    """z = max(0, 1/B Σᵢ log π(y_j|x_i) - log π_ref(y_j|x_i)),  j ≠ i: each prompt with another prompt's answer

    | symbol | name                            | shape | unit | range   |
    | ------ | ------------------------------- | ----- | ---- | ------- |
    | log π  | logp_mismatched, ref_mismatched | (B,)  | nats | (-∞, 0] |

    Source: Ethayarajh et al. 2024, sec. 4.1. Returns () without gradient; it is one number for the whole update, so average
    over all of its micro-batches. Known value: ratios (1, 2) -> 1.5; (-3, 1) -> 0.
    Raises ValueError for fewer than two rows: a prompt then has no other prompt's answer.
    """
    if logp_mismatched.numel() < 2:
        raise ValueError(
            "The KL term of KTO pairs each prompt with another prompt's answer, so it needs at least 2 rows. "
            f"Got: {logp_mismatched.numel()}. Use a batch of 2 or more, or z = 0."
        )
    return (widen(logp_mismatched) - widen(ref_mismatched)).mean().clamp(min=0).detach()


def mean_nll(logp_chosen: Tensor, length: Tensor) -> Tensor:
    """-log π(w) / |w|: added with a weight, it keeps the chosen answer's own likelihood from falling

    | symbol   | name        | shape | unit   | range            |
    | -------- | ----------- | ----- | ------ | ---------------- |
    | log π(w) | logp_chosen | (B,)  | nats   | (-∞, 0], summed  |
    | |w|      | length      | (B,)  | tokens | ≥ 0              |

    Source: Pang et al. 2024 ("Iterative reasoning preference optimization"), eq. 1. Returns (B,) nats per token.
    Known value: -6 over 3 tokens -> 2. An answer without a token gives 0.
    """
    return -widen(logp_chosen) / length.clamp(min=1)


def _mixed(if_chosen: Tensor, if_rejected: Tensor, preference: Tensor | None) -> Tensor:
    if preference is None:
        return if_chosen
    p = preference.to(if_chosen.dtype)
    return p * if_chosen + (1 - p) * if_rejected


def _flip_rate(label_smoothing: float) -> float:
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(
            f"The label smoothing must be in [0, 0.5): at half, labels say nothing. Got: {label_smoothing}."
        )
    return label_smoothing


_SMOOTHED = frozenset({"label_smoothing"})
preference_losses.add("sigmoid", PreferenceLoss(dpo))
preference_losses.add("cdpo", PreferenceLoss(cdpo, options=_SMOOTHED))
preference_losses.add("robust", PreferenceLoss(robust_dpo, options=_SMOOTHED))
preference_losses.add("ipo_summed", PreferenceLoss(ipo))
preference_losses.add("ipo_averaged", PreferenceLoss(ipo, length_averaged=True))
preference_losses.add("hinge", PreferenceLoss(hinge))
preference_losses.add(
    "kto", PreferenceLoss(kto, paired=False, options=frozenset({"desirable_weight", "undesirable_weight"}))
)
preference_losses.add("orpo", PreferenceLoss(orpo, needs_reference=False, length_averaged=True))
preference_losses.add(
    "simpo", PreferenceLoss(simpo, needs_reference=False, length_averaged=True, options=frozenset({"simpo_gamma"}))
)
