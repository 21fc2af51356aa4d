"""What a policy learned from its own answers looked like on the way: each figure from first to last, and what the guard did.

fresh_answers(rows, terms=("human", "safety"), actions=result.actions, notes=result.notes)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.evals.wording import number

MetricRows = Sequence[Mapping[str, Any]]
# Figures of metrics.jsonl in the order of the page: name, key, unit. Terms of the reward stand behind the first.
FIGURES = (
    ("Reward", "reward", "score"),
    ("KL to the reference, nats a response", "kl_per_response_nats", "nats"),
    ("KL to the reference, nats a token", "kl_per_token_nats", "small"),
    ("β, the pull to the reference", "coefficient", "small"),
    ("Entropy, nats a token", "entropy", "nats"),
    ("Length of answers, tokens", "length", "tokens"),
    ("Repeated 3-grams", "repetition", "share"),
    ("Answers that ended by themselves", "ended_share", "share"),
    ("Prompts whose answers all earned the same", "flat_groups", "score"),
    ("… too easy: all at the best reward", "too_easy", "score"),
    ("… too hard: all at the worst", "too_hard", "score"),
    ("Answers without a reward", "unscored", "score"),
)


@dataclass(frozen=True)
class Fresh:
    """`rows` are those of metrics.jsonl, `terms` the keys of the reward's terms in them; `actions` and `notes` are sentences.

    `own`: the answers were the policy's own; False: people had picked from them before.
    """

    rows: MetricRows
    terms: Sequence[str] = ()
    actions: Sequence[str] = ()
    notes: Sequence[str] = ()
    own: bool = True


def fresh_answers(fresh: Fresh | None) -> dict[str, Any] | None:
    """What the page shows of it. None where there is nothing.

    First and last are means over the first and the last tenth of the iterations; the gold reward is a term like any other.
    """
    if fresh is None or not fresh.rows:
        return None
    head, *others = FIGURES
    terms = [(f"… term “{key.removeprefix('term_').replace('_', ' ')}”", key, "score") for key in fresh.terms]
    table = [row for figure in (head, *terms, *others) if (row := first_to_last(fresh.rows, *figure))]
    return {"figures": table, "actions": list(fresh.actions), "notes": list(fresh.notes), "own": fresh.own}


def first_to_last(rows: MetricRows, name: str, key: str, unit: str) -> dict[str, str] | None:
    """A figure's mean over the first and over the last tenth of the rows that have it, in text; None where none has.

    What is not finite is left out. One value has no beginning, and shows a dash there.
    """
    logged = [float(row[key]) for row in rows if isinstance(row.get(key), int | float)]
    values = [value for value in logged if math.isfinite(value)]
    if not values:
        return None
    tenth = max(1, len(values) // 10)
    ends = (sum(values[:tenth]) / tenth if len(values) > 1 else None, sum(values[-tenth:]) / tenth)
    first, last = (number(x, unit) if x is None or unit != "small" else f"{x:.3g}".replace("-", "−") for x in ends)
    return {"name": name, "first": first, "last": last}
