"""The convex fit under the encoder reward model (R1): optimum by hand, derivatives by difference, folds by prompt."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from thumbwheel.train.pair_ridge import Comparisons, best_scale, crossed_gaps, fit_ridge, folds_of, log_loss_of


def made(n: int = 1, **columns: object) -> Comparisons:
    """n comparisons of answer 0 over answer 1, unless said otherwise."""
    plain = {
        "chosen": np.zeros(n, int), "rejected": np.ones(n, int), "preference": np.ones(n), "margin": np.zeros(n),
        "weight": np.ones(n), "group": np.arange(n),
    }  # fmt: skip
    return Comparisons(**{**plain, **{name: np.asarray(value) for name, value in columns.items()}})  # type: ignore[arg-type]


def random_pairs(seed: int = 0, answers: int = 30, n: int = 120, width: int = 5) -> tuple[np.ndarray, Comparisons]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(answers, width))
    left = rng.integers(answers, size=n)
    right = (left + rng.integers(1, answers, size=n)) % answers
    p = rng.choice([1.0, 0.5, 0.8], size=n)
    return features, made(
        n, chosen=left, rejected=right, preference=p, margin=rng.choice([0.0, 0.5], size=n),
        weight=rng.uniform(0.5, 1.5, size=n), group=left % 7,
    )  # fmt: skip


def objective(w: np.ndarray, x: np.ndarray, pairs: Comparisons, ridge: float, tau: float, centre: float) -> float:
    """The docstring's formula, written out again with numpy alone."""
    better, worse = (x @ w)[pairs.chosen], (x @ w)[pairs.rejected]
    p = pairs.preference
    z = (better - worse - (2 * p - 1) * pairs.margin) / tau
    loss = p * np.logaddexp(0, -z) + (1 - p) * np.logaddexp(0, z) + centre * (better + worse) ** 2
    return float((pairs.weight * loss).sum() + ridge / 2 * (w**2).sum())


def test_optimum_of_a_soft_label_by_hand() -> None:
    """P(better) = .75 and no ridge to speak of: the gap is ln 3 = 1.098612 (golden value of the logistic loss)."""
    x = np.array([[1.0], [0.0]])
    w = fit_ridge(x, made(preference=[0.75]), ridge=1e-9, tau=1.0, centre=0.0)
    assert w[0] == pytest.approx(math.log(3), abs=1e-6)
    w = fit_ridge(x, made(preference=[0.75]), ridge=1e-9, tau=0.2, centre=0.0)
    assert w[0] == pytest.approx(0.2 * math.log(3), abs=1e-6)
    w = fit_ridge(x, made(preference=[0.75], margin=[1.0]), ridge=1e-9, tau=1.0, centre=0.0)
    assert w[0] == pytest.approx(math.log(3) + 0.5, abs=1e-6)  # the margin counts (2p - 1) = ½


def test_a_tie_pulls_the_answers_together_and_weights_count() -> None:
    x = np.eye(2)
    assert fit_ridge(x, made(preference=[0.5]), ridge=0.1, tau=1.0, centre=0.0) == pytest.approx([0, 0], abs=1e-9)
    three = fit_ridge(x, made(2, preference=[1.0, 0.0], weight=[3.0, 1.0]), ridge=1e-9, tau=1.0, centre=0.0)
    assert three[0] - three[1] == pytest.approx(math.log(3), abs=1e-5)  # three votes against one


def test_centring_holds_the_sum_near_zero() -> None:
    """Of one pair with features (1), (2) the score's sum is 3w: a heavier centring must shrink it."""
    x = np.array([[-1.0], [-2.0]])
    free, held = (fit_ridge(x, made(), ridge=0.01, tau=1.0, centre=c)[0] for c in (0.0, 0.1))
    assert 0 < held < free / 3


