"""The benchmark of a task that a checker can score: its task, its figures, and a whole run with a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'train'")

from benchmarks import verifiable
from benchmarks.verifiable import Arm, Size, accuracy_rows, gain, jumps, settings_of, stability_rows, unevenness
from benchmarks.verifiable_task import Question, Task, installed
from thumbwheel.config import ModelSettings
from thumbwheel.records import Message
from thumbwheel.testing.models import tiny_language_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "verifiable.md"
needs_reasoning_gym = pytest.mark.skipif(not installed(), reason="needs the extra 'bench' (reasoning-gym)")


def arm(
    rewards: list[float], right: list[float], *, group: int = 4, seed: int = 0, norms: list[float] | None = None
) -> Arm:
    norms = norms or [1.0] * len(rewards)
    lines = tuple(
        {
            "reward": reward, "grad_norm": norm, "flat_groups": 3.0, "too_hard": 2.0, "too_easy": 1.0,
            "kl_per_response_nats": 0.5, "seconds": 2.0,
        }
        for reward, norm in zip(rewards, norms, strict=True)
    )  # fmt: skip
    return Arm(group, seed, 6, lines, np.array(right))


# ---------------------------------------------------------------------- figures


def test_jumps_are_the_deviation_of_the_changes() -> None:
    """Changes +1, -1 have deviation 1; a straight rise does not jump at all; one value has no change."""
    assert jumps(np.array([0.0, 1.0, 0.0])) == 1.0
    assert jumps(np.array([0.1, 0.2, 0.3])) == pytest.approx(0.0, abs=1e-12)
    assert jumps(np.array([0.4])) == 0.0


def test_unevenness_without_a_gradient_is_nothing() -> None:
    assert unevenness(np.array([1.0, np.nan, 3.0])) == 0.5
    assert unevenness(np.array([0.0, 0.0])) == 0.0
    assert unevenness(np.array([np.nan])) == 0.0


def test_the_gain_is_paired_by_question() -> None:
    """Before 1 of 4; after 3 and 4 of 4: the mean gain is 3.5/4 - 1/4. The same question gained in every draw: no width."""
    before = np.array([1.0, 0.0, 0.0, 0.0])
    found = gain(before, [np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0])])
    assert found.value == pytest.approx(0.625)
    same = gain(np.zeros(50), [np.ones(50)])
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


def test_goals_are_missed_where_nothing_was_learned() -> None:
    """No gain: the interval holds 0, the ratio is 1, and the baseline is above."""
    right = np.array([1.0] * 20 + [0.0] * 180)
    rows = accuracy_rows(8, right, [arm([0.1], list(right), group=8)], baseline=0.3)
    assert [row.met for row in rows if row.goal is not None] == [False, False, False]


def test_goals_are_met_where_all_was_learned() -> None:
    before = np.array([1.0] * 20 + [0.0] * 180)
    rows = accuracy_rows(8, before, [arm([0.1], [1.0] * 200, group=8)], baseline=0.3)
    assert [row.met for row in rows if row.goal is not None] == [True, True, True]


def test_twice_as_much_is_asked_of_the_usual_group_size_alone() -> None:
    """From .4 to .6: every size gained and beats the baseline; only the usual one, 8, had to double."""
    before = np.array([1.0] * 80 + [0.0] * 120)
    after = [1.0] * 120 + [0.0] * 80
    met = {
        n: [row.met for row in accuracy_rows(n, before, [arm([0.1], after)], baseline=0.3) if row.goal is not None]
        for n in (4, 8)
    }
    assert met == {4: [True, True], 8: [False, True, True]}


def test_the_worst_seed_is_held_against_the_baseline() -> None:
    """A mean of .6 over seeds does not hide a seed that is no better than answering without reading."""
    before = np.zeros(200)
    arms = [arm([0.1], [1.0] * 200), arm([0.1], [1.0] * 40 + [0.0] * 160, seed=1)]
    row = next(row for row in accuracy_rows(4, before, arms, baseline=0.3) if "worst seed" in row.name)
    assert row.met is False


def test_stability_is_averaged_over_seeds() -> None:
    """Norms 1, 3 and 2, 2: std over mean is 1/2 and 0. Three of six groups are flat, one of them too easy."""
    arms = [arm([0.0, 1.0], [1.0, 0.0], norms=[1.0, 3.0]), arm([0.0, 0.0], [1.0, 1.0], seed=1, norms=[2.0, 2.0])]
    rows = {row.name.removeprefix("group 4: "): row.ours for row in stability_rows(4, arms)}
    assert rows["gradient norm, std over mean"] == 0.25
    assert rows["reward, mean over all iterations"] == 0.25
    assert rows["share of groups that teach nothing"] == 0.5
    assert rows["share too easy"] == pytest.approx(1 / 6)
    assert rows["accuracy, best seed less worst"] == 0.5


@pytest.mark.parametrize("group", [4, 8, 16])
def test_every_group_size_samples_as_many_answers(group: int) -> None:
    settings = settings_of(Size(), group, 0)
    assert settings.prompts_per_iteration * settings.answers_per_prompt == 64
    assert settings.batch_size == settings.prompts_per_iteration


# ---------------------------------------------------------------------- task


@needs_reasoning_gym
def test_questions_to_learn_from_are_none_of_the_held_out() -> None:
    """Seeds that lie close give the same entries: the test set, and the training sets of two seeds, share nothing."""
    task = Task(3)
    test = task.test(60)
    first, second = (task.train(80, seed=seed, without=test) for seed in (0, 1))
    prompts = [question.prompt for question in (*test, *first, *second)]
    assert len(set(prompts)) == len(prompts) == 220


@needs_reasoning_gym
def test_what_is_held_out_is_left_out_of_training() -> None:
    task = Task(2)
    usual = task.train(10, seed=0)
    without = task.train(10, seed=0, without=usual[:4])
    assert len(without) == 10
    assert not {question.prompt for question in without} & {question.prompt for question in usual[:4]}


@needs_reasoning_gym
def test_the_checker_wants_the_name_alone() -> None:
    task = Task(2)
    question = Question(
        (Message(role="user", content="Kim likes tea. Bo likes rice. \nWho likes tea?"),), "Kim", ("Kim", "Bo")
    )
    texts = ["Kim", " kim.\n", "Bo", "The answer is Kim", "Kim likes tea", ""]
    assert [task.right(question, text) for text in texts] == [1, 1, 0, 0, 0, 0]
    scores = task.reward([question])([question.prompt] * 2, ["Kim", "Bo"])
    assert list(scores.total) == [1.0, 0.0]
    assert list(scores.columns["right"]) == [1.0, 0.0]


@needs_reasoning_gym
def test_answers_without_reading() -> None:
    """Two of three have the same answer, one of three is answered by its first name, a name at random is right half the time."""
    task = Task(2)
    asked = (Message(role="user", content="?"),)
    questions = [
        Question(asked, "Kim", ("Kim", "Bo")),
        Question(asked, "Kim", ("Lee", "Kim")),
        Question(asked, "Ann", ("Bo", "Ann")),
    ]
    always_kim, first, any_name = task.without_learning(questions).values()
    assert (always_kim, first, any_name) == (pytest.approx(2 / 3), pytest.approx(1 / 3), pytest.approx(1 / 2))


@needs_reasoning_gym
def test_names_are_those_of_the_text() -> None:
    for question in Task(4).test(30):
        assert len(question.names) == 4
        assert question.names.count(question.answer) >= 1


# ---------------------------------------------------------------------- the page about it


def code_of_the_page() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_checker_of_the_page_knows_sums() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_of_the_page()[0], "sums.py", "exec"), names)
    asked = (Message(role="user", content="12 + 30 ="),)
    assert [names["right"](asked, text) for text in ("42", " 42\n", "43", "The answer is 42")] == [1.0, 1.0, 0.0, 0.0]


def test_the_page_learns_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code, with one iteration for twenty; a tiny model."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code_of_the_page()[1].replace("iterations=20", "iterations=1"), "page", "exec"), names)
    model = tiny_language_model()
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    names["learn"](model, {(Message(role="user", content=f"{n} + 1 ="),): str(n + 1) for n in range(8)})
    line = json.loads((tmp_path / "trained/solutions/metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert line["right"] == line["reward"] == 0.0


# ---------------------------------------------------------------------- whole runs


def test_without_the_package_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verifiable, "installed", lambda: False)
    assert verifiable.main([]) == 2
    assert ".[train,bench]" in capsys.readouterr().err


@needs_reasoning_gym
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--answers", "10", "--groups", "4"], "multiple of a group of 4"),
        (["--groups", "1"], "a group of 1"),
        (["--seeds", "0"], "0 is not 1 or more"),
        (["--held-out", "-5"], "-5 is not 1 or more"),
        (["--iterations", "many"], "invalid count value: 'many'"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verifiable.main(given)
    assert said in capsys.readouterr().err


@needs_reasoning_gym
def test_a_whole_run_with_a_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random model learns nothing: the table, the figure and the JSON are there, and the goals are missed."""

    def tiny(path: str) -> object:
        model = tiny_language_model()
        model.make_trainable(ModelSettings(adapter="full"), seed=0)
        return model

    monkeypatch.setattr(verifiable, "fresh", tiny)
    folder = tmp_path / "not" / "there yet"
    given = ["--groups", "2", "4", "--seeds", "2", "--iterations", "2", "--answers", "4", "--held-out", "6"]
    assert verifiable.main([*given, "--statements", "2", "--folder", str(folder)]) == 1
    entries = {entry["name"]: entry for entry in json.loads((folder / "verifiable.json").read_text(encoding="utf-8"))}
    assert entries["group 4: gain, low"]["ok"] is False
    assert entries["minutes"]["ok"] is True
    assert entries["accuracy before"]["value"] == 0.0
    figure = (folder / "verifiable-groups.svg").read_text(encoding="utf-8")
    assert figure.startswith("<?xml")
    assert "group 4, seed 1: accuracy" in capsys.readouterr().err
