"""The reward model on a language model's trunk (R1, R7)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from made_rows import learning_model, pair, pairs
from small_task import same_bits, weights_of

from thumbwheel.batches import token_row
from thumbwheel.config import ModelSettings, RewardSettings
from thumbwheel.models.heads import RewardModel, load_reward_model
from thumbwheel.records import Preference
from thumbwheel.train.reward import Compared, Reward, agreement, by_prompt, reward
from thumbwheel.train.rows import Lengths, encode, preference_rows
from thumbwheel.train.units import MicroBatch, Unit

BETTER = Compared(0, 1, preference=1.0, margin=0.0, weight=1.0)


class Scored(torch.nn.Module):
    """Gives scores from a list, one a row, in the batch's order."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.tensor(scores))

    def raw_scores(self, batch: object) -> torch.Tensor:
        return self.scores * 1.0


def unit(*labels: Compared, answers: int = 2) -> Unit[tuple[Compared, ...]]:
    return Unit("pair", tuple(token_row([1], [2 + answer]) for answer in range(answers)), labels)


def loss_of(scores: list[float], *units: Unit[tuple[Compared, ...]], tau: float = 1.0, centre: float = 0.0):
    model = Scored(scores)
    task = Reward(model, units, (), tau=tau, centre=centre)  # type: ignore[arg-type]
    losses = task.loss(MicroBatch.of(units), task.totals(units))
    losses.per_unit.sum().backward()
    assert model.scores.grad is not None
    return float(losses.per_unit.sum().detach()), model.scores.grad.tolist(), losses.figures


@pytest.mark.parametrize(
    ("label", "tau", "expected"),
    [
        (BETTER, 1.0, 0.371101),
        (Compared(1, 0, 1.0, 0.0, 1.0), 1.0, 1.171101),
        (Compared(0, 1, 1.0, 0.5, 1.0), 1.0, 0.554355),
        (Compared(0, 1, 0.5, 0.0, 1.0), 1.0, 0.771101),
        (Compared(0, 1, 0.5, 0.5, 1.0), 1.0, 0.771101),
        (Compared(0, 1, 1.0, 0.0, 7.0), 1.0, 0.371101),
        (BETTER, 0.2, 0.018150),
    ],
)
def test_known_losses_at_a_gap_of_point_eight(label: Compared, tau: float, expected: float) -> None:
    """R1: gap .8, swapped, margin .5, tie = ½·.371101 + ½·1.171101 (no margin), a weight alone, τ = .2: -log σ(4)."""
    assert loss_of([0.8, 0.0], unit(label), tau=tau)[0] == pytest.approx(expected, abs=1e-6)


def test_the_gradient_is_sigma_minus_p() -> None:
    """R1: σ(.8) = .689974: gradient -.310026 on chosen, +.310026 on rejected; a tie pulls the gap to 0 (+.189974)."""
    assert loss_of([0.8, 0.0], unit(BETTER))[1] == pytest.approx([-0.310026, 0.310026], abs=1e-6)
    tie = Compared(0, 1, 0.5, 0.0, 1.0)
    assert loss_of([0.8, 0.0], unit(tie))[1] == pytest.approx([0.189974, -0.189974], abs=1e-6)


def test_centring_adds_the_squared_sum() -> None:
    """R7: (r_w + r_l)² = 1 for scores (2, -1), times its weight .1: .1 more than -log σ(3) = .048587."""
    assert loss_of([2.0, -1.0], unit(BETTER), centre=0.1)[0] == pytest.approx(0.148587, abs=1e-6)


def test_a_prompt_counts_once_however_many_answers_it_has() -> None:
    """Scores (1, 0, -1) in order give .251151; beside a prompt with one pair of gap .8: the mean of .251151 and .371101."""
    triple = unit(Compared(0, 1, 1, 0, 1), Compared(0, 2, 1, 0, 1), Compared(1, 2, 1, 0, 1), answers=3)
    assert loss_of([1.0, 0.0, -1.0], triple)[0] == pytest.approx(0.251151, abs=1e-6)
    both = loss_of([1.0, 0.0, -1.0, 0.8, 0.0], triple, unit(BETTER))[0]
    assert both == pytest.approx((0.251151 + 0.371101) / 2, abs=1e-6)


def test_weights_weigh_prompts() -> None:
    light, heavy = unit(BETTER), unit(Compared(0, 1, 1.0, 0.0, 3.0))
    loss = loss_of([0.8, 0.0, 0.0, 0.8], light, heavy)[0]
    assert loss == pytest.approx((0.371101 + 3 * 1.171101) / 4, abs=1e-6)


