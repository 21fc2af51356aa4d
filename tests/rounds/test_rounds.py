"""W3, X4: a round on a tiny model: gathered, trained, measured blind, promoted or held; resumable at every stage."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.config import Settings, from_tree
from thumbwheel.errors import CheckpointError, DataError
from thumbwheel.recorder import Recorder
from thumbwheel.records import Feedback, Prompt, Step
from thumbwheel.rounds import run as rounds
from thumbwheel.rounds.run import STAGES, run
from thumbwheel.rounds.watch import Silent
from thumbwheel.stores.base import Store
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Killed(Exception):
    """What a test raises in the middle of a stage."""


def clock() -> datetime:
    return NOW


def likes_short(prompt: Prompt, text: str) -> float:
    """A judge rule."""
    return -float(len(text))


def always_new(prompt: Prompt, text: str) -> float:
    return 0.0


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_language_model(seed=1).save(folder)
    return folder


@pytest.fixture
def settings(tmp_path: Path, model_folder: Path) -> Settings:
    return settings_in(tmp_path, model_folder)


def settings_in(tmp_path: Path, model_folder: Path, **more: Any) -> Settings:
    tree: dict[str, Any] = {
        "store": {"url": f"sqlite:///{tmp_path / 'store.db'}", "folder": tmp_path / "data"},
        "model": {"path": str(model_folder), "dtype": "float32", "lora_r": 4},
        "sample": {"max_new_tokens": 8},
        "reward": {"trunk": "language_model", "batch_size": 4, "eval_share": 0.0},
        "update": {"lr": 1e-3, "epochs": 1, "batch_size": 4, "checkpoint_every_steps": 1},
        "evals": {"judge": "tests.rounds.test_rounds:likes_short", "prompts": 6, "bootstrap_samples": 50},
        "round": {"min_preferences": 4, "progress": False},
    }
    for section, values in more.items():
        tree[section] = {**tree.get(section, {}), **values}
    return from_tree(tree)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings.store.url)
    fill(opened, range(24))
    yield opened
    opened.close()


def fill(store: Store, numbers: range) -> None:
    """A prompt, two answers and a choice for each number."""
    recorder = Recorder(clock=clock, make_id=iter(f"id{numbers.start}-{i}" for i in range(10_000)).__next__, who="u1")
    steps: list[Step] = []
    feedback: list[Feedback] = []
    for n in numbers:
        a, b = (
            recorder.step(f"question {n}", text, task_id=f"t{n}", attempt=i)
            for i, text in enumerate((f"yes {n}", f"no {n} no"))
        )
        steps += [a, b]
        feedback.append(recorder.choice([a, b], a))
    store.add_steps(steps)
    store.add_feedback(feedback, now=NOW)


def test_a_round_leaves_a_version_a_report_and_its_lineage(store: Store, settings: Settings) -> None:
    watch = Silent()
    result = run(store, settings, clock=clock, watch=watch)
    assert [name for name, _ in watch.stages] == list(STAGES)
    version = store.versions()[-1]
    assert version.id == result.report.policy == "v1"
    assert version.status == {"promote": "live", "hold": "held"}[result.report.verdict]
    assert version.report_id == result.report.id
    update = store.update(version.update_id or "")
    assert update is not None
    assert update.feedback_ids
    assert store.learned_from(update.feedback_ids[0]) == [update.id]
    page = json.loads(result.json.read_text(encoding="utf-8"))
    assert page["verdict"] == result.report.verdict
    assert page["parent"] == "v0"
    assert "<html" in result.html.read_text(encoding="utf-8")


def test_no_prompt_is_both_trained_on_and_measured_on(store: Store, settings: Settings) -> None:
    run(store, settings, clock=clock, watch=Silent())
    folder = settings.store.folder / "rounds" / "r0001"
    gathered = json.loads((folder / "gather.json").read_text(encoding="utf-8"))
    held = {prompt[0]["content"] for prompt in gathered["prompts"]}
    trained = {row.prompt[0].content for row in rounds.read_rows(gathered["train"])}
    assert held
    assert trained
    assert not held & trained


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_it_goes_on_to_the_same_result(
    stage: str, store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_folder: Path
) -> None:
    """The stage's work is done and its outcome is lost, as by a kill just before the rename."""
    name = f"_{stage}"
    whole = getattr(rounds._Round, name)

    def killed(self: Any, done: Any) -> Any:
        whole(self, done)
        raise Killed

    monkeypatch.setattr(rounds._Round, name, killed)
    with pytest.raises(Killed):
        run(store, settings, clock=clock, watch=Silent())
    monkeypatch.setattr(rounds._Round, name, whole)
    watch = Silent()
    again = run(store, settings, clock=clock, watch=watch)
    assert dict(watch.stages) == {one: STAGES.index(one) < STAGES.index(stage) for one in STAGES}
    assert len(store.versions()) == 2

    straight_settings = settings_in(tmp_path / "straight", model_folder)
    other = open_store(straight_settings.store.url)
    try:
        fill(other, range(24))
        straight = run(other, straight_settings, clock=clock, watch=Silent())
    finally:
        other.close()
    for figure in straight.report.figures:
        resumed = again.report.figure(figure.name)
        assert resumed is not None
        if figure.value is None:
            assert resumed.value is None
        else:
            assert resumed.value is not None
            assert math.isclose(resumed.value, figure.value, abs_tol=1e-9), figure.name


