"""The loop itself: steps, metrics, early stop, errors (issue part 7, X4, X5)."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from small_task import Bag, BagTask, bag_unit, bag_units, same_bits, weights_of
from torch import nn

from thumbwheel.config import TrainSettings
from thumbwheel.errors import CheckpointError, DataError, TrainingError
from thumbwheel.train.journal import Journal
from thumbwheel.train.learner import adamw
from thumbwheel.train.loop import StepReport, fit
from thumbwheel.train.task import Losses
from thumbwheel.train.units import MicroBatch, Unit


def settings(**values: object) -> TrainSettings:
    return TrainSettings.model_validate({"lr": 0.05, "batch_size": 4, "epochs": 2, **values})


class Stop(Exception):
    """Stands for a kill."""


def stop_at(step: int):
    def watch(report: StepReport) -> None:
        if report.step == step:
            raise Stop

    return watch


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_ragged_last_batch_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pitfall: 10 samples, batch 4: all used, count reported."""
    caplog.set_level(logging.INFO, logger="thumbwheel.train")
    seen: list[str] = []

    class Seen(BagTask):
        def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
            seen.extend(unit.name for unit in micro.units)
            return super().loss(micro, totals)

    result = fit(Seen(Bag(), bag_units(10)), settings(), tmp_path, progress=False)
    assert result.steps == 6
    for epoch in (seen[:10], seen[10:]):
        assert sorted(epoch) == sorted(f"bag {index}" for index in range(10))
    assert seen[:10] != seen[10:], "reshuffled every epoch"
    assert "10 units" in caplog.text
    assert "last step of an epoch 2" in caplog.text


def test_the_loss_falls_and_metrics_tell_it(tmp_path: Path) -> None:
    reports: list[StepReport] = []
    result = fit(
        BagTask(Bag(), bag_units(12), bag_units(4, start=50)), settings(epochs=20), tmp_path, watcher=reports.append,
        progress=False,
    )  # fmt: skip
    assert result.metrics["loss"] < 0.5 * result.metrics["first_loss"]
    assert {"heldout_loss", "heldout_error", "error", "first_error", "grad_norm", "tokens"} <= result.metrics.keys()
    assert [report.step for report in reports] == list(range(61))
    assert result.stopped == "finished"
    assert result.empty_steps == 0
    assert [line["step"] for line in lines(tmp_path) if "loss" in line] == list(range(1, 61))


@pytest.mark.parametrize("budget", [1, 9, 17, 4096])
def test_micro_batches_never_change_the_gradient(tmp_path: Path, budget: int) -> None:
    whole, cut = Bag(), Bag()
    once = settings(epochs=1, batch_size=8)
    fit(BagTask(whole, bag_units(8)), once, tmp_path / "whole", progress=False)
    fit(
        BagTask(cut, bag_units(8)), once.model_copy(update={"tokens_per_micro_batch": budget}), tmp_path / "cut",
        progress=False,
    )  # fmt: skip
    for name, value in weights_of(whole).items():
        assert torch.allclose(value, weights_of(cut)[name], atol=1e-6), name


def test_one_step_of_adam_by_hand(tmp_path: Path) -> None:
    """Adam's first step moves every weight by lr · sign(gradient), whatever the gradient's size."""
    model = Bag()
    before = weights_of(model)
    fit(BagTask(model, [bag_unit(0, label=100.0)]), settings(epochs=1, lr=0.01), tmp_path, progress=False)
    moved = (model.out.detach() - before["out"]).abs()
    assert torch.allclose(moved, torch.full((3,), 0.01), atol=1e-5)


def test_vectors_do_not_decay() -> None:
    model = Bag()
    groups = adamw(dict(model.named_parameters()), settings(weight_decay=0.1)).param_groups
    assert [(len(group["params"]), group["params"][0].ndim, group["weight_decay"]) for group in groups] == [
        (1, 2, 0.1),
        (1, 1, 0.0),
    ]


def test_gradients_are_clipped(tmp_path: Path) -> None:
    """Adam's first moment after one step is (1 - β₁) times the gradient it was given, here one of norm 0.5."""
    how = settings(epochs=1, max_grad_norm=0.5)
    fit(BagTask(Bag(), [bag_unit(0, label=1e4)]), how, tmp_path, progress=False)
    (line,) = lines(tmp_path)
    assert line["grad_norm"] > 1e3, "the norm before clipping is what is reported"
    state = torch.load(tmp_path / "checkpoints" / "step-00000001" / "optimiser.pt", weights_only=True)
    moments = [moment["exp_avg"].flatten() for moment in state["optimiser"]["state"].values()]
    assert float(torch.cat(moments).norm()) == pytest.approx(0.1 * 0.5, rel=1e-4)


