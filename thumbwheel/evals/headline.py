"""The top of the report: the verdict, four figures, the votes, and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.evals.gates import verdict_line
from thumbwheel.evals.wording import name_of, number, span, with_span
from thumbwheel.records import Figure, Gate, Report


@dataclass(frozen=True)
class Track:
    """A figure on a line from `left` to `right`, in percent of its width; None where there is nothing to draw."""

    name: str
    text: str
    style: str
    said: str
    start: float | None
    width: float | None
    dot: float | None
    line: float | None


@dataclass(frozen=True)
class Tile:
    """One headline figure."""

    name: str
    value: str
    unit: str
    note: str
    track: Track
    gate: bool
    passed: bool


def track(
    figure: Figure | None, *, left: float, right: float, line: float | None = None, style: str = "", name: str = ""
) -> Track:
    """Where a figure, its interval and a reference line fall on a scale; what lies outside stands at its end."""

    def at(value: float) -> float:
        return round(100 * min(max((value - left) / (right - left), 0.0), 1.0), 2)

    value, low, high = (None, None, None) if figure is None else (figure.value, figure.low, figure.high)
    start = None if low is None or high is None else at(low)
    text = with_span(figure)
    return Track(
        name=name,
        text=text,
        style=style,
        said=f"{name}: {text}" if name else text,
        start=start,
        width=None if start is None or high is None else round(at(high) - start, 2),
        dot=None if value is None else at(value),
        line=None if line is None else at(line),
    )


def verdict(report: Report) -> dict[str, object]:
    """Title, one sentence, and the reasons: the failed gates, or the win rate where all passed."""
    failed = [gate for gate in report.gates if not gate.passed]
    if report.verdict == "promote":
        rate = report.figure("win_rate")
        judged = (
            f"The new answers are preferred in {with_span(rate)} of {rate.n} blind comparisons. "
            if rate and rate.n
            else ""
        )
        return {"title": "Promoted", "says": f"{judged}{_gates_line(report.gates)}", "reasons": []}
    says = _gates_line(report.gates) if report.gates else "No gate was asked, so nothing is known to be safe."
    return {"title": "Held back", "says": says, "reasons": [_reason(gate.why) for gate in failed]}


def _gates_line(gates: Sequence[Gate]) -> str:
    line = verdict_line(gates) if gates else ""
    return line.removeprefix("Promoted: ").capitalize() if line.startswith("Promoted") else line


def _reason(why: str) -> str:
    """A gate's sentence without its first word, which the banner has said already."""
    text = why.removeprefix("Held: ")
    return text[:1].upper() + text[1:]


def tiles(report: Report) -> list[Tile]:
    """Win rate, likelihood, repetition and length, each against its bound."""
    gates = {gate.name: gate for gate in report.gates}
    rate, change = report.figure("win_rate"), report.figure("nats_per_token_change")
    rise, ratio = report.figure("repetition_rise"), report.figure("length_ratio")
    bound = _bound(gates, "language", -0.25)
    room = max(abs(bound) * 2, *(abs(x) for x in _ends(change)), 0.1)
    more = max(_bound(gates, "repetition", 0.02) * 2, *(abs(x) for x in _ends(rise)), 0.02)
    most = max(_bound(gates, "length", 2.0), *_ends(ratio), 1.0) * 1.1
    return [
        _tile("Win rate", rate, gates.get("win_rate"), "", left=0.0, right=1.0, line=0.5),
        _tile("Likelihood", change, gates.get("language"), "nats per token", left=-room, right=room, line=bound),
        _tile(
            "Repetition",
            rise,
            gates.get("repetition"),
            "points",
            left=-more,
            right=more,
            line=_bound(gates, "repetition", 0.02),
        ),
        _tile(
            "Length",
            ratio,
            gates.get("length"),
            "the parent's",
            left=0.0,
            right=most,
            line=_bound(gates, "length", 2.0),
        ),
    ]


def _tile(
    name: str, figure: Figure | None, gate: Gate | None, unit: str, *, left: float, right: float, line: float
) -> Tile:
    if figure is None or figure.value is None:
        value, unit, note = "–", "", (figure.note if figure is not None and figure.note else "not measured")
    else:
        written = "points" if name == "Repetition" else figure.unit
        value = number(figure.value, written, signed=name in ("Likelihood", "Repetition"))
        note = span(figure.model_copy(update={"unit": written})) or "no interval"
    note += f" · {_allowed(gate)}" if gate is not None and gate.bound is not None else ""
    style = "quiet" if gate is None else ("good" if gate.passed else "bad")
    return Tile(
        name=name,
        value=value,
        unit=unit,
        note=note,
        track=track(figure, left=left, right=right, line=line, style=style),
        gate=gate is not None,
        passed=gate is not None and gate.passed,
    )


