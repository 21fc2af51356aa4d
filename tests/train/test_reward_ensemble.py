"""R8: an ensemble of reward models on either trunk: its members part, its mean and lower bound are told by hand, it resumes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.tiny_encoder import write_encoder
from thumbwheel.config import CompositeSettings, Settings, from_tree
from thumbwheel.errors import CheckpointError, SettingError
from thumbwheel.records import Message, Preference, Prompt
from thumbwheel.signals.reward_terms import open_reward
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.reward_ensemble import bootstrapped, fit_reward_model, remembered, reward_scorers

QUIET: dict[str, Any] = {"progress": False}


def prompt(text: str) -> Prompt:
    return (Message(role="user", content=text),)


def pair(n: int) -> Preference:
    better, worse = (Message(role="assistant", content=text) for text in (f"yes {n} because", f"no no {n}"))
    return Preference(prompt=prompt(f"question {n}"), chosen=better, rejected=worse)


PAIRS = [pair(n) for n in range(20)]
ASKED = [prompt("question 1"), prompt("question 77"), prompt("why")]
TEXTS = ["yes it is good because", "no", "fast and slow"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_language_model(seed=1, layers=1, dim=32).save(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(params=["encoder", "language_model"])
def settings(request: pytest.FixtureRequest, model_folder: Path, encoder_folder: Path) -> Settings:
    return made(request.param, model_folder, encoder_folder)


def made(trunk: str, model_folder: Path, encoder_folder: Path, **reward: Any) -> Settings:
    reward = {
        "trunk": trunk, "encoder": str(encoder_folder), "encoder_recipes": ["surface"], "encoder_folds": 3, "members": 3,
        "lr": 1e-2, "batch_size": 4, "epochs": 1, "eval_share": 0.0, "checkpoint_every_steps": 1, **reward,
    }  # fmt: skip
    model = {"path": str(model_folder), "dtype": "float32", "lora_r": 2}
    return from_tree({"model": model, "reward": reward})


def test_each_draw_has_as_many_prompts_and_members_draw_otherwise() -> None:
    """A prompt drawn twice weighs twice; pairs of one prompt stay together; weights that were there are kept."""
    draws = [bootstrapped(PAIRS, seed=0, member=k) for k in range(2)]
    for drawn in draws:
        assert sum(row.weight for row in drawn) == 20.0
        assert len(drawn) < 20, "some prompts are left out of a draw"
    assert draws[0] != draws[1]
    assert draws[0] == bootstrapped(PAIRS, seed=0, member=0)
    heavy = [row.model_copy(update={"weight": 0.5}) for row in PAIRS for _ in range(2)]
    for row, beside in zip(*[iter(bootstrapped(heavy, seed=0, member=0))] * 2, strict=True):
        assert row == beside
        assert row.weight in (0.5, 1.0, 1.5, 2.0, 2.5)
    assert bootstrapped([], seed=0, member=0) == []


def test_members_mean_bound_and_spread(settings: Settings, tmp_path: Path) -> None:
    """Mean and deviation (K - 1) by hand of the members' own scores; a name alone is enough for the lower bound."""
    metrics = fit_reward_model(PAIRS, settings, tmp_path, **QUIET)
    assert all(math.isfinite(value) for value in metrics.values())
    scorers = reward_scorers(tmp_path, settings)
    assert set(scorers) == {
        "reward_model", "reward_model.0", "reward_model.1", "reward_model.2", "reward_model.spread",
    }  # fmt: skip
    a, b, c = (scorers[f"reward_model.{k}"](ASKED, TEXTS) for k in range(3))
    assert not np.allclose(a, b, atol=1e-4)
    assert not np.allclose(b, c, atol=1e-4)
    mean = (a + b + c) / 3
    spread = np.sqrt(((a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2) / 2)
    terms = [
        {"name": "low", "scorer": "lower_bound", "deviations": 0.5},
        {"name": "mean", "scorer": "reward_model", "weight": 0.0},
        {"name": "second", "scorer": "reward_model.1", "weight": 0.0},
    ]
    said = open_reward(CompositeSettings.model_validate({"terms": terms}), scorers=scorers)(ASKED, TEXTS)
    assert said.total.tolist() == pytest.approx((mean - 0.5 * spread).tolist(), abs=1e-6)
    assert said.columns["mean"].tolist() == pytest.approx(mean.tolist(), abs=1e-6)
    assert said.columns["second"].tolist() == pytest.approx(b.tolist(), abs=1e-6)
    assert said.columns["reward_spread"].tolist() == pytest.approx(spread.tolist(), abs=1e-6)


def test_a_member_that_is_gone_and_one_model_alone(settings: Settings, tmp_path: Path) -> None:
    fit_reward_model(PAIRS, settings, tmp_path / "three", **QUIET)
    (tmp_path / "three" / "member-1").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="member-1"):
        reward_scorers(tmp_path / "three", settings)
    alone = settings.model_copy(update={"reward": settings.reward.model_copy(update={"members": 1})})
    fit_reward_model(PAIRS, alone, tmp_path / "one", **QUIET)
    scorers = reward_scorers(tmp_path / "one", settings)
    assert set(scorers) == {"reward_model"}
    bound = CompositeSettings.model_validate({"terms": [{"name": "low", "scorer": "lower_bound"}]})
    with pytest.raises(SettingError, match=r"reward\.members"):
        open_reward(bound, scorers=scorers)
    (tmp_path / "three" / "ensemble.json").write_text('{"memb', encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read"):
        reward_scorers(tmp_path / "three", settings)


class Killed(Exception):
    """Stands for a kill."""


def test_killed_in_the_second_member_it_goes_on_bit_for_bit(
    model_folder: Path, encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: the first member is read back, the second goes on from its checkpoint, the third begins."""
    from thumbwheel.train.learner import Learner

    settings = made("language_model", model_folder, encoder_folder)
    fit_reward_model(PAIRS, settings, tmp_path / "straight", **QUIET)
    step, done = Learner.update, 0

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal done
        done += 1
        if done == 6:  # a member takes three or four updates
            raise Killed
        return step(self, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            fit_reward_model(PAIRS, settings, tmp_path / "broken", **QUIET)
    assert (tmp_path / "broken" / "member-1").is_dir()
    assert not (tmp_path / "broken" / "member-2").exists()
    fit_reward_model(PAIRS, settings, tmp_path / "broken", resume=True, **QUIET)
    for k in range(3):
        for file in ("adapter_model.safetensors", "head.safetensors"):
            whole, resumed = (tmp_path / run / f"member-{k}" / "model" / file for run in ("straight", "broken"))
            assert whole.read_bytes() == resumed.read_bytes()


def test_a_member_that_is_asked_again_does_not_score_again() -> None:
    calls = 0

    def score(prompts: Any, texts: Any) -> Any:
        nonlocal calls
        calls += 1
        return np.arange(len(texts), dtype=np.float64)

    once = remembered(score)
    for _ in range(2):
        assert once(ASKED, TEXTS).tolist() == [0.0, 1.0, 2.0]
    assert calls == 1
    assert once(ASKED[:2], TEXTS[:2]).tolist() == [0.0, 1.0]
    assert once(ASKED[1:], TEXTS[:2]).tolist() == [0.0, 1.0]
    assert calls == 3