def test_agreement_keeps_ties_apart() -> None:
    """Accuracy shows ties apart: a tie is no number."""
    got = agreement(torch.tensor([2.0, -1.0, 0.0, 3.0]), torch.tensor([1.0, 1.0, 1.0, 0.5])).tolist()
    assert got[:3] == [1.0, 0.0, 0.5]
    assert math.isnan(got[3])


def encoded_units(records: list[Preference]):
    template = learning_model().template
    rows = encode(records, template, preference_rows, noun="pair", lengths=Lengths(), max_unusable_share=1.0).rows
    return by_prompt(rows)


def test_all_pairs_of_a_ranking_share_one_forward_per_answer() -> None:
    """R1: four answers, six pairs, four rows, the prompt once."""
    answers = ["a", "bb", "ccc", "dddd"]
    ranked = [pair("q", answers[i], answers[j]) for i in range(4) for j in range(i + 1, 4)]
    (made,) = encoded_units(ranked)
    assert len(made.rows) == 4
    assert [(label.chosen, label.rejected) for label in made.label] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    packed = MicroBatch.of([made]).packed
    prompt = made.rows[0].shared
    assert packed.n_tokens == prompt + sum(len(row) - prompt for row in made.rows)


def test_the_same_pair_twice_is_two_votes_on_two_rows() -> None:
    (made,) = encoded_units([pair("q", "a", "b"), pair("q", "b", "a")])
    assert len(made.rows) == 2
    assert [(label.chosen, label.rejected) for label in made.label] == [(0, 1), (1, 0)]


def test_a_tie_is_one_half_whatever_p_says() -> None:
    (made,) = encoded_units([pair("q", "a", "b", tie=True)])
    assert made.label[0].preference == 0.5


def settings(**values: object) -> RewardSettings:
    return RewardSettings.model_validate({"lr": 3e-3, "batch_size": 4, "eval_share": 0.0, "epochs": 12, **values})


def test_it_learns_and_its_scores_are_normalised(tmp_path: Path) -> None:
    """R1 and R7: accuracy 1 on pairs that differ in a word; mean 0 and deviation 1 on the training answers."""
    model = RewardModel(learning_model())
    rows = pairs(12)
    result = reward(model, rows, settings(), tmp_path, progress=False)
    assert result.metrics["accuracy"] == 1.0
    assert result.metrics["first_loss"] > result.metrics["loss"]
    units = encoded_units(rows)
    scores = torch.cat([model.scores(MicroBatch.of([made]).packed) for made in units]).detach()
    assert float(scores.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(scores.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_saved_and_loaded_it_scores_the_same(tmp_path: Path) -> None:
    """Pitfall: a reward model saved, loaded, scored: equal to 1e-6."""
    model = RewardModel(learning_model())
    result = reward(model, pairs(8), settings(epochs=1), tmp_path, progress=False)
    again = load_reward_model(ModelSettings(path=str(result.checkpoint), dtype="float32"))
    batch = MicroBatch.of(encoded_units(pairs(3))).packed
    assert torch.allclose(model.scores(batch), again.scores(batch), atol=1e-6)


def test_the_same_seed_twice(tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        model = RewardModel(learning_model(), seed=3)
        reward(model, pairs(8), settings(epochs=2), tmp_path / name, progress=False)
        weights.append(weights_of(model))
    assert same_bits(*weights)


def test_a_fifth_of_ties_is_learned_from_and_told(tmp_path: Path) -> None:
    """Pitfall: 20 % ties: Bradley-Terry with ties; accuracy on the others."""
    rows = pairs(10)
    rows = [row.model_copy(update={"tie": True, "p": 0.5}) if index % 5 == 0 else row for index, row in enumerate(rows)]
    result = reward(RewardModel(learning_model()), rows, settings(epochs=20), tmp_path, progress=False)
    assert result.account.ties == 2
    assert result.metrics["accuracy"] == 1.0


def test_only_ties_have_no_accuracy(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"tie": True, "p": 0.5}) for row in pairs(4)]
    result = reward(RewardModel(learning_model()), rows, settings(epochs=1, normalise=False), tmp_path, progress=False)
    assert "accuracy" not in result.metrics


def test_the_first_loss_is_near_ln_two_with_scores_near_zero(tmp_path: Path) -> None:
    """Swapping chosen and rejected from one start gives losses L and L + gap: -log σ(d) + log σ(-d) = -d."""
    label, swapped = BETTER, Compared(1, 0, 1.0, 0.0, 1.0)
    a, b = loss_of([0.3, 0.1], unit(label))[0], loss_of([0.3, 0.1], unit(swapped))[0]
    assert b - a == pytest.approx(0.2, abs=1e-6)