def test_ten_steps_straight_are_five_and_a_kill_and_five(tmp_path: Path) -> None:
    """X4: bit for bit."""
    straight, begun, resumed = Bag(), Bag(), Bag()
    how = settings(epochs=5, batch_size=4, schedule="cosine", warmup_share=0.2, checkpoint_every_steps=5)
    first = fit(BagTask(straight, bag_units(8)), how, tmp_path / "straight", progress=False)
    with pytest.raises(Stop):
        fit(BagTask(begun, bag_units(8)), how, tmp_path / "cut", watcher=stop_at(7), progress=False)
    second = fit(BagTask(resumed, bag_units(8)), how, tmp_path / "cut", resume=True, progress=False)
    assert same_bits(weights_of(straight), weights_of(resumed))
    assert first.steps == second.steps == 10
    assert second.metrics == first.metrics
    assert [line["step"] for line in lines(tmp_path / "cut")] == list(range(1, 11)), "no step is recorded twice"


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    model, again = Bag(), Bag()
    first = fit(BagTask(model, bag_units(8)), settings(), tmp_path, progress=False)
    second = fit(BagTask(again, bag_units(8)), settings(), tmp_path, resume=True, progress=False)
    assert same_bits(weights_of(model), weights_of(again))
    assert (second.steps, second.metrics) == (first.steps, first.metrics)


def test_resuming_from_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing to resume.*start anew"):
        fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, resume=True, progress=False)


def test_starting_over_a_run_is_an_error(tmp_path: Path) -> None:
    fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)
    with pytest.raises(CheckpointError, match="resume=True"):
        fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)


@pytest.mark.parametrize(
    ("units", "changed", "named"),
    [
        (bag_units(9), {}, "'data'"),
        (bag_units(8, start=1), {}, "'data'"),
        ([*bag_units(7), bag_unit(7, label=0.5)], {}, "'data'"),
        (bag_units(8)[::-1], {}, "'data'"),
        (bag_units(8), {"lr": 0.04}, "'settings'"),
        (bag_units(8), {"epochs": 3}, "'settings'"),
        (bag_units(8), {"seed": 1}, "'settings'"),
    ],
)
def test_resuming_with_other_data_or_settings_is_an_error(
    tmp_path: Path, units: list[Unit[float]], changed: dict[str, object], named: str
) -> None:
    fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)
    with pytest.raises(CheckpointError, match=named):
        fit(BagTask(Bag(), units), settings(**changed), tmp_path, resume=True, progress=False)


def test_memory_settings_may_change_on_resuming(tmp_path: Path) -> None:
    fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)
    other = settings(tokens_per_micro_batch=8, checkpoint_every_steps=1)
    assert fit(BagTask(Bag(), bag_units(8)), other, tmp_path, resume=True, progress=False).steps == 4


def test_a_checkpoint_cut_short_is_an_error(tmp_path: Path) -> None:
    fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)
    file = next((tmp_path / "checkpoints").glob("*/weights.safetensors"))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="cut short"):
        fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, resume=True, progress=False)


def test_another_model_does_not_fit_the_checkpoint(tmp_path: Path) -> None:
    fit(BagTask(Bag(), bag_units(8)), settings(), tmp_path, progress=False)
    wider = Bag()
    wider.out = nn.Parameter(torch.zeros(4))
    with pytest.raises(CheckpointError, match=r"do not fit this model: out.*Load the model"):
        fit(BagTask(wider, bag_units(8)), settings(), tmp_path, resume=True, progress=False)


def test_a_half_written_line_of_metrics_is_cut_off(tmp_path: Path) -> None:
    how = settings(epochs=4, checkpoint_every_steps=2)
    with pytest.raises(Stop):
        fit(BagTask(Bag(), bag_units(8)), how, tmp_path, watcher=stop_at(5), progress=False)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    fit(BagTask(Bag(), bag_units(8)), how, tmp_path, resume=True, progress=False)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    fit(
        BagTask(Bag(), bag_units(8)),
        settings(epochs=5, checkpoint_every_steps=1, keep_checkpoints=2),
        tmp_path,
        progress=False,
    )
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000009", "step-00000010"]


class Scripted(BagTask):
    """Its held-out losses follow a script; its weights move by 1 a step."""

    def __init__(self, model: Bag, script: Sequence[float]) -> None:
        super().__init__(model, bag_units(4), bag_units(2, start=90))
        self.script = iter(script)

    def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
        if not torch.is_grad_enabled():
            n = len(micro.units)
            return Losses(torch.full((n,), next(self.script) / n), {"error": torch.zeros(n)})
        return super().loss(micro, totals)


def test_patience_stops_and_keeps_the_best_weights(tmp_path: Path) -> None:
    model = Bag()
    after: dict[int, dict[str, torch.Tensor]] = {}
    how = settings(epochs=10, patience=2, batch_size=4)

    def watch(report: StepReport) -> None:
        after[report.step] = weights_of(model)  # as they are when the step is evaluated

    result = fit(Scripted(model, [3.0, 2.0, 2.5, 2.0, 1.0]), how, tmp_path, watcher=watch, progress=False)
    assert result.stopped == "patience"
    assert result.steps == 4, "2.0 again is no gain"
    assert same_bits(weights_of(model), after[2])
    assert result.metrics["heldout_loss"] == pytest.approx(2.0)


