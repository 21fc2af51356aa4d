"""P6, R6: figures of a run from fresh answers from first to last, worked out by hand; hostile names and sentences stay text."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from thumbwheel.evals import report as pages
from thumbwheel.evals.fresh import Fresh, fresh_answers
from thumbwheel.records import Report

ROWS = [
    {"step": k, "reward": float(k), "term_reward": -float(k), "coefficient": 1e-5 * k, "repetition": 0.25, "unscored": 0.0}
    for k in range(1, 21)
]  # fmt: skip


def test_first_and_last_are_means_over_a_tenth() -> None:
    """Rewards 1 … 20: the first two have mean 1.5, the last two 19.5. A figure that was not logged is not shown."""
    shown = fresh_answers(Fresh(ROWS, terms=("term_reward", "gone"), actions=("iteration 1: x",), notes=("y",)))
    assert shown is not None
    told = {row["name"]: (row["first"], row["last"]) for row in shown["figures"]}
    assert list(told) == [
        "Reward", "… term “reward”", "β, the pull to the reference", "Repeated 3-grams", "Answers without a reward",
    ]  # fmt: skip
    assert told["Reward"] == ("1.50", "19.50")
    assert told["… term “reward”"] == ("−1.50", "−19.50")
    assert told["β, the pull to the reference"] == ("1.5e−05", "0.000195")
    assert told["Repeated 3-grams"] == ("25.0%", "25.0%")
    assert shown["actions"] == ["iteration 1: x"]
    assert shown["notes"] == ["y"]


def test_one_row_has_no_beginning_and_none_is_nothing() -> None:
    shown = fresh_answers(Fresh(ROWS[:1]))
    assert shown is not None
    assert shown["figures"][0] == {"name": "Reward", "first": "–", "last": "1.00"}
    assert fresh_answers(Fresh([])) is None
    assert fresh_answers(None) is None


def test_sentences_and_names_on_the_page_are_text(tmp_path: Path) -> None:
    """X3: a term's name and a reason of a scorer come from elsewhere."""
    rows = [{**ROWS[0], "<b>term": 1.0}]
    fresh = Fresh(rows, terms=("<b>term",), actions=("<script>alert(1)</script>",), notes=("Unscored: <i>why</i>",))
    report = Report(
        id="r", policy="v1", parent="v0", verdict="hold", figures=(), gates=(), seed=0, seconds=1.0, simulated=False,
        at=datetime(2026, 1, 1, tzinfo=UTC), details={},
    )  # fmt: skip
    html, _ = pages.write(report, folder=tmp_path, fresh=fresh)
    page = html.read_text("utf-8")
    for hostile in ("<script>alert", "<i>why", "<b>term"):
        assert hostile not in page
    assert "The guard acted once during training" in page
    assert "&lt;script&gt;" in page.lower()