@pytest.mark.parametrize(("ridge", "tau", "centre"), [(1.0, 1.0, 0.01), (0.1, 0.3, 0.0), (30.0, 2.0, 0.2)])
def test_no_direction_lowers_the_written_objective(ridge: float, tau: float, centre: float) -> None:
    x, pairs = random_pairs()
    w = fit_ridge(x, pairs, ridge=ridge, tau=tau, centre=centre)
    here = objective(w, x, pairs, ridge, tau, centre)
    rng = np.random.default_rng(1)
    for size in (1e-1, 1e-3):
        for _ in range(20):
            assert objective(w + size * rng.normal(size=5), x, pairs, ridge, tau, centre) > here
    for axis in np.eye(5):
        rise = objective(w + 1e-4 * axis, x, pairs, ridge, tau, centre) - here
        fall = objective(w - 1e-4 * axis, x, pairs, ridge, tau, centre) - here
        assert abs(rise - fall) / 2e-4 < 1e-4  # the slope, by central difference


def test_the_start_changes_nothing_and_answers_may_change_places() -> None:
    x, pairs = random_pairs()
    w = fit_ridge(x, pairs, ridge=0.5, tau=1.0, centre=0.01)
    far = fit_ridge(x, pairs, ridge=0.5, tau=1.0, centre=0.01, start=np.full(5, 40.0))
    np.testing.assert_allclose(far, w, atol=1e-5)
    turned = replace(pairs, chosen=pairs.rejected, rejected=pairs.chosen, preference=1 - pairs.preference)
    np.testing.assert_allclose(fit_ridge(x, turned, ridge=0.5, tau=1.0, centre=0.01), w, atol=1e-6)


def test_perfectly_separated_pairs_stay_finite() -> None:
    w = fit_ridge(np.array([[1e3], [-1e3]]), made(50), ridge=1e-3, tau=0.1, centre=0.0)
    assert np.isfinite(w).all()
    assert w[0] > 0


def test_folds_keep_prompts_whole_and_even() -> None:
    groups = np.repeat(np.arange(9), [40, 20, 20, 10, 10, 5, 5, 5, 5])
    folds = folds_of(groups, most=3, rng=np.random.default_rng(0))
    assert all(len(set(folds[groups == group])) == 1 for group in range(9))
    assert np.bincount(folds).tolist() == [40, 40, 40]


@pytest.mark.parametrize(("groups", "folds"), [([0, 0, 0, 0], 3), ([0, 1], 2), ([5], 1), ([0, 1, 2, 3, 4, 5, 6], 3)])
def test_folds_of_little(groups: list[int], folds: int) -> None:
    found = folds_of(np.array(groups), most=3, rng=np.random.default_rng(0))
    assert len(set(found.tolist())) == folds


def test_crossed_gaps_have_not_seen_their_group() -> None:
    """Labels of a group turned round must not move that group's own gaps; those of the others must move."""
    x, pairs = random_pairs()
    folds = folds_of(pairs.group, most=7, rng=np.random.default_rng(0))
    one = folds == 0
    turned = replace(pairs, preference=np.where(one, 1 - pairs.preference, pairs.preference))
    before, after = (crossed_gaps(x, p, folds, ridges=(9.0, 1.0), tau=1.0, centre=0.0) for p in (pairs, turned))
    np.testing.assert_allclose(after[:, one], before[:, one], atol=1e-8)
    assert np.abs(after[:, ~one] - before[:, ~one]).max() > 1e-3


def test_scale_that_makes_gaps_believed() -> None:
    """With the added tie, gap 2 right in 3 of 4 pairs: σ(2s) = 3.5/5, so s = ln(7/3)/2; 4 of 4: σ(2s) = .9, s = ln 9/2."""
    four = made(4, preference=[1, 1, 1, 0])
    assert best_scale(np.full(4, 2.0), four) == pytest.approx(math.log(7 / 3) / 2, abs=1e-6)
    assert best_scale(np.full(4, 2.0), made(4)) == pytest.approx(math.log(9) / 2, abs=1e-6)
    assert best_scale(np.full(4, -2.0), four) == pytest.approx(0.01, rel=1e-3), (
        "gaps that are wrong are hardly believed"
    )


def test_log_loss_of_a_gap() -> None:
    """Golden values: gap .8 -> .371101, swapped 1.171101; no gap -> ln 2."""
    four = made(4, preference=[1, 1, 1, 0])
    assert log_loss_of(np.zeros(4), four) == pytest.approx(math.log(2))
    assert log_loss_of(np.array([0.8]), made()) == pytest.approx(0.371101, abs=1e-6)
    assert log_loss_of(np.array([0.8]), made(preference=[0.0])) == pytest.approx(1.171101, abs=1e-6)
