"""The body of the report: answers, the reward model, the data, the feedback, every figure. `curves` has the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.evals.answer_html import answer_html, plain_text
from thumbwheel.evals.headline import track
from thumbwheel.evals.plots import scatter
from thumbwheel.evals.policy import RewardKlPoint
from thumbwheel.evals.reward import RewardCheck
from thumbwheel.evals.wording import name_of, number, with_span
from thumbwheel.records import Figure, Prompt, Report
from thumbwheel.signals.accounts import Account

AccountLike = Account | Mapping[str, Any] | str


@dataclass(frozen=True)
class SampleRow:
    """Both answers to one held-out prompt. `vote` is how far the judge preferred the new one; None is no vote."""

    prompt: Prompt
    parent: str
    new: str
    vote: float | None = None


def pairs(samples: Sequence[SampleRow], report: Report) -> list[dict[str, Any]]:
    """One card a sample, the parent's answer first."""
    made = []
    for sample in samples:
        kind = kind_of(sample.vote)
        many = len(sample.prompt) > 1
        made.append(
            {
                "kind": kind,
                "verdict": {"won": "new better", "lost": "parent better", "tie": "tie", "none": "no vote"}[kind],
                "pill": {"won": "yes", "lost": "no"}.get(kind, "even"),
                "turns": [
                    {"role": message.role if many else "", "text": plain_text(message.content)}
                    for message in sample.prompt
                ],
                "sides": [
                    {"name": f"Parent · {report.parent}", "html": _html(sample.parent), "better": kind == "lost"},
                    {"name": f"New · {report.policy}", "html": _html(sample.new), "better": kind == "won"},
                ],
            }
        )
    return made


def kind_of(vote: float | None) -> str:
    """ "won", "lost", "tie" or "none"."""
    if vote is None or vote != vote:
        return "none"
    return "tie" if vote == 0.5 else "won" if vote > 0.5 else "lost"


def filters(samples: Sequence[SampleRow]) -> list[dict[str, object]]:
    """The buttons above the samples, with their counts."""
    kinds = [kind_of(sample.vote) for sample in samples]
    found: list[dict[str, object]] = [{"kind": "all", "name": "All", "n": len(kinds)}]
    for kind, name in (("won", "New better"), ("lost", "Parent better"), ("tie", "Tie"), ("none", "No vote")):
        if kind != "none" or "none" in kinds:
            found.append({"kind": kind, "name": name, "n": kinds.count(kind)})
    return found


def _html(text: str) -> str:
    return answer_html(text) if text.strip() else ""


def reward_panel(report: Report, check: RewardCheck | None) -> dict[str, Any] | None:
    """The reward model beside its baseline and its ceiling. None where none was measured."""
    known = {figure.name: figure for figure in (*report.figures, *(check.figures if check else ()))}
    accuracy = known.get("reward_accuracy")
    if accuracy is None:
        return None
    longer = known.get("longer_accuracy")
    baseline = longer.value if longer is not None else None
    names = (
        "reward_accuracy",
        "reward_accuracy_length_balanced",
        "reward_accuracy_length_controlled",
        "reward_auc",
        "longer_accuracy",
        "human_ceiling",
    )
    shown = [known[name] for name in names if name in known and known[name].value is not None]
    quiet = ("longer_accuracy", "human_ceiling")
    forest = [
        track(one, left=0.0, right=1.0, line=0.5, style="quiet" if one.name in quiet else "", name=name_of(one.name))
        for one in shown
    ]
    notes = [f"Not measured: {accuracy.note}."] if accuracy.value is None else []
    if accuracy.low is not None and baseline is not None and accuracy.low <= baseline:
        notes.append("On these pairs it is not surely better than picking the longer answer.")
    rest = [name for name in ("reward_brier", "reward_log_loss", "reward_ece", "tie_labels") if name in known]
    said = [f"{name_of(name)} {with_span(known[name])}" for name in rest if known[name].value is not None]
    notes += [" · ".join(said)] if said else []
    return {
        "forest": forest,
        "scale": ("0%", "50%", "100%"),
        "notes": notes,
        "calibration": _calibration_plot(check),
        "slices": [
            {
                "name": one.name,
                "label": one.label,
                "n": one.accuracy.n,
                "accuracy": with_span(one.accuracy),
                "longer": number(one.longer.value, "share"),
            }
            for one in (check.slices if check else ())
        ],
    }


