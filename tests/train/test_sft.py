"""Supervised fine-tuning (P1)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from made_rows import demonstration, demonstrations, learning_model
from small_task import same_bits, weights_of

from thumbwheel.batches import TokenRow, token_row
from thumbwheel.config import ModelSettings, TrainSettings
from thumbwheel.errors import DataError
from thumbwheel.models.language import load
from thumbwheel.train.rows import Lengths
from thumbwheel.train.sft import Sft, sft, warnings_about
from thumbwheel.train.units import MicroBatch, Unit


def settings(**values: object) -> TrainSettings:
    return TrainSettings.model_validate({"lr": 3e-3, "batch_size": 4, "eval_share": 0.0, **values})


def unit(row: TokenRow, weight: float = 1.0) -> Unit[float]:
    return Unit("row", (row,), weight)


def step_of(model: torch.nn.Module, units: list[Unit[float]]) -> tuple[float, dict[str, torch.Tensor]]:
    """(loss, gradients) of one step."""
    model.zero_grad(set_to_none=True)
    task = Sft(model, units)  # type: ignore[arg-type]
    loss = task.loss(MicroBatch.of(units), task.totals(units)).per_unit.sum()
    if loss.requires_grad:
        loss.backward()
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_a_model_without_preference_starts_at_the_log_of_its_vocabulary() -> None:
    """A head of zeros is uniform over 259 tokens: the loss is ln 259."""
    model = learning_model(tied=False)
    with torch.no_grad():
        model.network.lm_head.weight.zero_()
    loss, _ = step_of(model, [unit(token_row([1, 2], [3, 4, 5])), unit(token_row([9], [7]))])
    assert loss == pytest.approx(math.log(259), abs=1e-5)


def test_every_token_counts_alike() -> None:
    """Token mean, not mean of means: 3 tokens and 1 token weigh 3 : 1."""
    model = learning_model()
    long, short = token_row([1, 2], [3, 4, 5]), token_row([9], [7])
    a, b = step_of(model, [unit(long)])[0], step_of(model, [unit(short)])[0]
    assert step_of(model, [unit(long), unit(short)])[0] == pytest.approx((3 * a + b) / 4, abs=1e-5)


def test_weights_weigh_tokens() -> None:
    model = learning_model()
    long, short = token_row([1, 2], [3, 4, 5]), token_row([9], [7])
    a, b = step_of(model, [unit(long)])[0], step_of(model, [unit(short)])[0]
    loss, _ = step_of(model, [unit(long, 2.0), unit(short, 6.0)])
    assert loss == pytest.approx((2 * 3 * a + 6 * b) / (2 * 3 + 6), abs=1e-5)


def test_a_masked_answer_is_as_if_it_were_not_there() -> None:
    """Pitfall: one 10-token answer and one truncated 100-token answer that is masked = the first alone."""
    model = learning_model()
    dice = np.random.default_rng(0)
    answer = token_row([5, 6, 7], dice.integers(0, 256, 10).tolist())
    cut = token_row([8, 9], dice.integers(0, 256, 100).tolist())
    masked = TokenRow(cut.ids, np.zeros(len(cut), dtype=np.bool_), cut.shared)
    alone, gradients = step_of(model, [unit(answer)])
    loss, with_masked = step_of(model, [unit(answer), unit(masked)])
    assert loss == pytest.approx(alone, abs=1e-6)
    for name, gradient in gradients.items():
        assert torch.allclose(with_masked[name], gradient, atol=1e-6), name


def test_all_answers_masked(tmp_path: Path) -> None:
    """Pitfall: loss 0, gradient 0, counted."""
    model = learning_model()
    masked = TokenRow(np.arange(5), np.zeros(5, dtype=np.bool_), 2)
    loss, gradients = step_of(model, [unit(masked), unit(masked)])
    assert loss == 0.0
    assert not gradients


def test_it_learns_and_saves_what_it_learned(tmp_path: Path) -> None:
    model = learning_model()
    result = sft(model, demonstrations(8), settings(epochs=8), tmp_path, progress=False)
    assert result.metrics["loss"] < 0.7 * result.metrics["first_loss"]
    assert result.checkpoint == tmp_path / "model"
    again = load(ModelSettings(path=str(result.checkpoint), dtype="float32"))
    assert same_bits(weights_of(model), weights_of(again))


def test_held_out_by_prompt(tmp_path: Path) -> None:
    result = sft(learning_model(), demonstrations(40), settings(eval_share=0.25), tmp_path, progress=False)
    assert 0 < result.account.kept < 40
    assert "heldout_loss" in result.metrics


def test_few_and_repeated_demonstrations_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P1: warns under about 1 000, and on duplicates."""
    rows = [*demonstrations(4), *demonstrations(2)]
    result = sft(learning_model(), rows, settings(), tmp_path, progress=False)
    assert any("6 demonstrations are few" in note for note in result.notes)
    assert any("2 of 6 demonstrations are exact duplicates" in note for note in result.notes)
    assert "exact duplicates" in caplog.text


def test_a_thousand_is_enough_and_a_hundred_thousand_is_many() -> None:
    """P1."""
    rows = [unit(token_row([1], [index % 200, index // 200 % 200, index // 40_000])) for index in range(100_001)]
    assert warnings_about(rows[:1000]) == []
    assert warnings_about(rows[:100_000]) == []
    (note,) = warnings_about(rows)
    assert "100001 demonstrations are many" in note


def test_overlong_rows_are_dropped_with_a_count_and_too_many_are_an_error(tmp_path: Path) -> None:
    rows = [*demonstrations(9), demonstration("long", "x" * 300)]
    result = sft(learning_model(), rows, settings(), tmp_path / "a", lengths=Lengths(100), progress=False)
    assert result.account.dropped == {"longer than 100 tokens": 1}
    assert (result.account.read, result.account.kept) == (10, 9)
    with pytest.raises(DataError, match="demonstration 9 has"):
        sft(
            learning_model(), rows, settings(max_unusable_share=0.05), tmp_path / "b", lengths=Lengths(100),
            progress=False,
        )  # fmt: skip
