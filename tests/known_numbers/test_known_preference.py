"""Preference losses at values worked out by hand: value, gradient, and where each is lowest."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from thumbwheel.formulas import preference
from thumbwheel.formulas.bradley_terry import bradley_terry, bradley_terry_groups, centring, group_pairs

BETA = 0.1


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pair(h: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities whose log-ratio gap is h: chosen moved by +2h, rejected by +h."""
    return t(-20 + 2 * h), t(-30 + h), t(-20), t(-30)


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> list[float]:
    x = at.clone().requires_grad_()
    loss(x).sum().backward()
    assert x.grad is not None
    values: list[float] = x.grad.tolist()
    return values


@pytest.mark.parametrize(
    ("name", "beta_h", "options", "expected"),
    [
        ("sigmoid", 0.2, {}, 0.598139),
        ("sigmoid", 0.0, {}, 0.693147),
        ("cdpo", 0.2, {"label_smoothing": 0.1}, 0.618139),
        ("robust", 0.2, {"label_smoothing": 0.1}, 0.573139),
        ("hinge", 0.2, {}, 0.8),
        ("hinge", 1.5, {}, 0.0),
    ],
)
def test_values_of_the_paired_losses(name: str, beta_h: float, options: dict[str, float], expected: float) -> None:
    """P2."""
    loss = preference.preference_losses.get(name)
    assert loss.fn(*pair(beta_h / BETA), beta=BETA, **options).item() == pytest.approx(expected, abs=1e-6)


def test_first_dpo_step_pushes_by_half_beta() -> None:
    """P2: at π = π_ref the loss is ln 2, the gradient -β/2 on the chosen and +β/2 on the rejected log-probability."""
    chosen, rejected, ref_chosen, ref_rejected = (x.requires_grad_() for x in pair(0.0))
    loss = preference.dpo(chosen, rejected, ref_chosen, ref_rejected, beta=BETA)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert chosen.grad.item() == pytest.approx(-0.05, abs=1e-12)
    assert rejected.grad.item() == pytest.approx(0.05, abs=1e-12)


def test_ipo_has_two_meanings() -> None:
    """P2: h_w = 3 over 6 tokens, h_l = 1 over 2 tokens, β = .1: summed (2 - 5)² = 9, averaged (0 - 5)² = 25."""
    summed = preference.ipo(t(3), t(1), t(0), t(0), beta=0.1)
    averaged = preference.ipo(t(3 / 6), t(1 / 2), t(0), t(0), beta=0.1)
    assert summed.item() == pytest.approx(9.0, abs=1e-12)
    assert averaged.item() == pytest.approx(25.0, abs=1e-12)
    assert gradient(lambda x: preference.ipo(x, t(1), t(0), t(0), beta=0.1), t(3)) == pytest.approx([-6.0])
    assert not preference.preference_losses.get("ipo_summed").length_averaged
    assert preference.preference_losses.get("ipo_averaged").length_averaged


@pytest.mark.parametrize("p", [0.75, 0.5, 0.1])
def test_where_each_loss_is_lowest(p: float) -> None:
    """P2: DPO at βh = ln(p/(1-p)) (p = .75: 1.098612), IPO at h = (p - ½)/τ; the slope there is 0 and turns its sign."""
    log_odds = {0.75: 1.098612, 0.5: 0.0, 0.1: -2.197225}[p]
    target = t(p)
    zeros = t(0)
    for lowest, loss in (
        (log_odds / BETA, lambda h: preference.dpo(h, zeros, zeros, zeros, beta=BETA, preference=target)),
        ((p - 0.5) / BETA, lambda h: preference.ipo(h, zeros, zeros, zeros, beta=BETA, preference=target)),
    ):
        assert gradient(loss, t(lowest)) == pytest.approx([0.0], abs=1e-6)
        assert gradient(loss, t(lowest - 0.5))[0] < 0 < gradient(loss, t(lowest + 0.5))[0]


def test_cdpo_is_stationary_at_the_log_odds_of_the_noise() -> None:
    """P2: ε = .1 -> βh = ln(.9/.1) = 2.197225."""
    zeros = t(0)

    def loss(h: Tensor) -> Tensor:
        return preference.cdpo(h, zeros, zeros, zeros, beta=BETA, label_smoothing=0.1)

    assert gradient(loss, t(21.97225)) == pytest.approx([0.0], abs=1e-7)
    assert gradient(loss, t(21.0))[0] < 0 < gradient(loss, t(23.0))[0]


