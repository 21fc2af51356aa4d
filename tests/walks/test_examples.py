"""The teaching examples run, and teach what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_short_and_run_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == [
        "app_with_feedback",
        "dpo_in_one_file",
        "reward_model_in_one_file",
    ]
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 120, path.name


def test_dpo_learns_manners_and_keeps_the_language(capsys: pytest.CaptureFixture[str]) -> None:
    """P2: the first loss is ln 2 = 0.6931; the new policy is surely preferred, and still says greetings."""
    low, whole = example("dpo_in_one_file").main()
    assert "loss at the reference 0.6931" in capsys.readouterr().out
    assert low > 0.5
    assert whole > 0.9


def test_the_reward_model_beats_the_longer_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """R1, R9: with one label in ten wrong, at most 90 % can be reached on labels like these."""
    accuracy, longer = example("reward_model_in_one_file").main()
    assert accuracy > longer + 0.1
    assert 0.75 < accuracy < 0.95
    assert "agrees with users on" in capsys.readouterr().out


def test_the_application_ends_in_three_preferences(tmp_path: Path) -> None:
    """F1, F4: a retry that was liked, a corrected misclick, an edit; words alone make no pair."""
    rows = example("app_with_feedback").main(tmp_path)
    assert {(row.chosen.content, row.rejected.content) for row in rows} == {
        ("Run `git reset --soft HEAD~1`.", "Delete the folder and clone it again."),
        ("17 × 3 is 51.", "It is a bit more than fifty, I would say."),
        ("Saturday.", "Sunday."),
    }
