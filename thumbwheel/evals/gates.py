"""May the new policy replace its parent? Each gate is one figure, one bound, and a sentence that reads aloud.

A figure that is missing or was not measured fails its gate: what nobody looked at is not known to be safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from thumbwheel.config import GateSettings
from thumbwheel.errors import DataError
from thumbwheel.evals.wording import name_of
from thumbwheel.records import Figure, Gate

Verdict = Literal["promote", "hold"]
_Check = Callable[[Figure, float], tuple[bool, str]]


def gates(figures: Iterable[Figure], settings: GateSettings) -> tuple[Gate, ...]:
    """The gates of a policy, in the order in which a person would ask.

    | gate            | reads the figure       | holds when                                                        |
    | --------------- | ---------------------- | ----------------------------------------------------------------- |
    | win_rate        | win_rate, its low end  | low > min_win_rate_low                                            |
    | language        | nats_per_token_change  | change >= -max_nats_per_token_drop                                |
    | repetition      | repetition_rise        | rise <= max_repetition_rise + repetition_margin                   |
    | length          | length_ratio           | 1 / max_length_ratio <= ratio <= max_length_ratio                 |
    | reward_accuracy | reward_accuracy, low   | low >= min_reward_accuracy_low; only where that setting is given  |
    """
    known = {figure.name: figure for figure in figures}
    checks: list[tuple[str, str, float, _Check]] = [
        ("win_rate", "win_rate", settings.min_win_rate_low, _win_rate),
        ("language", "nats_per_token_change", -settings.max_nats_per_token_drop, _language),
        ("repetition", "repetition_rise", settings.max_repetition_rise + settings.repetition_margin, _repetition),
        ("length", "length_ratio", settings.max_length_ratio, _length),
    ]
    if settings.min_reward_accuracy_low is not None:
        checks.append(("reward_accuracy", "reward_accuracy", settings.min_reward_accuracy_low, _reward_accuracy))
    return tuple(_gate(gate, known.get(name), name, bound, check) for gate, name, bound, check in checks)


def verdict(gates: Sequence[Gate]) -> Verdict:
    """ "promote" where every gate held, else "hold". Raises DataError for no gate at all: nothing was checked."""
    if not gates:
        raise DataError("There is no gate to decide by. Give at least one.")
    return "promote" if all(gate.passed for gate in gates) else "hold"


def verdict_line(gates: Sequence[Gate]) -> str:
    """One sentence: promoted, or which gates held it back."""
    failed = [gate.name.replace("_", " ") for gate in gates if not gate.passed]
    if not failed:
        return f"Promoted: all {len(gates)} gates passed."
    return f"Held back by {len(failed)} of {len(gates)} gates: {', '.join(failed)}."


def _gate(gate: str, figure: Figure | None, name: str, bound: float, check: _Check) -> Gate:
    if figure is None or figure.value is None:
        reason = figure.note if figure is not None and figure.note else f"the figure '{name_of(name)}' is missing"
        why = f"Held: {reason.rstrip('.')}. A gate without its figure stays shut."
        return Gate(name=gate, passed=False, value=None, bound=bound, why=why)
    passed, sentence = check(figure, bound)
    return Gate(
        name=gate, passed=passed, value=figure.value, bound=bound, why=f"{'Passed' if passed else 'Held'}: {sentence}"
    )


def _win_rate(figure: Figure, bound: float) -> tuple[bool, str]:
    value, low = figure.value or 0.0, figure.low
    over = f" over {_count(figure.n, 'vote')}" if figure.n is not None else ""
    if low is None:
        return False, f"the new policy won {value:.1%}{over}, but without an interval; a rate alone proves nothing."
    span = f" (interval {low:.1%} to {figure.high:.1%})" if figure.high is not None else f" (lower end {low:.1%})"
    start = f"the new policy won {value:.1%}{over}{span}"
    if low > bound:
        return True, f"{start}; the lower end is above {bound:.1%}."
    if value > bound:
        return False, f"{start}; the lower end must be above {bound:.1%}. It may be better, but this could be luck."
    return False, f"{start}; the lower end must be above {bound:.1%}. It is not preferred to its parent."


def _language(figure: Figure, bound: float) -> tuple[bool, str]:
    change = figure.value or 0.0
    less = f"new answers are {abs(change):.2f} nats per token {'less' if change < 0 else 'more'} likely under the reference"
    start = f"{less} than the parent's; allowed is a fall of {-bound:.2f}."
    return (
        (True, f"{start} The language is intact.") if change >= bound else (False, f"{start} The language is breaking.")
    )


def _repetition(figure: Figure, bound: float) -> tuple[bool, str]:
    rise = figure.value or 0.0
    if rise == 0:
        how = "repeated phrases make up as much of the answers as of the parent's"
    else:
        points = f"{abs(rise) * 100:.1f} points {'more' if rise > 0 else 'less'}"
        how = f"repeated phrases make up {points} of the answers than of the parent's"
    start = f"{how}; allowed is a rise of {bound * 100:.1f} points."
    return (True, start) if rise <= bound else (False, f"{start} It has started to loop.")


def _length(figure: Figure, bound: float) -> tuple[bool, str]:
    ratio = figure.value or 0.0
    start = f"answers are {ratio:.2f} times as long as the parent's; allowed is {1 / bound:.2f} to {bound:.2f}."
    if ratio > bound:
        return False, f"{start} It may be winning by length."
    if ratio < 1 / bound:
        return False, f"{start} It has nearly stopped answering."
    return True, start


def _reward_accuracy(figure: Figure, bound: float) -> tuple[bool, str]:
    value, low = figure.value or 0.0, figure.low
    if low is None:
        return (
            False,
            f"the reward model agrees with people in {value:.1%}, but without an interval; allowed from {bound:.1%}.",
        )
    start = f"the reward model agrees with people in {value:.1%} (lower end {low:.1%}); the lower end must reach {bound:.1%}."
    return (True, start) if low >= bound else (False, f"{start} What it prefers is not what people prefer.")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
