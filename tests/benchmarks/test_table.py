"""The table every benchmark prints: arithmetic of ratio, goal and met, and the file it leaves."""

import json
import math

import pytest
from rich.console import Console

from benchmarks.table import Machine, Row, benchmark, disturbance


def test_ratio_and_goal_on_ratio():
    row = Row("speed", ours=30.0, peer=10.0, goal=2.0, goal_on="ratio", unit="tokens/s")
    assert row.ratio == 3.0
    assert row.met is True
    assert row.entries() == [
        {"name": "speed", "value": 30.0, "unit": "tokens/s", "goal": None, "ok": True},
        {"name": "speed, ratio", "value": 3.0, "unit": "x", "goal": 2.0, "ok": True},
    ]


@pytest.mark.parametrize(
    ("goal_is", "ours", "met"),
    [("at_least", 1.0, True), ("at_least", 0.99, False), ("at_most", 1.0, True), ("at_most", 1.01, False)],
)
def test_goal_bounds_are_inclusive(goal_is, ours, met):
    assert Row("x", ours, goal=1.0, goal_is=goal_is).met is met


@pytest.mark.parametrize("ours", [None, math.nan])
def test_what_was_not_measured_meets_no_goal(ours):
    row = Row("x", ours, goal=1.0)
    assert row.met is False
    assert row.entries() == [{"name": "x", "value": None, "unit": "", "goal": 1.0, "ok": False}]


def test_a_peer_of_zero_gives_no_ratio():
    assert Row("x", 1.0, peer=0.0).ratio is None


def test_run_prints_and_writes(tmp_path):
    console = Console(record=True, width=140)
    with benchmark("probe", "a title", folder=tmp_path, console=console) as bench:
        bench.add(Row("good", 2.0, goal=1.0), Row("bad", 2.0, goal=1.0, goal_is="at_most"))
        bench.note("a note [with brackets]")
    assert bench.exit_code == 1
    text = console.export_text()
    assert "a note [with brackets]" in text
    assert "load average" in text
    entries = json.loads((tmp_path / "probe.json").read_text())
    assert entries[:2] == [
        {"name": "good", "value": 2.0, "unit": "", "goal": 1.0, "ok": True},
        {"name": "bad", "value": 2.0, "unit": "", "goal": 1.0, "ok": False},
    ]
    assert all(set(entry) == {"name", "value", "unit", "goal", "ok"} for entry in entries)


def test_a_failed_run_writes_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), benchmark("probe", "t", folder=tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_disturbance_by_hand():
    """10 s of wall, 5 s of own CPU, 12 s busy in all: 0.7 cores went to others; 1 of 20 core seconds was stolen."""
    before = Machine(0.0, 0.0, 0.5, 100.0, 1.0, 200.0)
    after = Machine(10.0, 5.0, 1.5, 112.0, 2.0, 220.0)
    assert [row.ours for row in disturbance(before, after)] == pytest.approx([0.5, 1.5, 0.5, 0.7, 5.0])
