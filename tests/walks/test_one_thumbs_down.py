"""One thumbs-down, from click to gradient: real HTTP, a real database, a real (tiny) language model. No row calls back up."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from thumbwheel.client import Client
from thumbwheel.config import FeedbackSettings, ModelSettings, Settings, from_tree
from thumbwheel.formulas.preference import dpo as dpo_loss
from thumbwheel.models.language import load
from thumbwheel.records import Preference
from thumbwheel.signals.pairs import preferences
from thumbwheel.stores import snapshots
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.dpo import dpo
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

BETA = 0.1
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def row(tmp_path: Path) -> Preference:
    """A thumbs-down on the first answer and a thumbs-up on the retry, clicked before the retry itself arrived."""
    store = open_store(f"sqlite:///{tmp_path / 'walk.db'}")
    try:
        with running(create_app(store, Settings())) as url, Client(url, who="u1") as client:
            first = client.step("2+2=", "5", task_id="t1")
            client.thumb(first, up=False)
            client.thumb("retry-1", up=True)
            client.step("2+2=", "4", task_id="t1", attempt=1, id="retry-1")
        rows = preferences(store.episodes(), FeedbackSettings()).rows
    finally:
        store.close()
    frozen = snapshots.write(rows, tmp_path)
    (only,) = snapshots.read(frozen.path)
    assert isinstance(only, Preference)
    return only


def test_the_click_becomes_a_preference_with_its_ids(row: Preference) -> None:
    """F1, F4, S2, S3."""
    assert (row.chosen.content, row.rejected.content) == ("4", "5")
    assert len(row.feedback_ids) == 2
    assert row.margin == 2.0


def test_the_first_loss_is_ln_2_and_the_policy_moves_away_from_the_rejected_answer(
    row: Preference, tmp_path: Path
) -> None:
    """P2: at the reference h = 0; the margin is above 0 after one step."""
    tiny_language_model().save(tmp_path / "base")
    model = load(ModelSettings(path=str(tmp_path / "base"), lora_r=4, dtype="float32"), trainable=True)
    settings = from_tree({"update": {"beta": BETA, "lr": 1e-2, "epochs": 2, "batch_size": 1, "eval_share": 0.0}}).update
    result = dpo(model, [row], settings, tmp_path / "run", progress=False)
    assert result.metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert result.metrics["margin"] > 0
    assert result.checkpoint is not None


def test_the_gradient_on_the_rejected_log_probability_is_plus_half_beta() -> None:
    chosen, rejected = (torch.tensor([-3.0], requires_grad=True) for _ in range(2))
    dpo_loss(chosen, rejected, torch.tensor([-3.0]), torch.tensor([-3.0]), beta=BETA).sum().backward()
    assert rejected.grad is not None
    assert chosen.grad is not None
    assert rejected.grad.item() == pytest.approx(BETA / 2)
    assert chosen.grad.item() == pytest.approx(-BETA / 2)
