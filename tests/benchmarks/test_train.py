"""The training benchmark's arithmetic and rules; it is not run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.train import Runs, as_good, peers_folder, speed_row


def result(samples_s: float, cores: float = 2.0, **metric: float) -> dict[str, Any]:
    return {"samples_s": samples_s, "cores": cores, "metric": metric}


def runs(*results: dict[str, Any]) -> Runs:
    made = Runs()
    for one in results:
        made.add(one)
    return made


def test_disturbed_runs_are_discarded() -> None:
    made = runs(result(10.0), result(2.0, cores=1.79), result(12.0, cores=1.8), result(11.0))
    assert made.figure("samples_s") == 11.0
    assert len(made.disturbed) == 1


def test_without_an_undisturbed_run_all_are_used() -> None:
    assert runs(result(3.0, cores=1.0), result(5.0, cores=1.0)).figure("samples_s") == 4.0


def test_a_run_that_failed_is_no_figure() -> None:
    made = runs()
    made.add(None)
    assert made.figure("samples_s") is None
    assert made.metric("eval_loss") is None


@pytest.mark.parametrize(
    ("ours", "peer", "name", "good"),
    [
        (5.40, 5.30, "eval_loss", True),
        (5.50, 5.30, "eval_loss", False),
        (0.76, 0.90, "eval_accuracy", True),
        (0.74, 0.90, "eval_accuracy", False),
        (None, 0.95, "eval_accuracy", False),
    ],
)
def test_a_figure_counts_only_where_as_much_was_learned(
    ours: float | None, peer: float, name: str, *, good: bool
) -> None:
    """Two shares of .9 over 32 pairs differ by 2 · sqrt(2 · .09 / 32) = .15 from noise alone."""
    assert as_good(ours, peer, name, held_out=32) is good


def test_the_goal_is_on_the_ratio_and_needs_the_same_learning() -> None:
    """SFT tiny: the goal is five times the peer's samples a second."""
    peer = runs(result(2.0, eval_loss=5.0))
    assert speed_row("x", "sft", "tiny", runs(result(10.0, eval_loss=5.0)), peer).met is True
    assert speed_row("x", "sft", "tiny", runs(result(9.9, eval_loss=5.0)), peer).met is False
    assert speed_row("x", "sft", "tiny", runs(result(10.0, eval_loss=6.0)), peer).met is False


def test_the_peers_folder_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bench" / "peers"
    folder.mkdir(parents=True)
    (folder / "workload.py").touch()
    monkeypatch.setenv("THUMBWHEEL_SHARED", str(tmp_path))
    assert peers_folder() == folder