def _calibration_plot(check: RewardCheck | None) -> str:
    if check is None or not check.bins:
        return ""
    most = max(one.n for one in check.bins)
    dots = [
        (
            f"said {one.stated:.0%}, people {one.observed:.0%}, {one.n} rows",
            one.stated,
            one.observed,
            3 + 7 * (one.n / most) ** 0.5,
        )
        for one in check.bins
    ]
    return scatter(
        dots,
        x_label="probability it stated",
        label="Calibration: stated against observed",
        diagonal=True,
        unit_square=True,
    )


def frontier(points: Sequence[RewardKlPoint]) -> dict[str, Any] | None:
    """The plot of reward over distance. None with fewer than two points."""
    if len(points) < 2:
        return None
    dots = [(one.name, one.kl_per_response_nats, one.reward, 6.0) for one in points]
    names = [
        f"{one.name}: reward {number(one.reward, 'score')} at {number(one.kl_per_response_nats, 'nats')} nats"
        for one in points
    ]
    plot = scatter(
        dots, x_label="KL per response, nats", label="Reward against distance from the reference", joined=True
    )
    return {"plot": plot, "names": names}


def account_of(given: AccountLike) -> Account | str:
    """An account from its fields as JSON keeps them (`vars(account)`); an `Account` or a text as it is."""
    if isinstance(given, Account | str):
        return given
    counters: dict[str, Counter[str]] = {name: Counter(given.get(name, {})) for name in ("dropped", "notes")}
    return Account(**{**given, **counters})


def data(accounts: Mapping[str, AccountLike]) -> list[dict[str, Any]]:
    """A bar a stage: kept, each reason for dropping, and what had nothing to say. A text is shown as it is."""
    made: list[dict[str, Any]] = []
    for stage, given in accounts.items():
        account = account_of(given)
        if isinstance(account, str):
            made.append({"name": stage, "read": None, "parts": [], "note": account})
            continue
        dropped = sorted(account.dropped.items(), key=lambda item: (-item[1], item[0]))
        parts = [("kept", "kept", account.kept)]
        parts += [(f"dropped: {reason}", f"s{1 + i % 4}", n) for i, (reason, n) in enumerate(dropped)]
        parts += [("nothing to say", "unscored", account.unscored)] if account.unscored else []
        whole = sum(n for _, _, n in parts) or 1
        extra = [
            f"{account.ties} ties" if account.ties else "",
            f"{account.truncated} cut" if account.truncated else "",
        ]
        extra += [f"{n} {reason}" for reason, n in account.notes.most_common()]
        made.append(
            {
                "name": stage,
                "read": f"{account.read:,}",
                "parts": [
                    {"name": name, "colour": colour, "share": round(n / whole, 5), "text": f"{n:,}"}
                    for name, colour, n in parts
                ],
                "note": ", ".join(part for part in extra if part),
            }
        )
    return made


def feedback_table(feedback: Mapping[str, Mapping[str, int]]) -> dict[str, Any] | None:
    """Counts by kind (rows) and origin (columns). None where there are none."""
    if not feedback:
        return None
    origins = sorted({origin for counts in feedback.values() for origin in counts})
    rows = [
        {
            "kind": kind.replace("_", " "),
            "counts": [counts.get(origin, 0) for origin in origins],
            "total": sum(counts.values()),
        }
        for kind, counts in sorted(feedback.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    ]
    return {"origins": origins, "rows": rows}


def figure_table(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Every figure once; those of the parent (`…_parent`) in the new policy's row."""
    known = {figure.name: figure for figure in figures}
    rows = []
    for figure in figures:
        if figure.name.endswith("_parent") and figure.name.removesuffix("_parent") in known:
            continue
        parent = known.get(f"{figure.name}_parent")
        unit = {"nats per token": ", nats", "nats": ", nats", "tokens": ", tokens"}.get(figure.unit, "")
        rows.append(
            {
                "name": name_of(figure.name) + unit,
                "new": with_span(figure),
                "parent": "" if parent is None else with_span(parent),
                "n": "" if figure.n is None else f"{figure.n:,}",
                "note": figure.note,
            }
        )
    return rows
