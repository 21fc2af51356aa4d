"""Agreement against its definition by pairs, and what must not change it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.formulas.agreement import Level, cohen_kappa, fleiss_kappa, krippendorff_alpha, majority, raw_agreement
from thumbwheel.formulas.gold_control import cusum_step, plain_shortfall
from thumbwheel.formulas.strengths import bradley_terry_strengths

calm = settings(derandomize=True, deadline=None, max_examples=80)
LEVELS: tuple[Level, ...] = ("nominal", "ordinal", "interval", "ratio")
rating = st.one_of(st.none(), st.integers(0, 4))
tables = st.integers(1, 6).flatmap(
    lambda units: st.lists(st.lists(rating, min_size=units, max_size=units), min_size=1, max_size=4)
)


def alpha_by_pairs(table: list[list[int | None]], level: Level) -> float | None:
    """1 - (mean distance of pairs within units) / (mean distance of all pairs of pairable ratings)."""
    units = [[v for v in column if v is not None] for column in zip(*table, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    everything = [v for unit in units for v in unit]

    def distance(a: int, b: int) -> float:
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return float((a - b) ** 2)
        if level == "ratio":
            return 0.0 if a == b else ((a - b) / (a + b)) ** 2
        between = sum(min(a, b) <= v <= max(a, b) for v in everything)
        return 0.0 if a == b else (between - (everything.count(a) + everything.count(b)) / 2) ** 2

    n = len(everything)
    expected = sum(distance(a, b) for a, b in itertools.permutations(everything, 2)) / max(1, n * (n - 1))
    if expected == 0:
        return None
    observed = sum(sum(distance(a, b) for a, b in itertools.permutations(u, 2)) / (len(u) - 1) for u in units) / n
    return 1 - observed / expected


@pytest.mark.parametrize("level", LEVELS)
@calm
@given(tables)
def test_alpha_against_its_definition(level: Level, table: list[list[int | None]]) -> None:
    """Q4: with gaps; the order of raters and units does not matter; never above 1."""
    value = krippendorff_alpha(table, level=level).value
    expected = alpha_by_pairs(table, level)
    if expected is None:
        assert value is None
        return
    assert value == pytest.approx(expected, abs=1e-9)
    dice = random.Random(1)
    order = list(range(len(table[0])))
    dice.shuffle(order)
    mixed = [[row[i] for i in order] for row in reversed(table)]
    assert krippendorff_alpha(mixed, level=level).value == pytest.approx(expected, abs=1e-9)
    assert value <= 1 + 1e-12


@calm
@given(tables, st.integers(1, 9))
def test_alpha_knows_its_level(table: list[list[int | None]], scale: int) -> None:
    """Q4: nominal is blind to names, ordinal to any rising change, interval to shift and scale, ratio to scale."""
    changes = (
        ("nominal", lambda v: f"n{-v}"),
        ("ordinal", lambda v: v**3 + 7),
        ("interval", lambda v: scale * v + 5),
        ("ratio", lambda v: scale * v),
    )
    for level, change in changes:
        plain = krippendorff_alpha(table, level=level).value  # type: ignore[arg-type]
        renamed = [[None if v is None else change(v) for v in row] for row in table]
        changed = krippendorff_alpha(renamed, level=level).value  # type: ignore[arg-type]
        assert changed == (None if plain is None else pytest.approx(plain, abs=1e-9))


def test_a_table_of_numpy_is_a_table() -> None:
    """Q4: NaN of either float type is a missing rating."""
    for kind in (np.float32, np.float64):
        table = np.array([[1, 1, 2], [1, 1, np.nan], [np.nan, 1, 2]], dtype=kind)
        assert krippendorff_alpha(table, level="interval").value == 1.0  # type: ignore[arg-type]
        assert raw_agreement(table).value == 1.0  # type: ignore[arg-type]


@calm
@given(tables)
def test_raw_agreement_against_counting(table: list[list[int | None]]) -> None:
    """Q4."""
    pairs = [
        a == b
        for column in zip(*table, strict=True)
        for a, b in itertools.combinations([v for v in column if v is not None], 2)
    ]
    assert raw_agreement(table).value == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@calm
@given(st.lists(st.tuples(rating, rating), max_size=20))
def test_cohen_kappa_is_symmetric(rows: list[tuple[int | None, int | None]]) -> None:
    """Q4: and 1 where both always agree on more than one label."""
    first, second = [a for a, _ in rows], [b for _, b in rows]
    ours, theirs = cohen_kappa(first, second).value, cohen_kappa(second, first).value
    assert ours == (None if theirs is None else pytest.approx(theirs))
    self_agreement = cohen_kappa(first, first).value
    assert self_agreement == (pytest.approx(1.0) if len({a for a in first if a is not None}) > 1 else None)


@calm
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_fleiss_kappa_ignores_order_and_names(counts: list[list[int]]) -> None:
    """Q4: and units with fewer than two raters."""
    value = fleiss_kappa(counts).value
    changed = [[c, a, b] for a, b, c in reversed(counts)] + [[1, 0, 0], [0, 0, 0]]
    other = fleiss_kappa(changed).value
    assert other == (None if value is None else pytest.approx(value))
    assert value is None or value <= 1 + 1e-12


@pytest.mark.parametrize("counts", [[[1, -1]], [[0.5, 1.5]], [1, 2]])
def test_fleiss_kappa_refuses_what_are_no_counts(counts: list[object]) -> None:
    """Q4."""
    with pytest.raises(ValueError, match="whole numbers"):
        fleiss_kappa(counts)  # type: ignore[arg-type]


@calm
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_the_majority_does_not_depend_on_order_or_names(votes: list[str]) -> None:
    """Q4: turning the alphabet round turns the winner round, ties stay ties."""
    turned = {"a": "c", "b": "b", "c": "a"}
    ours, theirs = majority(votes), majority([turned[v] for v in reversed(votes)])
    assert {turned[str(v)] for v in ours.leaders} == set(theirs.leaders)
    assert ours.tied == theirs.tied
    assert (ours.value is None) == ours.tied
    assert ours.votes == max(votes.count(v) for v in votes)


@calm
@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=5))
def test_strengths_come_back_from_the_wins_they_predict(strengths: list[float]) -> None:
    """Q4: 10 sᵢ/(sᵢ + sⱼ) wins of i over j have the maximum of the likelihood at s; doubling all wins changes nothing."""
    s = np.array(strengths)
    wins = 10 * s[:, None] / (s[:, None] + s[None, :])
    np.fill_diagonal(wins, 0)
    for table in (wins, 2 * wins):
        assert bradley_terry_strengths(table).values == pytest.approx(tuple(s / s.sum()), abs=1e-5)
    order = np.argsort(s)
    mixed = bradley_terry_strengths(wins[np.ix_(order, order)]).values
    assert mixed == pytest.approx(tuple(np.sort(s) / s.sum()), abs=1e-5)


@pytest.mark.parametrize("wins", [[[0, 1], [1, 1]], [[0, -1], [1, 0]], [[0, np.nan], [1, 0]]])
def test_tables_of_wins_that_cannot_be_are_refused(wins: list[list[float]]) -> None:
    """Q4."""
    with pytest.raises(ValueError, match="0 on the diagonal"):
        bradley_terry_strengths(wins)


@pytest.mark.parametrize("wins", [[[0]], [[0, 1, 2], [1, 0, 2]], []])
def test_tables_of_wins_must_be_square(wins: list[list[float]]) -> None:
    """Q4."""
    with pytest.raises(ValueError, match="square table"):
        bradley_terry_strengths(wins)


@calm
@given(st.floats(0.2, 0.99), st.floats(0, 5))
def test_cusum_rises_on_a_wrong_gold_only(accuracy: float, state: float) -> None:
    """Q5: and is never negative."""
    assert cusum_step(state, wrong=True, accuracy=accuracy) > state
    right = cusum_step(state, wrong=False, accuracy=accuracy)
    assert right >= 0
    assert right < state or state == 0


def test_plain_rule_refuses_impossible_counts() -> None:
    """Q5."""
    with pytest.raises(ValueError, match="between 0 and n"):
        plain_shortfall(11, 10, accuracy=0.9)
