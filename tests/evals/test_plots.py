"""Plots: where points fall, in literals; never broken by odd numbers or names."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from thumbwheel.evals.plots import Axis, Series, Spot, frontier, lines, round_step, running_mean, scatter, tick_text


@pytest.mark.parametrize(
    ("rough", "step"), [(0.3, 0.5), (7, 10), (2.1, 2.5), (1, 1), (0.02, 0.02), (1e-7, 1e-7), (430, 500), (0.11, 0.2)]
)
def test_steps_are_round(rough: float, step: float) -> None:
    """E7: 1, 2, 2.5 or 5 times a power of ten."""
    assert round_step(rough) == pytest.approx(step)


def test_an_axis_ends_on_ticks_and_maps_linearly() -> None:
    """E7: .13 to .87 -> 0 to 1 in steps of .2; .5 is in the middle."""
    axis = Axis.over([0.13, 0.87], 0, 100)
    assert axis.ticks == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0))
    assert [axis.at(0), axis.at(0.5), axis.at(1)] == [0, 50, 100]
    tight = Axis.over([1, 96], 0, 100, tight=True)
    assert (tight.low, tight.high) == (1, 96)
    assert tight.ticks == pytest.approx((25, 50, 75))


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0, 1e-300, 1e300])
def test_a_constant_has_room_around_it(value: float) -> None:
    """E7: one value is drawn inside, not divided by 0."""
    axis = Axis.over([value, value], 0, 100)
    assert 0 < axis.at(value) < 100


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(0.25, 0.25, "0.25"), (0.5, 0.5, "0.5"), (-0.2, 0.2, "−0.2"), (2, 1, "2"), (0.1 + 0.2, 0.1, "0.3"), (1e-17, 0.1, "0"),
     (2.5, 2.5, "2.5"), (250_000, 50_000, "2.5e5"), (0.00002, 0.00001, "2e−5"),
     (-1_500_000, 500_000, "−1.5e6")],
)  # fmt: skip
def test_ticks_read_well(value: float, step: float, text: str) -> None:
    """E7: as many decimals as the step needs; a true minus sign."""
    assert tick_text(value, step) == text


def test_running_mean() -> None:
    """E7: three wide, by hand; fewer at the ends; a width of 0 or 1 changes nothing."""
    assert running_mean(np.array([0.0, 3.0, 6.0]), 3).tolist() == [1.5, 3.0, 4.5]
    assert running_mean(np.array([1.0, 2.0]), 0).tolist() == [1.0, 2.0]


def test_points_fall_where_they_should() -> None:
    """E7: two points from corner to corner of the frame (x 52 to 408, y 194 to 12)."""
    svg = lines([Series("loss", [0, 1], [0.0, 1.0])], x_label="step", label="Loss")
    assert re.search(r'class="line s0" points="52.0,194.0 408.0,12.0"', svg)


def test_a_long_run_makes_no_long_page() -> None:
    """E7: 100 000 steps are drawn with at most 400 points a line, and smoothed."""
    steps = list(range(100_000))
    svg = lines([Series("loss", steps, [math.sin(i / 9) for i in steps])], x_label="step", label="Loss")
    assert len(svg) < 20_000
    assert 'class="raw s0"' in svg


def test_gaps_and_infinities_are_left_out() -> None:
    """E7: NaN and infinity are not drawn; nothing finite is no plot."""
    svg = lines([Series("a", [0, 1, 2, 3], [1.0, math.nan, math.inf, 2.0])], x_label="step", label="x")
    assert svg.count(",") == 2
    assert "nan" not in svg
    assert "inf" not in svg
    assert lines([Series("a", [0], [math.nan])], x_label="step", label="x") == ""
    assert lines([], x_label="step", label="x") == ""
    assert scatter([("p", math.nan, 1.0, 3.0)], x_label="x", label="y") == ""


def test_one_point_is_a_dot() -> None:
    """E7: a single held-out evaluation shows."""
    assert "<circle" in lines([Series("a", [3], [0.5])], x_label="step", label="x")


def test_names_cannot_break_out() -> None:
    """E7: every text is escaped; what comes out is well-formed."""
    bad = '"><script>alert(1)</script>&'
    for svg in (
        lines([Series(bad, [0, 1], [0, 1])], x_label=bad, label=bad),
        lines([Series(bad, [0], [0])], x_label=bad, label=bad),
        scatter(
            [(bad, 0.2, 0.3, 4.0), (bad, 0.5, 0.5, 4.0)], x_label=bad, label=bad, diagonal=True, joined=True, named=True
        ),
    ):
        assert "<script" not in svg
        assert ElementTree.fromstring(str(svg)).tag == "svg"


def test_error_bars_end_where_they_should() -> None:
    """P7: y from 0 to 4 on pixels 194 to 12, 45.5 a unit. 2 ± 1 ends at 148.5 and 57.5; x of 5 in 0 to 10 is at 230."""
    svg = frontier(
        [Spot("end", 10, 4), Spot("0.1", 5, 2, reach=1, ringed=True), Spot("start", 0, 0, reach=math.inf)],
        x_label="KL",
        label="x",
    )
    assert 'class="whisker s0" d="M230.0 148.5V57.5M226.0 148.5h8M226.0 57.5h8"' in svg
    assert svg.count("whisker") == 1  # a bar without an end, or without a length, is none
    assert '<circle class="ring s0" cx="230.0" cy="103.0" r="9"/>' in svg
    assert svg.count('class="ring') == 1
    assert 'points="52.0,194.0 230.0,103.0 408.0,12.0"' in svg  # in the order of x, not as given


def test_names_on_a_frontier_do_not_meet() -> None:
    """P7: four dots on nearly one place have their names in four places, inside of the frame; a long name is cut."""
    spots = [Spot(name, 5 + i / 100, 1.0) for i, name in enumerate(("0.01", "0.05", "0.1", "n" * 90))]
    root = ElementTree.fromstring(
        str(frontier([*spots, Spot("far", 9, 2), Spot("near", 0, 0)], x_label="KL", label="x"))
    )
    texts = [one for one in root.iter() if one.tag == "text" and one.get("text-anchor") is None]
    assert [one.text for one in texts] == ["near", "0.01", "0.05", "0.1", "n" * 23 + "…", "far"]
    boxes = [(float(one.get("x", 0)), float(one.get("y", 0)), 6.2 * len(one.text or "")) for one in texts]
    for i, (x, y, width) in enumerate(boxes):
        assert x >= 52
        assert x + width <= 420
        for other_x, other_y, other_width in boxes[:i]:
            assert abs(y - other_y) >= 12 or x >= other_x + other_width or other_x >= x + width


@pytest.mark.parametrize(
    "spots",
    [[Spot('"><script>', 0, 0, 1)], [Spot("a", 0, 0), Spot("a", 0, 0)], [Spot("a", 1e300, -1e300, 1e299)], [Spot("", 0, 1e-300)]],
    ids=["one, hostile", "twice", "huge", "tiny"],
)  # fmt: skip
def test_odd_frontiers_are_whole(spots: list[Spot]) -> None:
    svg = frontier(spots, x_label="KL", label="x")
    assert ElementTree.fromstring(str(svg)).tag == "svg"
    assert "nan" not in svg.replace("nats", "")
    assert "inf" not in svg
    assert frontier([Spot("a", math.nan, 1), Spot("b", 1, math.inf)], x_label="KL", label="x") == ""
