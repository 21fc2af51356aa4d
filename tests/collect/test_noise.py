"""Noise rules are data, and every drop has its reason (F2, R12)."""

from __future__ import annotations

from typing import Any

import pytest
from made_records import feedback, step

from thumbwheel.collect.noise import NoiseFilter, Trial, keep
from thumbwheel.config import FeedbackSettings, NoiseRule, load
from thumbwheel.errors import RegistryError, SettingError
from thumbwheel.records import Episode, Feedback

SETTINGS = FeedbackSettings()


def reason(item: Feedback, settings: FeedbackSettings = SETTINGS) -> str | None:
    dropped = keep(item, settings, step=step())
    return dropped.reason if dropped else None


@pytest.mark.parametrize(
    ("kind", "value", "shown", "expected"),
    [
        ("dwell", {"dwell_s": 1.99}, (), "dwell under 2 s"),
        ("dwell", {"dwell_s": 2.0}, (), None),
        ("dwell", {"dwell_s": 1800.0}, (), None),
        ("dwell", {"dwell_s": 1801.0}, (), "dwell over 1800 s"),
        ("edit", {"text": " \n"}, (), "empty edit"),
        ("edit", {"text": ""}, (), "empty edit"),
        ("edit", {"text": " 4\n"}, (), "edit equals the answer"),
        ("edit", {"text": "four"}, (), None),
        ("choice", {"chosen": "Z"}, ("A", "B"), "choice is not among what was shown"),
        ("choice", {"chosen": "A"}, ("A", "B"), None),
        ("choice", {"tie": True}, ("A", "B"), None),
        ("choice", {"tie": True}, ("A",), "not a valid 'choice'"),
        ("comment", {"text": "hm"}, (), "comment only, no verdict"),
        ("copy", {"share": 0.01}, (), "copied under 5 % of the answer"),
        ("copy", {"share": 1.0}, (), None),
        ("thumb", {"up": True}, (), None),
        ("thumb", {"up": "?"}, (), "not a valid 'thumb'"),
        ("thumb", None, (), None),
        ("dwell", {"dwell_s": "long"}, (), "not a valid 'dwell'"),
        ("nothing_known", {}, (), "not a valid 'nothing_known'"),
    ],
)
def test_what_is_void_and_why(kind: str, value: Any, shown: tuple[str, ...], expected: str | None) -> None:
    """F2: a dwell under 2 s is void; so are edits that change nothing and choices of what was not there."""
    assert reason(feedback("f", kind, value, shown=shown)) == expected


def test_the_bounds_of_dwell_are_settings() -> None:
    assert reason(feedback("f", "dwell", {"dwell_s": 4.0}), FeedbackSettings(min_dwell_s=5.0)) == "dwell under 5 s"


def test_rules_come_from_the_settings_file_as_data() -> None:
    """F2: rules are data, not code; a list replaces the default one, the dwell bounds stay."""
    rule = 'feedback.noise_rules=[{kind="stars", test="equals", field="stars", bound=3, reason="neutral stars"}]'
    settings = load(overrides=[rule]).feedback
    assert reason(feedback("f", "stars", {"stars": 3}), settings) == "neutral stars"
    assert reason(feedback("f", "stars", {"stars": 4}), settings) is None
    assert reason(feedback("f", "comment", {"text": "hm"}), settings) is None
    assert reason(feedback("f", "dwell", {"dwell_s": 1.0}), settings) == "dwell under 2 s"


def test_a_rule_for_every_kind_and_a_test_of_ones_own() -> None:
    rule = NoiseRule(kind="*", test=f"{__name__}:from_a_robot", reason="a robot")
    settings = FeedbackSettings(noise_rules=(rule,))
    assert reason(feedback("f", who="robot-7"), settings) == "a robot"
    assert reason(feedback("f", who="ann"), settings) is None


def from_a_robot(trial: Trial) -> bool:
    return (trial.feedback.who or "").startswith("robot")


def test_a_rule_without_its_bound_or_of_an_unknown_test_is_an_error() -> None:
    item = feedback("f", "stars", {"stars": 3})
    with pytest.raises(SettingError, match="needs a bound"):
        reason(item, FeedbackSettings(noise_rules=(NoiseRule(kind="stars", test="below", field="stars", reason="x"),)))
    with pytest.raises(RegistryError, match="Did you mean 'below'"):
        reason(item, FeedbackSettings(noise_rules=(NoiseRule(kind="stars", test="belwo", field="stars", reason="x"),)))


def test_a_retraction_always_counts() -> None:
    assert reason(feedback("f", "edit", None, retracts=True, supersedes="g")) is None


def test_the_filter_counts_what_it_takes_out_and_keeps_the_episode() -> None:
    said = (
        feedback("f1"),
        feedback("f2", "edit", {"text": "4"}),
        feedback("f3", "dwell", {"dwell_s": 0.5}, episode_id="e"),
    )
    quiet = NoiseFilter(SETTINGS)
    episodes = [
        Episode(id="e", task_id="t", steps=(step(),), feedback=said),
        Episode(id="e2", task_id="t", steps=(step(),)),
    ]
    kept = list(quiet(episodes))
    assert [[f.id for f in episode.feedback] for episode in kept] == [["f1"], []]
    assert quiet.line() == "feedback in 3, kept 1, void 2 (edit equals the answer 1, dwell under 2 s 1)"