def test_an_unfinished_round_refuses_other_settings_and_new_leaves_it(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_folder: Path
) -> None:
    def killed(self: Any, done: Any) -> Any:
        raise Killed

    monkeypatch.setattr(rounds._Round, "_update", killed)
    with pytest.raises(Killed):
        run(store, settings, clock=clock, watch=Silent())
    monkeypatch.undo()
    other = settings_in(tmp_path, model_folder, update={"beta": 0.3, "lr": 1e-3, "epochs": 1, "batch_size": 4})
    with pytest.raises(CheckpointError, match=r"another settings.*--new"):
        run(store, other, clock=clock, watch=Silent())
    assert run(store, other, clock=clock, watch=Silent(), fresh=True).id == "r0002"


def test_too_little_feedback_is_refused_with_what_to_do(tmp_path: Path, model_folder: Path) -> None:
    settings = settings_in(tmp_path, model_folder)
    empty = open_store(settings.store.url)
    try:
        with pytest.raises(DataError, match="thumbwheel import"):
            run(empty, settings, clock=clock, watch=Silent())
        fill(empty, range(3))
        with pytest.raises(DataError, match="4 are needed"):
            run(empty, settings, clock=clock, watch=Silent())
    finally:
        empty.close()


def test_a_second_round_learns_from_new_feedback_only(
    store: Store, settings: Settings, tmp_path: Path, model_folder: Path
) -> None:
    easy = settings_in(
        tmp_path,
        model_folder,
        gates={
            "min_win_rate_low": 0.0,
            "max_nats_per_token_drop": 99,
            "max_length_ratio": 99,
            "repetition_margin": 1.0,
        },
    )
    first = run(store, easy, clock=clock, watch=Silent())
    assert first.report.verdict == "promote"
    with pytest.raises(DataError, match="already learned"):
        run(store, easy, clock=clock, watch=Silent())
    fill(store, range(100, 124))
    second = run(store, easy, clock=clock, watch=Silent())
    assert (second.version.id, second.version.parent) == ("v2", "v1")
    one, two = (store.update(v.update_id or "") for v in store.versions()[1:])
    assert one is not None
    assert two is not None
    assert not set(one.feedback_ids) & set(two.feedback_ids)
    assert store.rollback(now=NOW).id == "v1"


def test_people_vote_through_a_file_and_the_round_goes_on(
    store: Store, settings: Settings, tmp_path: Path, model_folder: Path
) -> None:
    people = settings_in(tmp_path, model_folder, evals={"judge": "people", "prompts": 6, "bootstrap_samples": 50})
    with pytest.raises(DataError, match=r"ballots\.jsonl"):
        run(store, people, clock=clock, watch=Silent())
    path = people.store.folder / "rounds" / "r0001" / "ballots.jsonl"
    ballots = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps({**one, "vote": "a", "who": "ann"}) + "\n" for one in ballots), encoding="utf-8")
    result = run(store, people, clock=clock, watch=Silent())
    rate = result.report.figure("win_rate")
    assert rate is not None
    assert rate.value is not None
    assert result.report.details["judge"] == "people"


@pytest.mark.parametrize(
    ("update", "reward"),
    [
        ({"method": "sft"}, {"enabled": False}),
        ({"loss": "kto"}, {"enabled": False}),
        ({"loss": "ipo_averaged"}, {"enabled": False}),
    ],
)
def test_other_updates_turn_the_wheel_too(
    update: dict[str, Any], reward: dict[str, Any], tmp_path: Path, model_folder: Path
) -> None:
    settings = settings_in(tmp_path, model_folder, update=update, reward=reward)
    store = open_store(settings.store.url)
    try:
        fill(store, range(16))
        recorder = Recorder(clock=clock, who="u2")
        steps = list(store.steps())
        feedback = [recorder.thumb(step, up=step.attempt == 0) for step in steps]
        store.add_feedback(feedback, now=NOW)
        result = run(store, settings, clock=clock, watch=Silent())
    finally:
        store.close()
    assert result.report.figure("win_rate") is not None
