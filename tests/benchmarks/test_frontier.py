"""The arithmetic of the frontier benchmark, and that it splits its texts; it is run at a toy's size where its data are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.frontier import Series, at_kl, best_of, possible
from benchmarks.frontier_work import TINY, Place, asked, best_possible, opened, pairs_of, small_model, texts_of


def place(kl: float, reward: float) -> Place:
    return Place(reward, 0.0, kl, 0.0, 1.0, 0.0)


def test_the_possible_is_the_kl_regularised_optimum() -> None:
    """Two answers of reward 0 and 1, e^(r/β) = 3: weights 1/4, 3/4; KL = .25 ln .5 + .75 ln 1.5."""
    reward, kl = best_possible(np.array([[0.0, 1.0]]), math.log(3))
    assert reward == pytest.approx(0.75)
    assert kl == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_no_pull_is_the_reference() -> None:
    assert best_possible(np.array([[0.0, 1.0], [0.5, 0.5]]), 0.0) == pytest.approx((0.5, 0.0))


def test_the_possible_is_not_passed_by_best_of_n() -> None:
    """With rewards without ties best of n is a policy of the pool, so its reward at its KL lies under the curve."""
    pool = np.random.default_rng(0).random((40, 64))
    curve = [(kl, reward) for reward, kl in possible(pool)]
    for spot in best_of(pool).last.values():
        if spot.kl < curve[-1][0]:
            assert spot.reward <= np.interp(spot.kl, *zip(*curve, strict=True)) + 1e-2


def test_best_of_one_is_the_mean() -> None:
    first = best_of(np.array([[0.0, 1.0], [1.0, 0.5]])).last["n 1"]
    assert (first.reward, first.kl) == (pytest.approx(0.625), 0.0)


def test_between_two_policies_the_reward_is_on_the_line() -> None:
    series = Series("x", {"a": place(0.0, 0.0), "b": place(2.0, 1.0)})
    assert at_kl(series, 0.5) == pytest.approx(0.25)
    assert at_kl(series, 2.5) is None


def test_a_pair_is_decided_by_the_reward_and_equal_ones_make_none() -> None:
    pairs = pairs_of([asked("So")], [[" bad", " good", " fine"]], np.array([[-1.0, 1.0, 1.0]]))
    assert [(one.chosen.content, one.rejected.content) for one in pairs] == [(" good", " bad"), (" fine", " bad")]


def test_no_prefix_is_on_two_sides_and_the_model_goes_on_with_one(shared_data: Path, tmp_path: Path) -> None:
    texts = texts_of(shared_data, TINY)
    assert len(texts.sentences) == TINY.texts
    assert len(texts.test) == TINY.test_prefixes
    assert not {*texts.train} & {*texts.test}
    model = opened(small_model(texts, TINY, tmp_path))
    row = model.template.encode(texts.test[0], " then")
    assert row.ids[-1] == 1
    assert model.tokenizer.decode(row.ids[:-1]) == texts.test[0][0].content + " then"
