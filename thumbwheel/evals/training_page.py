"""The page that a training run ends with: its curves, what the guard did, the settings that were its own, what to do next.

write(Training("GRPO", rows, actions=result.actions), Path("trained"))      # trained/curves.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.evals.curves import ONLINE, MetricRows, falling_note, panels, term_keys
from thumbwheel.evals.fresh import Fresh, first_to_last, fresh_answers
from thumbwheel.evals.pages import Next, put, render

HTML = "curves.html"
# Told in numbers above the curves of a run from rows at hand; of one from fresh answers what its report tells.
SUMMARY = (
    ("Loss", "loss", "nats"),
    ("Accuracy on pairs", "accuracy", "share"),
    ("Held-out loss", "heldout_loss", "nats"),
    ("Held-out accuracy on pairs", "heldout_accuracy", "share"),
)


@dataclass(frozen=True)
class Training:
    """All that the page shows. `rows` are those of metrics.jsonl; `settings` are (key, value) pairs worth telling."""

    title: str
    rows: MetricRows
    about: str = ""
    says: str = ""
    notes: Sequence[str] = ()
    actions: Sequence[str] = ()
    next: Sequence[Next] = ()
    settings: Sequence[tuple[str, str]] = ()


def write(training: Training, folder: Path) -> Path:
    """Write `folder`/curves.html, whole or not at all. Raises StoreError where the folder cannot be written."""
    fell = falling_note(training.rows)
    page = render(
        "training.html.j2",
        title=training.title,
        about=training.about,
        says=training.says,
        summary=summary(training.rows),
        guarded=any(ONLINE in row for row in training.rows),
        actions=training.actions,
        notes=[*training.notes, *([fell] if fell else [])],
        panels=panels(training.rows),
        settings=training.settings,
        next=training.next,
    )
    return put(folder / HTML, page)


def summary(rows: MetricRows) -> list[dict[str, str]]:
    """The figures people watch, at first and at the end; [] where none was logged."""
    fresh = fresh_answers(Fresh(rows, term_keys(rows))) if any(ONLINE in row for row in rows) else None
    if fresh is not None:
        return list(fresh["figures"])
    return [row for figure in SUMMARY if (row := first_to_last(rows, *figure))]
