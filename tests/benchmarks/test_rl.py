"""The rows of the benchmark of whole on-policy iterations; it is not run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.rl import add_rows, command_of
from benchmarks.table import Benchmark
from benchmarks.train import Runs


def runs(**result: Any) -> Runs:
    made = Runs()
    made.add({"cores": 2.0, "metric": {"reward_last": 0.9}, **result})
    return made


def test_the_goal_is_on_answers_a_second_and_on_memory() -> None:
    """GRPO tiny: five times the peer's answers a second, half its memory."""
    bench = Benchmark("rl", "")
    ours, trl = runs(samples_s=13.0, peak_rss_mib=1000), runs(samples_s=2.5, peak_rss_mib=2500)
    add_rows(bench, "grpo", "tiny", ours, trl)
    met = {row.name: (row.ratio, row.met) for row in bench.rows if row.met is not None}
    assert met == {
        "GRPO tiny: answers a second": (pytest.approx(5.2), True),
        "GRPO tiny: peak memory": (pytest.approx(0.4), True),
    }


def test_without_the_peer_no_goal_is_met() -> None:
    bench = Benchmark("rl", "")
    add_rows(bench, "ppo", "tiny", runs(samples_s=13.0, peak_rss_mib=1000), Runs())
    assert not any(row.met for row in bench.rows)
    assert bench.exit_code == 1


def test_a_run_that_shared_its_cores_is_said() -> None:
    bench = Benchmark("rl", "")
    add_rows(bench, "grpo", "smol", runs(samples_s=1.0, cores=1.2), runs(samples_s=1.0))
    assert any("135M LoRA, ours" in note and "do not quote" in note for note in bench.notes)


def test_ppo_is_measured_with_a_release_that_has_it() -> None:
    command = command_of("trl", "ppo", Path("peers"), Path("python"))
    assert command is not None
    assert command[0] == "env"
    assert command[1].endswith("trl-1.12.0")
    assert command_of("trl", "grpo", Path("peers"), None) is None
