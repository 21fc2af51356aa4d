"""Running scales: against plain arithmetic over all that was seen, however it came."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.errors import CheckpointError, SettingError, TrainingError
from thumbwheel.signals.reward_scale import RunningScale

NAN = math.nan
calm = settings(derandomize=True, deadline=None, max_examples=80)
batches = st.lists(st.lists(st.floats(-100, 100) | st.just(NAN), max_size=6), min_size=1, max_size=6)


def test_one_to_nine_in_three_batches() -> None:
    """R7: unbiased ±1.460593, 1.095445, .730297, .365148, 0; as a range ±1, .75, .5, .25, 0."""
    z, span = RunningScale("z_score"), RunningScale("range")
    for batch in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
        z, span = z.after(batch), span.after(batch)
    assert z.apply(range(1, 10)).tolist() == pytest.approx(
        [-1.460593, -1.095445, -0.730297, -0.365148, 0.0, 0.365148, 0.730297, 1.095445, 1.460593], abs=1e-6
    )
    assert span.apply(range(1, 10)).tolist() == pytest.approx([-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1])
    assert RunningScale("none").after([1, 2]).apply([5.0]).tolist() == [5.0]


def test_clipping() -> None:
    """R7: mean 0, deviation √2: 10 is 7.07 deviations, kept within 5; a range never leaves [-1, 1], or the clip inside it."""
    z = RunningScale("z_score", clip=5.0).after([-1.0, 1.0])
    assert z.apply([10.0, -10.0, 1.0]).tolist() == pytest.approx([5.0, -5.0, 0.707107], abs=1e-6)
    span = RunningScale("range").after([0.0, 4.0])
    assert span.apply([-3.0, 1.0, 9.0]).tolist() == [-1.0, -0.5, 1.0]
    assert RunningScale("range", clip=0.4).after([0.0, 4.0]).apply([0.0, 2.0]).tolist() == [-0.4, 0.0]
    assert RunningScale("none", clip=2.0).apply([3.0]).tolist() == [2.0]


@calm
@given(batches)
def test_as_if_all_had_come_at_once(seen: list[list[float]]) -> None:
    """R7: mean and deviation over every reward so far, missing ones left out; state through JSON at every step."""
    z, span = RunningScale("z_score"), RunningScale("range")
    for batch in seen:
        z = z.restored(json.loads(json.dumps(z.after(batch).state())))
        span = span.restored(json.loads(json.dumps(span.after(batch).state())))
    flat = np.asarray([x for batch in seen for x in batch], dtype=np.float64)
    there = flat[~np.isnan(flat)]
    assert z.count == len(there)
    if len(there) == 0:
        assert np.isnan(z.apply(flat)).all()
        return
    scaled, ranged = z.apply(flat), span.apply(flat)
    assert (np.isnan(scaled) == np.isnan(flat)).all()
    assert (np.isnan(ranged) == np.isnan(flat)).all()
    if np.ptp(there) == 0:
        assert not scaled[~np.isnan(flat)].any()
        assert not ranged[~np.isnan(flat)].any()
    elif np.ptp(there) > 1e-3:
        assert scaled[~np.isnan(flat)].tolist() == pytest.approx(
            ((there - there.mean()) / there.std(ddof=1)).tolist(), abs=1e-6
        )
        assert ranged[~np.isnan(flat)].tolist() == pytest.approx(
            (2 * (there - there.min()) / np.ptp(there) - 1).tolist(), abs=1e-9
        )


@pytest.mark.parametrize("value", [0.3, 1e-300, -7.7e90])
@pytest.mark.parametrize("kind", ["z_score", "range"])
def test_equal_rewards_have_no_scale(kind: str, value: float) -> None:
    """R7: exactly 0, however often they came and whatever rounding did; one reward alone too."""
    scale = RunningScale(kind)  # type: ignore[arg-type]
    for _ in range(5):
        scale = scale.after([value] * 7)
        assert scale.apply([value, NAN]).tolist() == pytest.approx([0.0, NAN], nan_ok=True)
    assert RunningScale(kind).after([value]).apply([value]).tolist() == [0.0]  # type: ignore[arg-type]


def test_tiny_differences_do_not_divide_by_zero() -> None:
    """R7: a deviation too small for its square is no scale."""
    assert RunningScale("z_score").after([0.0, 1e-200]).apply([1e-200]).tolist() == [0.0]


def test_a_far_offset_keeps_its_digits() -> None:
    """R7: a million off zero, deviation 1: the sum of squares is of differences."""
    scale = RunningScale("z_score")
    for _ in range(100):
        scale = scale.after([1e6 - 1, 1e6, 1e6 + 1])
    assert scale.apply([1e6 + 1])[0] == pytest.approx(math.sqrt(299 / 200), rel=1e-6)


def test_what_is_infinite_or_was_never_seen_is_an_error() -> None:
    """R7."""
    with pytest.raises(TrainingError, match="finite"):
        RunningScale().after([math.inf])
    with pytest.raises(TrainingError, match="finite"):
        RunningScale("none").apply([-math.inf])
    with pytest.raises(TrainingError, match=r"within ±1e\+100.*2e\+200"):
        RunningScale().after([1.0, NAN, 2e200])
    with pytest.raises(TrainingError, match="Call `after`"):
        RunningScale("range").apply([1.0])
    assert RunningScale("z_score").apply([]).shape == (0,)


def test_settings_out_of_range_are_refused() -> None:
    """R7."""
    for bad in ({"kind": "zscore"}, {"clip": 0.0}, {"clip": NAN}):
        with pytest.raises(SettingError, match="reward scale"):
            RunningScale(**bad)  # type: ignore[arg-type]


def test_the_state_of_another_scale_is_refused() -> None:
    """R7, X4."""
    scale = RunningScale("z_score").after([1.0, 2.0])
    good = scale.state()
    assert RunningScale("z_score").restored(good) == scale
    for bad in (
        {},
        {**good, "kind": "range"},
        {**good, "mean": None},
        {**good, "mean": NAN},
        {**good, "count": -1},
        {**good, "x": 1},
    ):
        with pytest.raises(CheckpointError, match="reward scale"):
            scale.restored(bad)
