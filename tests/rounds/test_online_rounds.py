"""Rounds that learn from fresh answers: every term in metrics and report, an ensemble, a safety term, the fall-back judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_rounds import clock, fill, settings_in

from tests.models.tiny_encoder import write_encoder
from thumbwheel.config import Settings
from thumbwheel.records import Prompt
from thumbwheel.rounds.run import RoundResult, run
from thumbwheel.rounds.watch import Silent
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model

HERE = "tests.rounds.test_online_rounds"


def unsafe(prompt: Prompt, text: str) -> float:
    """A made-up classifier, which knows nothing of the reward model: the probability that an answer is unsafe."""
    return min(1.0, sum(not letter.isascii() for letter in text) / 4)


def brief(prompt: Prompt, text: str) -> float:
    return -len(text) / 10


def jumpy(prompt: Prompt, text: str) -> float:
    return float(text.count("e"))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_language_model(seed=1, layers=1, dim=32).save(folder)
    return folder


def turned(place: Path, model: Path, online: dict[str, Any], **more: Any) -> tuple[RoundResult, Silent, Settings]:
    base: dict[str, Any] = {
        "iterations": 3, "prompts_per_iteration": 3, "answers_per_prompt": 4, "batch_size": 3, "lr": 3e-3,
        "checkpoint_every_steps": 1,
    }  # fmt: skip
    judge = {"judge": "tests.rounds.test_rounds:likes_short"}
    settings = settings_in(
        place, model, update={"method": "online"}, online={**base, **online}, **{"evals": judge, **more}
    )
    watch = Silent()
    with open_store(settings.store.url) as store:
        fill(store, range(24))
        result = run(store, settings, clock=clock, watch=watch)
    return result, watch, settings


def lines(settings: Settings, part: str = "update") -> list[dict[str, float]]:
    path = settings.store.folder / "rounds" / "r0001" / part / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


TERMS = [
    {"name": "human", "scorer": "lower_bound", "deviations": 0.5},
    {"name": "first", "scorer": "reward_model.0", "weight": 0.0},
    {"name": "safety", "scorer": f"{HERE}:unsafe", "weight": -2.0},
    {"name": "gold", "scorer": f"{HERE}:brief", "weight": 0.0},
    {"name": "repetition", "scorer": "repetition", "role": "multiply"},
]


@pytest.mark.parametrize("trunk", ["encoder", "language_model"])
def test_every_term_has_a_column_a_figure_and_a_curve(tmp_path: Path, model_folder: Path, trunk: str) -> None:
    """R6, R8, P6: an ensemble's lower bound, a safety term that is independent of it, a gold term of weight 0."""
    reward = {
        "trunk": trunk, "members": 3, "encoder": str(write_encoder(tmp_path / "encoder")), "encoder_recipes": ["surface"],
        "encoder_folds": 2,
    }  # fmt: skip
    result, watch, settings = turned(tmp_path, model_folder, {"reward": {"terms": TERMS}}, reward=reward)
    for line in lines(settings):
        assert {"human", "first", "safety", "gold", "term_repetition", "reward_spread", "coefficient"} <= line.keys()
        assert 0.0 <= line["safety"] <= 1.0
        assert line["reward_spread"] > 0.0
    folder = settings.store.folder / "rounds" / "r0001"
    assert {path.name for path in (folder / "reward").glob("member-*")} == {"member-0", "member-1", "member-2"}
    assert any("ensemble of 3 reward models" in line and "part by" in line for line in watch.lines)
    spread = result.report.figure("reward_spread")
    assert spread is not None
    assert spread.value is not None
    assert spread.value > 0
    assert spread.n is not None
    page = result.html.read_text("utf-8")
    for name in ("human", "first", "safety", "gold", "repetition", "reward spread"):
        assert f"term “{name}”" in page, name
        assert f"Reward term: {name}" in page, name
    for name in ("KL to the reference, nats a response", "nats a token", "β, the pull", "Entropy", "Length of answers",
                 "Repeated 3-grams", "too easy", "too hard", "Answers without a reward"):  # fmt: skip
        assert name in page, name
    assert "The guard raised no alarm." in page
    if trunk == "language_model":
        assert "Reward model 1 of 3" in page


def test_the_policy_that_the_guard_fell_back_to_is_judged_like_any_other(tmp_path: Path, model_folder: Path) -> None:
    """P6: the round's own preferences are what it falls back on; the actions stand on the page, a sentence each."""
    online = {
        "iterations": 20, "lr": 2e-2, "kl": {"coefficient": 0.0},
        "reward": {"terms": [{"name": "e", "scorer": f"{HERE}:jumpy"}]},
        "guard": {"max_kl_per_response_nats": 0.02, "warnings_before_rollback": 1, "max_rollbacks": 1},
    }  # fmt: skip
    result, watch, settings = turned(tmp_path, model_folder, online, reward={"enabled": False})
    folder = settings.store.folder / "rounds" / "r0001"
    update = json.loads((folder / "update.json").read_text("utf-8"))
    assert "Learned by DPO from" in update["actions"][-1]
    assert lines(settings, "update/dpo"), "DPO learned from the round's preferences"
    assert result.report.verdict in ("promote", "hold")
    rate = result.report.figure("win_rate")
    assert rate is not None
    assert rate.n == 6
    page = result.html.read_text("utf-8")
    assert f"The guard acted {len(update['actions'])} times during training" in page
    for action in update["actions"]:
        assert f"<li>{action[0].upper()}{action[1:]}</li>" in page.replace("&#39;", "'")
        assert f"guard: {action}" in watch.lines
    assert "DPO after the guard gave up" in page
    assert json.loads(result.json.read_text("utf-8"))["details"]["guard"] == update["actions"]


def test_answers_without_a_reward_are_told_with_their_reason(tmp_path: Path, model_folder: Path) -> None:
    """R8: in the output and on the page."""
    terms = [
        {"name": "length", "scorer": f"{HERE}:brief"},
        {"name": "shaky", "scorer": f"{HERE}:fails_at_times", "weight": 0.0},
    ]
    online = {"max_unscored_share": 1.0, "reward": {"terms": terms}}
    result, watch, settings = turned(tmp_path, model_folder, online, reward={"enabled": False})
    lost = sum(line["unscored"] for line in lines(settings))
    assert 0 < lost < 36
    told = f"{lost:.0f} of 36 answers have no reward and were not learned from. Unscored: shaky: ConnectionError"
    assert any(told in line for line in watch.lines)
    assert told in result.html.read_text("utf-8")


def fails_at_times(prompt: Prompt, text: str) -> float:
    if len(text) % 2:
        raise ConnectionError("gone")
    return 0.0
