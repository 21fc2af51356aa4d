"""Gradients do not depend on how a step is cut, packed or padded, nor on who sits beside whom (SFT, reward, DPO, KTO)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thumbwheel.batches import TokenRow, token_row
from thumbwheel.config import TrainSettings, UpdateSettings
from thumbwheel.models.heads import RewardModel
from thumbwheel.models.language import LanguageModel
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.dpo import Dpo, Pair, with_reference
from thumbwheel.train.kto import Kto, Thumb
from thumbwheel.train.kto import with_reference as with_reference_for_kto
from thumbwheel.train.reward import Compared, Reward
from thumbwheel.train.sft import Sft
from thumbwheel.train.task import Task
from thumbwheel.train.units import MicroBatch, Unit

N = 8
CUTS = {"1x8": 8, "2x4": 4, "4x2": 2, "8x1": 1}


def answers(seed: int, longest: int = 24) -> list[int]:
    dice = np.random.default_rng(seed)
    return dice.integers(0, 256, int(dice.integers(1, longest))).tolist()


def model(seed: int = 0) -> LanguageModel:
    made = tiny_language_model(seed, layers=2, dim=32)
    made.network.requires_grad_(True)
    return made


def moved(policy: LanguageModel) -> LanguageModel:
    """As after some training: no longer its own reference."""
    dice = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=dice))
    return policy


def prompts(index: int) -> list[int]:
    return [257, *answers(100 + index // 2, 12)]  # every prompt is asked twice


def sft_task() -> Task[Any]:
    units = [Unit(f"row {i}", (token_row(prompts(i), answers(i)),), 1.0 + i % 3) for i in range(N)]
    return Sft(model(), units)


def reward_task() -> Task[Any]:
    units = []
    for i in range(N):
        rows = tuple(token_row(prompts(i), answers(10 * i + k)) for k in range(2 + i % 3))
        labels = tuple(
            Compared(a, b, 0.5 if (a + b + i) % 5 == 0 else 1.0, 0.1 * i, 1.0 + i)
            for a in range(len(rows))
            for b in range(a + 1, len(rows))
        )
        units.append(Unit(f"prompt {i}", rows, labels))
    return Reward(RewardModel(model()), units, (), tau=0.7, centre=0.01)


def dpo_task(loss: str = "sigmoid") -> Task[Any]:
    policy = model()
    settings = UpdateSettings(loss=loss, beta=0.3, nll_weight=0.2)
    units = [
        Unit(f"pair {i}", tuple(token_row(prompts(i), answers(20 * i + k)) for k in (0, 1)), Pair(0.9, 1.0 + i % 2))
        for i in range(N)
    ]
    made = with_reference(policy, units, settings, Path(tempfile.mkdtemp()))
    return Dpo(moved(policy), made, (), settings)


def kto_task() -> Task[Any]:
    policy = model()
    settings = UpdateSettings(loss="kto", beta=0.3)
    units = [
        Unit(
            f"answer {i}",
            (token_row(prompts(i), answers(30 + i)),),
            Thumb(float(i % 2), 1.0 + i % 3, token_row(prompts(i), answers(60 + i))),
        )
        for i in range(N)
    ]
    return Kto(moved(policy), with_reference_for_kto(policy, units, settings, Path(tempfile.mkdtemp())), (), settings)


TASKS: dict[str, Callable[[], Task[Any]]] = {
    "sft": sft_task,
    "reward": reward_task,
    "dpo": dpo_task,
    "ipo_averaged": lambda: dpo_task("ipo_averaged"),
    "orpo": lambda: dpo_task("orpo"),
    "kto": kto_task,
}


def gradient(task: Task[Any], units: list[Unit[Any]], size: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one step over `units`, `size` of them a micro-batch."""
    task.model.zero_grad(set_to_none=True)
    totals = task.totals(units)
    total = 0.0
    for start in range(0, len(units), size):
        losses = task.loss(MicroBatch.of(units[start : start + size]), totals)
        loss = losses.per_unit.sum()
        if loss.requires_grad:
            loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad.clone() for n, p in task.model.named_parameters() if p.grad is not None}


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    scale = max(1.0, max(float(g.abs().max()) for g in a.values()))
    for name, value in a.items():
        assert float((value - b[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_gradients_are_those_of_the_whole_step_however_it_is_cut(kind: str) -> None:
    """Pitfall: the same 8 samples as 1x8, 2x4, 4x2 and 8x1, unequal lengths: equal to 1e-6."""
    task = TASKS[kind]()
    units = list(task.units)
    whole, expected = gradient(task, units, N)
    assert any(float(value.abs().max()) > 1e-3 for value in expected.values()), "there is something to compare"
    for size in CUTS.values():
        loss, got = gradient(task, units, size)
        assert loss == pytest.approx(whole, abs=1e-6 * max(1.0, abs(whole)))
        close(expected, got)


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_the_order_within_a_step_does_not_matter(kind: str) -> None:
    task = TASKS[kind]()
    units = list(task.units)
    whole, expected = gradient(task, units, N)
    loss, got = gradient(task, units[::-1], 3)
    assert loss == pytest.approx(whole, abs=1e-6 * max(1.0, abs(whole)))
    close(expected, got)


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo", "kto"])
def test_a_neighbour_changes_nothing(kind: str) -> None:
    """Neighbours: each unit's loss alone is its loss beside the others."""
    task = TASKS[kind]()
    units = list(task.units)
    totals = task.totals(units)
    with torch.no_grad():
        together = task.loss(MicroBatch.of(units), totals).per_unit
        alone = torch.cat([task.loss(MicroBatch.of([unit]), totals).per_unit for unit in units])
    assert torch.allclose(together, alone, atol=1e-5)


def padded(rows: list[TokenRow], side: str, extra: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows) + extra
    ids, mask, trained = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    for place, row in enumerate(rows):
        span = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[place, span] = torch.from_numpy(row.ids)
        mask[place, span] = 1
        trained[place, span] = torch.from_numpy(row.trained).long()
    return ids, mask, trained


def plain_logps(network: Any, rows: list[TokenRow], side: str, extra: int) -> torch.Tensor:
    """What transformers computes with padding: (R,) summed log-probabilities."""
    ids, mask, trained = padded(rows, side, extra)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = network(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logp = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    return (logp * trained[:, 1:]).sum(1)


@pytest.mark.parametrize(("side", "extra"), [("right", 0), ("right", 17), ("left", 0), ("left", 17)])
def test_sft_and_dpo_gradients_are_those_of_a_padded_computation(side: str, extra: int) -> None:
    """Padding side and amount: packed lines give what padded transformers gives."""
    task = sft_task()
    policy: Any = task.model
    loss, got = gradient(task, list(task.units), N)
    policy.zero_grad(set_to_none=True)
    rows = [unit.rows[0] for unit in task.units]
    weight = torch.tensor([unit.label for unit in task.units])
    total = sum(unit.label * int(unit.rows[0].trained.sum()) for unit in task.units)
    expected = -(plain_logps(policy.network, rows, side, extra) * weight).sum() / total
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    close({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}, got, 1e-5)

    pairs = dpo_task()
    policy = pairs.model
    loss, got = gradient(pairs, list(pairs.units), N)
    policy.zero_grad(set_to_none=True)
    chosen, rejected = (plain_logps(policy.network, [u.rows[k] for u in pairs.units], side, extra) for k in (0, 1))
    ref = torch.tensor([unit.label.reference for unit in pairs.units])
    gap = 0.3 * ((chosen - ref[:, 0]) - (rejected - ref[:, 1]))
    each = -0.9 * torch.nn.functional.logsigmoid(gap) - 0.1 * torch.nn.functional.logsigmoid(-gap)
    lengths = torch.tensor([int(u.rows[0].trained.sum()) for u in pairs.units])
    weight = torch.tensor([unit.label.weight for unit in pairs.units])
    plain = ((each - 0.2 * chosen / lengths) * weight).sum() / weight.sum()
    plain.backward()
    assert loss == pytest.approx(float(plain.detach()), abs=1e-5)
    close({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}, got, 1e-5)


def test_the_first_gradients_of_dpo_on_a_real_model_are_half_beta() -> None:
    """Loss ln 2; by the chain rule the gradient is β/2 · ∇(log π(l) - log π(w))."""
    policy = model()
    settings = UpdateSettings(beta=0.3)
    unit = Unit("pair", (token_row([257, 1], [5, 6]), token_row([257, 1], [7])), Pair(1.0, 1.0))
    task = Dpo(policy, with_reference(policy, [unit], settings, Path(tempfile.mkdtemp())), (), settings)
    loss, got = gradient(task, list(task.units), 1)
    assert loss == pytest.approx(math.log(2), abs=1e-6)
    policy.zero_grad(set_to_none=True)
    chosen, rejected = plain_logps(policy.network, list(unit.rows), "right", 0)
    (0.15 * (rejected - chosen)).backward()
    close({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}, got)


def test_adapters_too() -> None:
    """The same 8 pairs through adapters on frozen weights."""
    from thumbwheel.config import ModelSettings

    policy = tiny_language_model(0, layers=2, dim=32)
    policy.make_trainable(ModelSettings(lora_r=4), seed=0)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(0.02)
    settings = UpdateSettings(beta=0.3)
    units = [
        Unit(f"pair {i}", tuple(token_row(prompts(i), answers(20 * i + k)) for k in (0, 1)), Pair(1.0, 1.0))
        for i in range(N)
    ]
    task = Dpo(policy, with_reference(policy, units, settings, Path(tempfile.mkdtemp())), (), settings)
    whole, expected = gradient(task, list(task.units), N)
    for size in CUTS.values():
        loss, got = gradient(task, list(task.units), size)
        assert loss == pytest.approx(whole, abs=1e-6)
        close(expected, got)


def test_the_loop_itself_takes_the_same_step_at_any_token_budget(tmp_path: Path) -> None:
    from thumbwheel.train.loop import fit

    after = []
    for budget in (1, 60, 100_000):
        task = sft_task()
        settings = TrainSettings(lr=1e-3, batch_size=N, tokens_per_micro_batch=budget)
        fit(task, settings, tmp_path / str(budget), progress=False)
        after.append({name: p.detach().clone() for name, p in task.model.named_parameters()})
    for other in after[1:]:
        for name, value in after[0].items():
            assert torch.allclose(value, other[name], atol=2e-5), name
