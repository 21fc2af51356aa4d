"""What lets a policy out, in literals."""

from __future__ import annotations

import pytest

from thumbwheel.config import GateSettings
from thumbwheel.errors import DataError
from thumbwheel.evals.gates import gates, verdict, verdict_line
from thumbwheel.records import Figure, Gate

GOOD = {
    "win_rate": Figure(name="win_rate", value=0.68, low=0.55, high=0.79, n=54),
    "nats_per_token_change": Figure(name="nats_per_token_change", value=-0.07),
    "repetition_rise": Figure(name="repetition_rise", value=0.0),
    "length_ratio": Figure(name="length_ratio", value=1.1),
}


def decide(settings: GateSettings | None = None, **changed: Figure | None) -> dict[str, Gate]:
    figures = [figure for figure in {**GOOD, **changed}.values() if figure is not None]
    return {gate.name: gate for gate in gates(figures, settings or GateSettings())}


def figure(name: str, value: float | None, **more: object) -> Figure:
    return Figure.model_validate({"name": name, "value": value, **more})


def test_a_real_improvement_is_promoted() -> None:
    """E2: the plain loop's 68 % at -0.07 nats."""
    held = decide()
    assert all(gate.passed for gate in held.values())
    assert list(held) == ["win_rate", "language", "repetition", "length"]
    assert verdict(list(held.values())) == "promote"
    assert verdict_line(list(held.values())) == "Promoted: all 4 gates passed."


def test_winning_with_gibberish_is_held_and_says_why() -> None:
    """P6: 92 % wins at -0.61 nats per token is broken language."""
    held = decide(
        win_rate=figure("win_rate", 0.92, low=0.82, high=0.97, n=54),
        nats_per_token_change=figure("nats_per_token_change", -0.61),
    )
    assert held["win_rate"].passed
    assert not held["language"].passed
    assert held["language"].why == (
        "Held: new answers are 0.61 nats per token less likely under the reference than the parent's; "
        "allowed is a fall of 0.25. The language is breaking."
    )
    assert verdict(list(held.values())) == "hold"
    assert verdict_line(list(held.values())) == "Held back by 1 of 4 gates: language."


@pytest.mark.parametrize(
    ("low", "passed"),
    [(0.49, False), (0.5, False), (0.501, True), (None, False)],
)
def test_the_lower_end_decides(low: float | None, *, passed: bool) -> None:
    """E2: above one half, not at it; a rate without an interval proves nothing."""
    assert decide(win_rate=figure("win_rate", 0.9, low=low, high=0.95))["win_rate"].passed is passed


@pytest.mark.parametrize(
    ("name", "gate", "value", "passed"),
    [
        ("nats_per_token_change", "language", -0.25, True),
        ("nats_per_token_change", "language", -0.2501, False),
        ("nats_per_token_change", "language", 3.0, True),
        ("repetition_rise", "repetition", 0.02, True),
        ("repetition_rise", "repetition", 0.021, False),
        ("repetition_rise", "repetition", -0.5, True),
        ("length_ratio", "length", 2.0, True),
        ("length_ratio", "length", 2.01, False),
        ("length_ratio", "length", 0.5, True),
        ("length_ratio", "length", 0.49, False),
        ("length_ratio", "length", 0.0, False),
    ],
)
def test_bounds(name: str, gate: str, value: float, *, passed: bool) -> None:
    """E2: the default settings' bounds, both sides of each."""
    assert decide(**{name: figure(name, value)})[gate].passed is passed


@pytest.mark.parametrize("name", list(GOOD))
def test_a_missing_figure_fails_its_gate(name: str) -> None:
    """Unknown is not safe: absent, or None with the reason in its note."""
    gone = decide(**{name: None})
    assert [gate.passed for gate in gone.values()].count(False) == 1
    assert verdict(list(gone.values())) == "hold"
    noted = decide(**{name: figure(name, None, note="no answer has a token")})
    (failed,) = [gate for gate in noted.values() if not gate.passed]
    assert failed.why == "Held: no answer has a token. A gate without its figure stays shut."
    assert failed.value is None


def test_the_reward_models_gate_is_there_only_when_asked_for() -> None:
    """E1: from .6, a lower end of .61 passes and of .59 does not; a missing reward model fails."""
    asked = GateSettings(min_reward_accuracy_low=0.6)
    for low, passed in [(0.61, True), (0.6, True), (0.59, False), (None, False)]:
        held = decide(asked, reward_accuracy=figure("reward_accuracy", 0.7, low=low))
        assert held["reward_accuracy"].passed is passed
    assert not decide(asked)["reward_accuracy"].passed
    assert "reward_accuracy" not in decide()


def test_every_sentence_reads_aloud() -> None:
    """E7: Passed or Held first, a full stop last, no field name in it."""
    for value in (-3.0, 0.0, 0.3, 9.0):
        made = decide(
            GateSettings(min_reward_accuracy_low=0.5),
            **{name: figure(name, value, low=value, high=value, n=1) for name in [*GOOD, "reward_accuracy"]},
        )
        for gate in made.values():
            assert gate.why.startswith("Passed: " if gate.passed else "Held: ")
            assert gate.why.endswith(".")
            assert "_" not in gate.why
            assert "1 votes" not in gate.why


def test_no_gate_is_no_verdict() -> None:
    """E2: nothing checked is not a promotion."""
    with pytest.raises(DataError, match="no gate"):
        verdict([])
