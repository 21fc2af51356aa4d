"""What must hold of every preference loss: symmetric, finite far out, the gradient of its equation, honest about its needs."""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thumbwheel.formulas import preference
from thumbwheel.formulas.bradley_terry import bradley_terry, bradley_terry_groups, group_pairs, logistic_loss

calm = settings(derandomize=True, deadline=None, max_examples=60)
OPTIONS = {"label_smoothing": 0.1, "simpo_gamma": 0.5}
LOSSES = preference.preference_losses
PAIRED = [name for name in LOSSES if LOSSES.get(name).paired]
logps = st.floats(-60, -0.01)
FAR = (0.0, 1.0, 100.0, 500.0, 1e4, 1e6)


def call(name: str, chosen: Tensor, rejected: Tensor, *, refs: tuple[Tensor, Tensor], p: Tensor | None) -> Tensor:
    loss = LOSSES.get(name)
    options = {key: OPTIONS[key] for key in loss.options}
    reference = refs if loss.needs_reference else ()
    return loss.fn(chosen, rejected, *reference, beta=0.1, preference=p, **options)


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", PAIRED)
@calm
@given(logps, logps, logps, logps, st.floats(0, 1))
def test_swapping_the_answers_and_the_label_changes_nothing(
    name: str, w: float, l: float, ref_w: float, ref_l: float, p: float
) -> None:
    """P2: no loss has a favourite side."""
    one = call(name, t(w), t(l), refs=(t(ref_w), t(ref_l)), p=t(p))
    other = call(name, t(l), t(w), refs=(t(ref_l), t(ref_w)), p=t(1 - p))
    assert one.item() == pytest.approx(other.item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", PAIRED)
@calm
@given(logps, logps, logps, logps)
def test_no_preference_means_certain(name: str, w: float, l: float, ref_w: float, ref_l: float) -> None:
    """P2."""
    refs = (t(ref_w), t(ref_l))
    bare, certain = call(name, t(w), t(l), refs=refs, p=None), call(name, t(w), t(l), refs=refs, p=t(1))
    assert bare.item() == pytest.approx(certain.item(), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in PAIRED if name != "simpo"])