def test_patience_survives_a_kill(tmp_path: Path) -> None:
    model = Bag()
    how = settings(epochs=10, patience=2, batch_size=4, checkpoint_every_steps=1)
    with pytest.raises(Stop):
        fit(Scripted(Bag(), [3.0, 2.0]), how, tmp_path, watcher=stop_at(3), progress=False)
    result = fit(Scripted(model, [2.5, 2.2, 1.0]), how, tmp_path, resume=True, progress=False)
    assert (result.stopped, result.steps) == ("patience", 4)


def test_evaluation_every_few_steps(tmp_path: Path) -> None:
    task = BagTask(Bag(), bag_units(8), bag_units(2, start=90))
    fit(task, settings(epochs=3, eval_every_steps=4), tmp_path, progress=False)
    assert [line["step"] for line in lines(tmp_path) if "heldout_loss" in line] == [4, 6]


def test_a_loss_that_is_not_finite_names_the_row(tmp_path: Path) -> None:
    units = [*bag_units(3), bag_unit(3, label=float("nan"))]
    with pytest.raises(TrainingError, match=r"not finite for bag 3\."):
        fit(BagTask(Bag(), units), settings(), tmp_path, progress=False)


def test_a_gradient_that_is_not_finite_names_the_weights_and_the_rows(tmp_path: Path) -> None:
    class Steep(BagTask):
        def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
            guess = torch.stack([self.model.out.sum() * 0.0 for _ in micro.units])
            return Losses(torch.sqrt(guess), {"error": guess})

    with pytest.raises(TrainingError, match=r"gradient.*not finite in out.*bag"):
        fit(Steep(Bag(), bag_units(2)), settings(), tmp_path, progress=False)


def test_a_gradient_too_large_for_its_norm_is_told(tmp_path: Path) -> None:
    class Enormous(BagTask):
        def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
            guess = torch.stack([self.model.out.sum() for _ in micro.units])
            return Losses(1e30 * guess, {"error": guess})

    with pytest.raises(TrainingError, match="not finite in its norm"):
        fit(Enormous(Bag(), bag_units(2)), settings(), tmp_path, progress=False)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be made"):
        fit(BagTask(Bag(), bag_units(2)), settings(), tmp_path / "taken", progress=False)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """Bad input: metrics that cannot be written."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path, name="bag", watch="loss", start=0, steps=1, progress=False) as journal:
        journal._file.close()
        journal._file = Full()
        with pytest.raises(
            CheckpointError, match=r"No space left on device\. Free some space \(or raise the limit\) and try again"
        ):
            journal.step(1, {"loss": 0.5})


def test_gradients_are_given_back(tmp_path: Path) -> None:
    model = Bag()
    fit(BagTask(model, bag_units(4)), settings(), tmp_path, progress=False)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_running_out_of_memory_says_what_to_do(tmp_path: Path) -> None:
    class Hungry(BagTask):
        def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(TrainingError, match="tokens_per_micro_batch"):
        fit(Hungry(Bag(), bag_units(2)), settings(), tmp_path, progress=False)


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row to train on"):
        fit(BagTask(Bag(), []), settings(), tmp_path, progress=False)


def test_nothing_that_learns_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="trainable=True"):
        fit(BagTask(Bag().requires_grad_(False), bag_units(2)), settings(), tmp_path, progress=False)


def test_a_step_without_a_trained_token_leaves_the_weights_alone(tmp_path: Path) -> None:
    """Pitfall: every answer in the batch masked: loss 0, gradient 0, counted."""

    class Masked(BagTask):
        def loss(self, micro: MicroBatch[float], totals: float) -> Losses:
            zero = torch.zeros(len(micro.units))
            return Losses(zero, {"error": torch.full_like(zero, torch.nan)})

    model = Bag()
    before = weights_of(model)
    result = fit(Masked(model, bag_units(4)), settings(epochs=3, weight_decay=0.5), tmp_path, progress=False)
    assert same_bits(before, weights_of(model))
    assert result.empty_steps == 3
    assert result.metrics["loss"] == 0.0
    assert "error" not in result.metrics, "unknown is not zero"


def test_the_callers_dice_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(BagTask(Bag(), bag_units(4)), settings(), tmp_path, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_tensorboard_where_asked_for(tmp_path: Path) -> None:
    """X5."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(BagTask(Bag(), bag_units(8)), settings(tensorboard=True), tmp_path, progress=False)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4]
    assert board.Scalars("lr")[0].value == pytest.approx(0.05)


def test_same_seed_same_weights_other_seed_other_order(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        model = Bag()
        fit(BagTask(model, bag_units(8)), settings(seed=seed), tmp_path / name, progress=False)
        weights.append(weights_of(model))
    assert same_bits(weights[0], weights[1])
    assert not same_bits(weights[0], weights[2])


def test_epoch_order_is_a_permutation_known_from_seed_and_epoch() -> None:
    from thumbwheel.train.units import epoch_order

    first = epoch_order(50, seed=3, epoch=0)
    assert sorted(first.tolist()) == list(range(50))
    assert np.array_equal(first, epoch_order(50, seed=3, epoch=0))
    assert not np.array_equal(first, epoch_order(50, seed=3, epoch=1))