def test_orpo() -> None:
    """P2: averages -2 and -5: log-odds 3.138653, loss .042428; with the likelihood 2 + .1 · .042428."""
    assert (preference.log_odds(t(-2)) - preference.log_odds(t(-5))).item() == pytest.approx(3.138653, abs=1e-6)
    assert preference.odds_ratio(t(-2), t(-5)).item() == pytest.approx(0.042428, abs=1e-6)
    assert preference.orpo(t(-2), t(-5), beta=0.1).item() == pytest.approx(2.004243, abs=1e-6)
    # d/dl log odds = 1/(1 - e^l); slope -σ(-3.138653) = -.041540, over 1 - e^-2 = .864665
    assert gradient(lambda x: preference.odds_ratio(x, t(-5)), t(-2)) == pytest.approx([-0.048042], abs=1e-6)


def test_simpo() -> None:
    """P2: β(l_w - l_l) - γ = 2·1 - .5 = 1.5, -log σ(1.5) = .201413, slope -β σ(-1.5) = -.364851."""
    assert preference.simpo(t(-1), t(-2), beta=2.0, simpo_gamma=0.5).item() == pytest.approx(0.201413, abs=1e-6)
    slope = gradient(lambda x: preference.simpo(x, t(-2), beta=2.0, simpo_gamma=0.5), t(-1))
    assert slope == pytest.approx([-0.364851], abs=1e-6)


def test_kto() -> None:
    """P2: β = .1, r = 2, KL = .5: liked 1 - σ(.15) = .462570, disliked .537430; slope ∓β σ(.15)σ(-.15) = ∓.024860."""
    logp, ref, label = t(-8, -8), t(-10, -10), torch.tensor([True, False])
    assert preference.kto(logp, ref, label, t(0.5)[0], beta=0.1).tolist() == pytest.approx(
        [0.462570, 0.537430], abs=1e-6
    )
    slope = gradient(lambda x: preference.kto(x, ref, label, t(0.5)[0], beta=0.1), logp)
    assert slope == pytest.approx([-0.024860, 0.024860], abs=1e-6)
    weighted = preference.kto(logp, ref, label, t(0.5)[0], beta=0.1, desirable_weight=2.0, undesirable_weight=3.0)
    assert weighted.tolist() == pytest.approx([0.925140, 1.612290], abs=1e-5)


def test_kto_kl_is_never_negative_and_carries_no_gradient() -> None:
    """P2: ratios (1, 2) -> 1.5; (-3, 1) -> 0."""
    logp = t(-1, -2).requires_grad_()
    kl = preference.kto_kl(logp, t(-2, -4))
    assert kl.item() == 1.5
    assert not kl.requires_grad
    assert preference.kto_kl(t(-5, -1), t(-2, -2)).item() == 0.0


def test_kto_kl_refuses_a_batch_of_one() -> None:
    """P2: a lone prompt has no other prompt's answer."""
    with pytest.raises(ValueError, match=r"at least 2 rows.*Got: 1"):
        preference.kto_kl(t(-1), t(-2))


def test_mean_nll_and_implicit_reward() -> None:
    """P2: -(-6)/3 = 2 with slope -⅓; .1 · (-1 + 3) = .2."""
    assert preference.mean_nll(t(-6, -6, 0), torch.tensor([3, 1, 0])).tolist() == [2.0, 6.0, 0.0]
    assert gradient(lambda x: preference.mean_nll(x, torch.tensor([3])), t(-6)) == pytest.approx([-1 / 3])
    assert preference.implicit_reward(t(-1), t(-3), beta=0.1).item() == pytest.approx(0.2)


def test_log_ratio_gap() -> None:
    """P2: (-1 + 2) - (-4 + 3) = 2."""
    assert preference.log_ratio_gap(t(-1), t(-4), t(-2), t(-3)).item() == 2.0