@calm
@given(logps, logps, logps, logps, st.floats(0, 1))
def test_a_soft_label_is_the_mean_of_the_hard_ones(
    name: str, w: float, l: float, ref_w: float, ref_l: float, p: float
) -> None:
    """P2: (SimPO's margin goes with the label's strength, so there it is not.)"""
    refs = (t(ref_w), t(ref_l))
    hard, flipped, soft = (call(name, t(w), t(l), refs=refs, p=t(label)).item() for label in (1, 0, p))
    assert soft == pytest.approx(p * hard + (1 - p) * flipped, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("p", [None, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_log_ratios_stay_finite(name: str, p: float | None, dtype: torch.dtype) -> None:
    """P2: value and gradient at log-ratios of ±100 and far beyond, computed in float32 at least."""
    chosen, rejected = zip(*itertools.product(FAR, FAR), strict=True)
    logp = [torch.tensor([-x for x in side], dtype=dtype, requires_grad=True) for side in (chosen, rejected)]
    zeros = torch.zeros(len(chosen), dtype=dtype)
    target = None if p is None else torch.full((len(chosen),), p)
    loss = call(name, *logp, refs=(zeros, zeros), p=target)
    loss.sum().backward()
    assert loss.dtype is torch.float32
    assert loss.isfinite().all()
    for leaf in logp:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("ratio", [-1e6, -100.0, 0.0, 100.0, 1e6])
def test_far_thumbs_stay_finite(ratio: float) -> None:
    """P2: KTO, and its KL term."""
    logp = torch.tensor([ratio, ratio], requires_grad=True)
    kl = preference.kto_kl(logp, torch.zeros(2))
    loss = preference.kto(logp, torch.zeros(2), torch.tensor([True, False]), kl, beta=0.1)
    loss.sum().backward()
    assert kl.item() == max(0.0, ratio)
    assert loss.isfinite().all()
    assert logp.grad is not None
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize("name", PAIRED)
def test_gradients_are_those_of_the_equations(name: str) -> None:
    """P2: gradcheck in float64, on all four log-probabilities."""
    inputs = [t(-1.2, -3.0).requires_grad_(), t(-2.5, -0.4).requires_grad_()]
    refs = (t(-1.0, -2.0).requires_grad_(), t(-2.0, -1.0).requires_grad_())
    assert torch.autograd.gradcheck(lambda w, l, a, b: call(name, w, l, refs=(a, b), p=t(0.7, 1.0)), (*inputs, *refs))


def test_kto_has_the_gradient_of_its_equation() -> None:
    """P2: gradcheck in float64; the reference point is a constant."""
    label = t(1, 0, 0.3)
    assert torch.autograd.gradcheck(
        lambda x: preference.kto(x, t(-2, -2, -2), label, t(0.4)[0], beta=0.3), (t(-1, -3, -2.2).requires_grad_(),)
    )


@pytest.mark.parametrize("name", ["sigmoid", "hinge", "simpo", "orpo"])
@calm
@given(st.floats(-30, -0.1), st.floats(0.001, 20))
def test_a_better_chosen_answer_never_costs_more(name: str, l: float, step: float) -> None:
    """P2: on certain labels these fall as the chosen log-probability rises."""
    zeros = t(0)
    low = call(name, t(l - step), t(-2), refs=(zeros, zeros), p=None)
    high = call(name, t(l), t(-2), refs=(zeros, zeros), p=None)
    assert high.item() <= low.item()


@calm
@given(st.floats(-30, 30), st.floats(0, 0.45))
def test_robust_dpo_undoes_the_noise_on_average(h: float, noise: float) -> None:
    """P2: over labels flipped at rate ε its mean is the clean loss ln(1 + e^(-βh))."""
    zeros = t(0)

    def robust(gap: float) -> float:
        return preference.robust_dpo(t(gap), zeros, zeros, zeros, beta=1.0, label_smoothing=noise).item()

    mean = (1 - noise) * robust(h) + noise * robust(-h)
    assert mean == pytest.approx(max(-h, 0) + math.log1p(math.exp(-abs(h))), abs=1e-9)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_each_loss_says_what_it_takes(name: str) -> None:
    """P2: an option that a loss does not take can be refused, and one that it declares is a keyword of its function."""
    loss = LOSSES.get(name)
    parameters = inspect.signature(loss.fn).parameters
    keywords = {key for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords - {"beta", "preference"} == loss.options
    assert ("preference" in keywords) == loss.paired
    assert bool({"ref", "ref_chosen"} & set(parameters)) == loss.needs_reference


def test_which_loss_needs_what() -> None:
    """P2: from the papers: who has a reference, who averages over tokens, who takes single thumbs, who takes options."""
    needs = {
        name: (loss.needs_reference, loss.length_averaged, loss.paired, set(loss.options))
        for name, loss in ((name, LOSSES.get(name)) for name in LOSSES)
    }
    assert needs == {
        "sigmoid": (True, False, True, set()),
        "cdpo": (True, False, True, {"label_smoothing"}),
        "robust": (True, False, True, {"label_smoothing"}),
        "ipo_summed": (True, False, True, set()),
        "ipo_averaged": (True, True, True, set()),
        "hinge": (True, False, True, set()),
        "kto": (True, False, False, {"desirable_weight", "undesirable_weight"}),
        "orpo": (False, True, True, set()),
        "simpo": (False, True, True, {"simpo_gamma"}),
    }


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, 0.9, math.nan])
@pytest.mark.parametrize("name", ["cdpo", "robust"])
def test_label_smoothing_outside_its_range_is_refused(name: str, smoothing: float) -> None:
    """P2."""
    with pytest.raises(ValueError, match="label smoothing must be in"):
        LOSSES.get(name).fn(t(0), t(0), t(0), t(0), beta=0.1, label_smoothing=smoothing)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_tau_outside_its_range_is_refused(tau: float) -> None:
    """R1."""
    with pytest.raises(ValueError, match="tau must be in"):
        bradley_terry(t(1), t(0), tau=tau)


@calm
@given(st.floats(-40, 40), st.floats(-40, 40), st.floats(-1e3, 1e3), st.floats(0, 1), st.floats(0, 3))
def test_bradley_terry_sees_differences_only(w: float, l: float, shift: float, p: float, margin: float) -> None:
    """R1: only order is learned: a constant on both scores changes nothing, nor does swapping answers and label."""
    base = bradley_terry(t(w), t(l), margin=t(margin), preference=t(p)).item()
    shifted = bradley_terry(t(w + shift), t(l + shift), margin=t(margin), preference=t(p)).item()
    swapped = bradley_terry(t(l), t(w), margin=t(margin), preference=t(1 - p)).item()
    assert shifted == pytest.approx(base, abs=1e-9)
    assert swapped == pytest.approx(base, abs=1e-9)


@calm
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(-3, 3)), min_size=1, max_size=9))
def test_groups_against_writing_every_pair_out(answers: list[tuple[int, int, float]]) -> None:
    """R1: the loss over K(K-1)/2 pairs at once is the mean over groups of the mean over pairs, ties half each way."""
    per_group = []
    for group in {g for g, _, _ in answers}:
        losses = []
        for (_, grade_a, a), (_, grade_b, b) in itertools.combinations([x for x in answers if x[0] == group], 2):
            p = 0.5 if grade_a == grade_b else float(grade_a > grade_b)
            gap = (a - b) / 0.3
            losses.append(p * math.log1p(math.exp(-gap)) + (1 - p) * math.log1p(math.exp(gap)))
        if losses:
            per_group.append(sum(losses) / len(losses))
    group, grade = torch.tensor([x[0] for x in answers]), torch.tensor([x[1] for x in answers])
    score = torch.tensor([x[2] for x in answers], dtype=torch.float64)
    expected = sum(per_group) / len(per_group) if per_group else 0.0
    assert bradley_terry_groups(score, grade, group, tau=0.3).item() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(3))
    mixed = bradley_terry_groups(score[order], grade[order], group[order], tau=0.3)
    assert mixed.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_a_ranking_of_k_gives_every_pair_once(k: int) -> None:
    """R1: K(K-1)/2 pairs, better graded first, weights that sum to 1."""
    grade = torch.randperm(k, generator=torch.Generator().manual_seed(k))
    pairs = group_pairs(grade, torch.zeros(k, dtype=torch.long), keep_ties=True)
    assert len({frozenset(pair) for pair in zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)}) == (
        k * (k - 1) // 2
    )
    assert (grade[pairs.chosen] > grade[pairs.rejected]).all()
    if k > 1:
        assert pairs.weight.sum().item() == pytest.approx(1.0)


def test_logistic_loss_far_out() -> None:
    """R1: softplus grows like the gap itself, and its slope stays p-bounded."""
    z = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = logistic_loss(z, torch.tensor([1.0, 0.25]))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([1e4, 7500.0])
    assert z.grad is not None
    assert z.grad.tolist() == pytest.approx([-1.0, 0.75])
