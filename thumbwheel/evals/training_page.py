"""The page that a training run ends with: its curves, what the guard did, the settings that were its own, what to do next.

write(Training("GRPO", rows, actions=result.actions), Path("trained"))      # trained/curves.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.evals.curves import ONLINE, MetricRows, falling_note, panels
from thumbwheel.evals.pages import put, render
from thumbwheel.evals.sweep_page import Step
from thumbwheel.evals.wording import number

HTML = "curves.html"
# Told in numbers above the curves, where they were logged: the mean of the first and of the last tenth of the steps.
SUMMARY = (
    ("Reward", "reward", "score"),
    ("KL to the reference, nats a response", "kl_per_response_nats", "nats"),
    ("Entropy, nats a token", "entropy", "nats"),
    ("Length of answers, tokens", "length", "tokens"),
    ("Repeated 3-grams", "repetition", "share"),
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
    next: Sequence[Step] = ()
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
    """Figures of SUMMARY that were logged: the mean over the first and over the last tenth of their steps, in text.

    A figure that was logged once has no beginning, and shows a dash there.
    """
    told = []
    online = any(ONLINE in row for row in rows)
    for name, key, unit in SUMMARY:
        if online and key == "loss":  # its gradient counts there, and its value is near 0 from first to last
            continue
        logged = [float(row[key]) for row in rows if isinstance(row.get(key), int | float)]
        values = [value for value in logged if math.isfinite(value)]
        tenth = max(1, len(values) // 10)
        if values:
            first = sum(values[:tenth]) / tenth if len(values) > 1 else None
            told.append(
                {"name": name, "first": number(first, unit), "last": number(sum(values[-tenth:]) / tenth, unit)}
            )
    return told
