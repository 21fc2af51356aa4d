"""The report: one page for a person (report.html) and the same figures for a program (report.json).

    html, json = write(report, folder=Path("build/demo"), samples=[SampleRow(…)], curves={"DPO": rows}, …)

The page is one file. It loads nothing, runs no script (its own policy forbids it), follows light and dark, fits a phone and
a sheet of paper. Model output on it is treated as hostile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thumbwheel.errors import NotFound, RecordError
from thumbwheel.evals import evidence, headline
from thumbwheel.evals.curves import MetricRows, training
from thumbwheel.evals.evidence import AccountLike, SampleRow
from thumbwheel.evals.fresh import Fresh, fresh_answers
from thumbwheel.evals.pages import put, render
from thumbwheel.evals.policy import RewardKlPoint, reward_kl_points
from thumbwheel.evals.reward import RewardCheck
from thumbwheel.evals.wording import GLOSSARY, duration
from thumbwheel.records import Figure, Gate, Report

__all__ = ["SampleRow", "read", "write"]

HTML, JSON = "report.html", "report.json"


def write(
    report: Report,
    *,
    folder: Path,
    samples: Sequence[SampleRow] = (),
    curves: Mapping[str, MetricRows] | None = None,
    accounts: Mapping[str, AccountLike] | None = None,
    reward: RewardCheck | None = None,
    fresh: Fresh | None = None,
    frontier: Sequence[RewardKlPoint] = (),
    feedback: Mapping[str, Mapping[str, int]] | None = None,
    lineage: Mapping[str, str] | None = None,
    history: Sequence[Report] = (),
    max_samples: int = 60,
) -> tuple[Path, Path]:
    """Write both files, each whole or not at all, and return their paths (HTML, JSON). What is not given is not shown.

    Raises StoreError where the folder cannot be written.

    | argument | what it is                                                                                    |
    | -------- | --------------------------------------------------------------------------------------------- |
    | samples  | both policies' answers to held-out prompts; the first `max_samples` are shown                 |
    | curves   | stage -> the training loop's metric rows, each with its `step`                                |
    | accounts | stage -> what became of its rows: an `Account`, its fields, or one line of text                   |
    | reward   | the reward model's check; its figures join the report's                                       |
    | fresh    | the run from fresh answers, where the policy learned from one                                |
    | frontier | reward-KL points; by default the parent and the new policy, where both figures are known      |
    | feedback | kind -> origin -> how many                                                                    |
    | lineage  | name -> hash or id, such as {"snapshot": "…", "settings": "…"}                                |
    | history  | earlier reports, oldest first                                                                 |
    """
    curves, accounts, feedback, lineage = curves or {}, accounts or {}, feedback or {}, lineage or {}
    figures = _joined(report.figures, reward.figures if reward else ())
    report = report.model_copy(update={"figures": figures})
    points = tuple(frontier) or reward_kl_points(report)
    shown = samples[:max_samples]
    page = render(
        "report.html.j2",
        report=report,
        date=f"{report.at.day} {report.at:%B %Y, %H:%M} UTC",
        took=duration(report.seconds),
        verdict=headline.verdict(report),
        tiles=headline.tiles(report),
        better=headline.better(report, history),
        gates=headline.gate_rows(report),
        pairs=evidence.pairs(shown, report),
        pairs_lead=_pairs_lead(len(shown), len(samples)),
        filters=evidence.filters(shown),
        training=training(curves),
        fresh=fresh_answers(fresh),
        reward=evidence.reward_panel(report, reward),
        frontier=evidence.frontier(points),
        data=evidence.data(accounts),
        feedback=evidence.feedback_table(feedback),
        figures=evidence.figure_table(report.figures),
        lineage=sorted(lineage.items()),
        glossary=GLOSSARY,
    )
    more: dict[str, Any] = {
        "accounts": {stage: _line(one) for stage, one in accounts.items()},
        "feedback": {kind: dict(counts) for kind, counts in feedback.items()},
        "lineage": dict(lineage),
        "guard": list(fresh.actions) if fresh else [],
        "notes": list(fresh.notes) if fresh else [],
        "reward_kl": [[one.name, one.kl_per_response_nats, one.reward] for one in points],
    }
    payload = as_json(report, {name: value for name, value in more.items() if value})
    json_path = put(folder / JSON, json.dumps(payload, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return put(folder / HTML, page), json_path


def as_json(report: Report, more: Mapping[str, Any]) -> dict[str, Any]:
    """What report.json holds: the headline figures flat on top, then everything, then `details` with `more` in them."""
    rate, change = report.figure("win_rate"), report.figure("nats_per_token_change")
    whole = report.model_dump(mode="json")
    return {
        "verdict": report.verdict,
        "win_rate": rate.value if rate else None,
        "win_rate_low": rate.low if rate else None,
        "win_rate_high": rate.high if rate else None,
        "nats_per_token_change": change.value if change else None,
        "seconds": report.seconds,
        "seed": report.seed,
        "simulated": report.simulated,
        "policy": report.policy,
        "parent": report.parent,
        "id": report.id,
        "at": whole["at"],
        "figures": whole["figures"],
        "gates": whole["gates"],
        "details": {**whole["details"], **more},
    }


def read(path: Path) -> Report:
    """The report of a report.json, for the history of a later one. Raises NotFound or RecordError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Report(
            **{
                name: found[name]
                for name in ("id", "policy", "parent", "verdict", "seed", "seconds", "simulated", "at", "details")
            },
            figures=tuple(Figure.model_validate(one) for one in found["figures"]),
            gates=tuple(Gate.model_validate(one) for one in found["gates"]),
        )
    except FileNotFoundError:
        raise NotFound(f"There is no report '{path}'.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"'{path}' is not a report that thumbwheel wrote: {type(error).__name__}: {error}.") from None


def _line(account: AccountLike) -> str:
    found = evidence.account_of(account)
    return found if isinstance(found, str) else found.line()


def _joined(ours: Sequence[Figure], more: Sequence[Figure]) -> tuple[Figure, ...]:
    known = {figure.name for figure in ours}
    return (*ours, *(figure for figure in more if figure.name not in known))


def _pairs_lead(shown: int, given: int) -> str:
    which = (
        f"The first {shown} of {given} answers"
        if shown < given
        else f"All {given} answers"
        if given > 1
        else "The answer"
    )
    return f"{which} to held-out prompts, as the judge saw them, but with the sides put in order."
