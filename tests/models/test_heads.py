"""Reward and value heads: where they read, how they start, what a folder keeps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings
from thumbwheel.errors import CheckpointError, DataError
from thumbwheel.models.heads import RewardModel, ValueHead, load_reward_model
from thumbwheel.models.language import load
from thumbwheel.testing.models import tiny_language_model

ROWS = [token_row([257, 1, 2], [3, 4, 258]), token_row([257, 1, 2], [5, 258]), token_row([257, 9], list(range(99)))]
SETTINGS = ModelSettings(lora_r=2, dtype="float32", device="cpu")


def test_the_reward_head_starts_as_noise_of_the_known_size_and_a_zero_bias() -> None:
    """Golden values: N(0, 1/√(d+1)), bias 0; d = 4095 gives a deviation of 1/64, checked to 5 %."""
    model = RewardModel(tiny_language_model(dim=64), seed=3)
    assert model.bias.tolist() == 0.0
    assert model.weight.shape == (64,)
    wide = RewardModel(tiny_language_model(layers=1, dim=4096, intermediate_size=4), seed=3)
    measured = float(wide.weight.detach().std()) * math.sqrt(4097)
    assert measured == pytest.approx(1.0, abs=0.05)


def test_the_same_seed_gives_the_same_head() -> None:
    """Pitfalls: same seed twice; the global state has no say."""
    first = RewardModel(tiny_language_model(), seed=3)
    torch.manual_seed(99)
    assert torch.equal(first.weight, RewardModel(tiny_language_model(), seed=3).weight)
    assert not torch.equal(first.weight, RewardModel(tiny_language_model(), seed=4).weight)


def test_the_score_is_read_at_the_last_real_token() -> None:
    """Golden values: reward reading is at the last real token; appending padding changes nothing."""
    model = RewardModel(tiny_language_model(), seed=0)
    network = model.language_model.network
    for row, score in zip(ROWS, model.scores(pack(ROWS)).tolist(), strict=True):
        padded = torch.cat([torch.from_numpy(row.ids), torch.full((5,), 256)])[None]
        hidden = network.model(input_ids=padded).last_hidden_state[0, len(row) - 1]
        assert score == pytest.approx(float((hidden @ model.weight).detach()), abs=1e-5)


def test_a_row_scores_alike_alone_and_beside_others() -> None:
    """Pitfalls: equal to 1e-5."""
    model = RewardModel(tiny_language_model(), seed=0)
    together = model.scores(pack(ROWS)).tolist()
    alone = [float(model.scores(pack([row])).detach()[0]) for row in ROWS]
    assert together == pytest.approx(alone, abs=1e-5)


def test_scores_are_float32_and_carry_a_gradient_in_half_precision_too() -> None:
    """P9: reward scoring in float32. (bf16 makes .901 equal .902.)"""
    trunk = tiny_language_model(compute_dtype=torch.bfloat16)
    trunk.make_trainable(SETTINGS, seed=0)
    model = RewardModel(trunk)
    scores = model.scores(pack(ROWS))
    assert scores.dtype == torch.float32
    scores.sum().backward()
    assert model.weight.grad is not None
    assert float(model.bias.grad) == len(ROWS)


def test_normalised_scores_have_mean_0_and_deviation_1() -> None:
    """R7: by hand: (1, 3) has mean 2 and deviation 1, so a raw score of 5 becomes 3."""
    model = RewardModel(tiny_language_model())
    model.normalise(torch.tensor([1.0, 3.0]))
    assert (float(model.mean), float(model.deviation)) == (2.0, 1.0)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(5.0)
    assert model.scores(pack(ROWS[:1])).tolist() == [3.0]
    assert model.raw_scores(pack(ROWS[:1])).tolist() == [5.0]
    with pytest.raises(DataError, match="alike"):
        model.normalise(torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_saved_and_loaded_it_scores_the_same(adapter: str, tmp_path: Path) -> None:
    """Pitfalls: reward model saved (also with adapters), loaded, scored: equal to 1e-6."""
    tiny_language_model().save(tmp_path / "base")
    settings = SETTINGS.model_copy(update={"path": str(tmp_path / "base"), "adapter": adapter})
    model = RewardModel(load(settings, trainable=True), seed=1)
    with torch.no_grad():
        for parameter in model.trainable():
            parameter += 0.05
    model.normalise(torch.tensor([0.5, 1.5, 4.0]))
    model.save(tmp_path / "reward")
    again = load_reward_model(settings.model_copy(update={"path": str(tmp_path / "reward")}))
    want = model.scores(pack(ROWS)).tolist()
    assert again.scores(pack(ROWS)).tolist() == pytest.approx(want, abs=1e-6)
    assert again.mean == model.mean


@pytest.mark.parametrize("harm", ["missing", "cut", "other width"])
def test_a_missing_or_broken_head_is_an_error_never_a_random_one(harm: str, tmp_path: Path) -> None:
    """Pitfalls: a missing head is an error."""
    RewardModel(tiny_language_model()).save(tmp_path / "reward")
    head = tmp_path / "reward" / "head.safetensors"
    if harm == "missing":
        head.unlink()
    elif harm == "cut":
        head.write_bytes(head.read_bytes()[:-9])
    else:
        RewardModel(tiny_language_model(dim=32)).save(tmp_path / "other")
        head.write_bytes((tmp_path / "other" / "head.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="head"):
        load_reward_model(SETTINGS.model_copy(update={"path": str(tmp_path / "reward")}))


def test_the_value_head_starts_at_zero_so_the_first_advantage_is_the_return() -> None:
    """Golden values: value head zeros."""
    head = ValueHead(4)
    values = head(torch.randn(7, 4).bfloat16())
    assert values.dtype == torch.float32
    assert values.tolist() == [0.0] * 7
    values.sum().backward()
    assert float(head.bias.grad) == 7.0