def _bound(gates: dict[str, Gate], name: str, default: float) -> float:
    gate = gates.get(name)
    return default if gate is None or gate.bound is None else gate.bound


def _ends(figure: Figure | None) -> list[float]:
    found = [] if figure is None else [figure.value, figure.low, figure.high]
    return [value for value in found if value is not None] or [0.0]


def better(report: Report, history: Sequence[Report]) -> dict[str, object] | None:
    """The forest of win rates, this round's and earlier ones', and how the votes fell. None without a win rate."""
    rate = report.figure("win_rate")
    if rate is None or rate.value is None:
        return None
    rows = [track(rate, left=0.0, right=1.0, line=0.5, style=_sure(rate), name="This round")]
    resampled = report.figure("win_rate_bootstrap")
    if resampled is not None and resampled.value is not None:
        rows.append(track(resampled, left=0.0, right=1.0, line=0.5, style="quiet", name="… resampled by prompt"))
    for earlier in history:
        before = earlier.figure("win_rate")
        if before is not None and before.value is not None:
            name = f"{earlier.policy} over {earlier.parent}"
            rows.append(track(before, left=0.0, right=1.0, line=0.5, style="quiet", name=name))
    judge = f" ({rate.note})" if rate.note else ""
    shares = [report.figure(f"{name}_share") for name in ("win", "tie", "loss")]
    outcomes = [
        {"name": name, "colour": colour, "share": figure.value, "text": number(figure.value, "share")}
        for name, colour, figure in zip(
            ("new better", "tie", "parent better"), ("won", "tie", "lost"), shares, strict=True
        )
        if figure is not None and figure.value is not None
    ]
    return {
        "lead": f"Blind comparisons on {rate.n} answers to held-out prompts{judge}. A tie counts half. "
        "At the dashed line, 50%, the two policies are alike.",
        "forest": rows,
        "scale": ("parent always better", "50%", "new always better"),
        "outcomes": outcomes,
        "notes": _judge_notes(report),
    }


def _sure(rate: Figure) -> str:
    if rate.low is not None and rate.low > 0.5:
        return "good"
    return "bad" if rate.high is not None and rate.high < 0.5 else ""


def _judge_notes(report: Report) -> list[str]:
    side, unvoted = report.figure("side_a_share"), report.figure("unvoted")
    notes = []
    if side is not None and side.note and side.value is not None and side.low is not None:
        notes.append(f"Side A was preferred in {with_span(side)}: {side.note}.")
    if unvoted is not None and unvoted.value:
        why = f" The first reasons: {unvoted.note}." if unvoted.note else ""
        notes.append(f"{unvoted.value:.0f} of {unvoted.n} rows have no vote and are in no figure.{why}")
    return notes


def gate_rows(report: Report) -> list[dict[str, object]]:
    """One row a gate; measured and bound in the unit of its figure."""
    names = {"language": "Language", "length": "Length", "reward_accuracy": "Reward model"}
    return [
        {
            "name": names.get(gate.name, name_of(gate.name)),
            "value": number(gate.value, _UNITS.get(gate.name, ""), signed=gate.name in ("language", "repetition")),
            "allowed": _allowed(gate),
            "passed": gate.passed,
            "why": _reason(gate.why.removeprefix("Passed: ")),
        }
        for gate in report.gates
    ]


_UNITS = {"win_rate": "share", "repetition": "points", "length": "times", "reward_accuracy": "share"}


def _allowed(gate: Gate) -> str:
    """The bound in short, with the way it reads."""
    if gate.bound is None:
        return ""
    bound = number(gate.bound, _UNITS.get(gate.name, ""))
    if gate.name == "win_rate":
        return f"low end above {bound}"
    if gate.name == "reward_accuracy":
        return f"low end from {bound}"
    if gate.name == "length":
        return f"{number(1 / gate.bound, '')} to {bound}"
    return f"from {bound}" if gate.name == "language" else f"up to {bound}"