def test_bradley_terry_values() -> None:
    """R1: gap .8 -> .371101, swapped 1.171101, margin .5 -> .554355; a tie is the mean of both directions."""
    assert bradley_terry(t(0.8), t(0)).item() == pytest.approx(0.371101, abs=1e-6)
    assert bradley_terry(t(0), t(0.8)).item() == pytest.approx(1.171101, abs=1e-6)
    assert bradley_terry(t(0.8), t(0), margin=t(0.5)).item() == pytest.approx(0.554355, abs=1e-6)
    assert bradley_terry(t(0.8), t(0), preference=t(0.5)).item() == pytest.approx(0.771101, abs=1e-6)
    assert bradley_terry(t(0.8), t(0), margin=t(0.5), preference=t(0.5)).item() == pytest.approx(0.771101, abs=1e-6)
    assert bradley_terry(t(0.16), t(0), tau=0.2).item() == pytest.approx(0.371101, abs=1e-6)


def test_bradley_terry_gradients() -> None:
    """R1: slope on the chosen score is σ(d) - p, over τ: σ(.8) = .689974."""
    assert gradient(lambda r: bradley_terry(r, t(0)), t(0.8)) == pytest.approx([-0.310026], abs=1e-6)
    assert gradient(lambda r: bradley_terry(r, t(0), tau=0.2), t(0.16)) == pytest.approx([-1.550128], abs=1e-5)
    assert gradient(lambda r: bradley_terry(r, t(0), preference=t(0.5)), t(0.8)) == pytest.approx([0.189974], abs=1e-6)
    assert gradient(lambda r: bradley_terry(r, t(0), preference=t(0.75)), t(1.098612)) == pytest.approx([0.0], abs=1e-6)


def test_all_pairs_of_a_ranked_group() -> None:
    """R1: grades (3, 1, 2): three pairs, a third each; scores (1, 0, -1) as ranked: ⅓(2·.313262 + .126928) = .251151."""
    pairs = group_pairs(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([7, 7, 7]), keep_ties=True)
    assert pairs.chosen.tolist() == [0, 0, 2]
    assert pairs.rejected.tolist() == [1, 2, 1]
    assert pairs.preference.tolist() == [1.0, 1.0, 1.0]
    assert pairs.weight.tolist() == pytest.approx([1 / 3] * 3)
    loss = bradley_terry_groups(t(1, 0, -1), torch.tensor([3, 2, 1]), torch.tensor([0, 0, 0]))
    assert loss.item() == pytest.approx(0.251151, abs=1e-6)


def test_ties_in_a_group_are_half_or_left_out() -> None:
    """R1: grades (2, 1, 1): the tied pair counts half each way, or is no pair."""
    grade, group = torch.tensor([2.0, 1.0, 1.0]), torch.zeros(3, dtype=torch.long)
    kept, without = (group_pairs(grade, group, keep_ties=keep) for keep in (True, False))
    assert kept.preference.tolist() == [1.0, 1.0, 0.5]
    assert without.preference.tolist() == [1.0, 1.0]
    assert without.weight.tolist() == [0.5, 0.5]
    # Scores (0, 0, 2): ⅓(ln 2 + softplus(2) + ½(softplus(2) + softplus(-2))), softplus(2) = 2.126928
    loss = bradley_terry_groups(t(0, 0, 2), grade, group)
    assert loss.item() == pytest.approx((0.693147 + 2.126928 + 0.5 * (2.126928 + 0.126928)) / 3, abs=1e-6)


def test_unknown_grades_and_lone_answers_are_in_no_pair() -> None:
    """R1: unknown is not zero."""
    grade, group = torch.tensor([math.nan, 1.0, 2.0, 3.0]), torch.tensor([0, 0, 0, 1])
    pairs = group_pairs(grade, group, keep_ties=True)
    assert (pairs.chosen.tolist(), pairs.rejected.tolist()) == ([2], [1])
    score = t(0, 0, 0, 0).requires_grad_()
    loss = bradley_terry_groups(score, torch.full((4,), math.nan), group)
    loss.backward()
    assert loss.item() == 0.0
    assert score.grad is not None
    assert score.grad.tolist() == [0.0] * 4


def test_centring() -> None:
    """R1, R7: (2 - 1)² = 1, slope 2 on both."""
    assert centring(t(2), t(-1)).item() == 1.0
    assert gradient(lambda r: centring(r, t(-1)), t(2)) == [2.0]
    assert gradient(lambda r: centring(t(2), r), t(-1)) == [2.0]
