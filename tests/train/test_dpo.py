"""The DPO family (P2): the first step, every loss by name, options, what is reported."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from made_rows import asked, demonstration, learning_model, pair, pairs, said, saved_model, thumbs
from small_task import same_bits

from thumbwheel.batches import token_row
from thumbwheel.config import ModelSettings, UpdateSettings
from thumbwheel.errors import DataError, RegistryError, SettingError
from thumbwheel.models.language import load
from thumbwheel.train.dpo import Dpo, Pair, dpo, with_reference
from thumbwheel.train.rows import Lengths, encode, preference_rows
from thumbwheel.train.units import MicroBatch, Unit

NEEDS = {"cdpo": {"label_smoothing": 0.1}, "robust": {"label_smoothing": 0.1}, "simpo": {"simpo_gamma": 0.5}}
PAIRED = ["sigmoid", "cdpo", "robust", "ipo_summed", "ipo_averaged", "hinge", "orpo", "simpo"]


def settings(**values: object) -> UpdateSettings:
    return UpdateSettings.model_validate(
        {"lr": 1e-3, "batch_size": 4, "eval_share": 0.0, "epochs": 1, "beta": 0.1, **values}
    )


class Given(torch.nn.Module):
    """Gives log-probabilities from a list, one a row, in the batch's order."""

    def __init__(self, logps: list[float]) -> None:
        super().__init__()
        self.logps = torch.nn.Parameter(torch.tensor(logps))

    def row_logps(self, batch: object) -> torch.Tensor:
        return self.logps * 1.0


def unit(preference: float = 1.0, weight: float = 1.0, reference: tuple[float, float] = (0.0, 0.0), lengths=(1, 1)):
    rows = tuple(token_row([1], [2 + place] * n) for place, n in enumerate(lengths))
    return Unit("pair", rows, Pair(preference, weight, reference))


def loss_of(logps: list[float], *units: Unit[Pair], **values: object):
    model = Given(logps)
    task = Dpo(model, units, (), settings(**values))  # type: ignore[arg-type]
    losses = task.loss(MicroBatch.of(units), task.totals(units))
    losses.per_unit.sum().backward()
    assert model.logps.grad is not None
    return float(losses.per_unit.sum().detach()), model.logps.grad.tolist(), losses.figures


@pytest.mark.parametrize(
    ("loss", "logps", "made", "options", "expected"),
    [
        ("sigmoid", [-3.0, -5.0], unit(), {}, 0.598139),
        ("cdpo", [-3.0, -5.0], unit(), {"label_smoothing": 0.1}, 0.618139),
        ("robust", [-3.0, -5.0], unit(), {"label_smoothing": 0.1}, 0.573139),
        ("hinge", [-3.0, -5.0], unit(), {}, 0.8),
        ("ipo_summed", [3.0, 1.0], unit(lengths=(6, 2)), {}, 9.0),
        ("ipo_averaged", [3.0, 1.0], unit(lengths=(6, 2)), {}, 25.0),
        ("orpo", [-4.0, -10.0], unit(lengths=(2, 2)), {}, 2.004243),
        ("simpo", [-2.0, -6.0], unit(lengths=(2, 3)), {"simpo_gamma": 0.5, "beta": 2.0}, 0.201413),
    ],
)
def test_known_losses_reach_the_update(
    loss: str, logps: list[float], made: object, options: dict, expected: float
) -> None:
    """P2: the numbers of the known table, through packing, lengths and options (β = .1)."""
    got = loss_of(logps, made, loss=loss, **options)[0]  # type: ignore[arg-type]
    assert got == pytest.approx(expected, abs=1e-5)


def test_the_first_loss_is_ln_two_and_the_gradient_plus_half_beta() -> None:
    """Policy = reference: loss ln 2, gradient -β/2 on the chosen and +β/2 on the rejected log-probability."""
    loss, gradient, _ = loss_of([-7.0, -9.0], unit(reference=(-7.0, -9.0)))
    assert loss == pytest.approx(math.log(2), abs=1e-6)
    assert gradient == pytest.approx([-0.05, 0.05], abs=1e-7)


def test_weights_and_soft_labels() -> None:
    """βh = .2: .598139 where chosen is better, .798139 where it is not; p = .75 mixes, weights weigh."""
    assert loss_of([-3.0, -5.0], unit(preference=0.75))[0] == pytest.approx(0.75 * 0.598139 + 0.25 * 0.798139, abs=1e-6)
    both = loss_of([-3.0, -5.0, -5.0, -3.0], unit(weight=3.0), unit(weight=1.0))[0]
    assert both == pytest.approx((3 * 0.598139 + 0.798139) / 4, abs=1e-6)


def test_a_tie_pulls_the_gap_to_zero() -> None:
    _, gradient, figures = loss_of([-3.0, -5.0], unit(preference=0.5))
    assert gradient[0] > 0 > gradient[1]
    assert math.isnan(figures["accuracy"].item())


def test_the_nll_term_is_the_chosen_answers_mean_token_loss() -> None:
    """-6 nats over 3 tokens: 2, times .5, beside ln 2."""
    loss = loss_of([-6.0, -6.0], unit(reference=(-6.0, -6.0), lengths=(3, 2)), nll_weight=0.5)[0]
    assert loss == pytest.approx(math.log(2) + 1.0, abs=1e-6)


def test_figures_are_rewards_and_the_change_of_the_chosen() -> None:
    figures = loss_of([-7.0, -9.0], unit(reference=(-5.0, -4.0)))[2]
    assert figures["chosen_reward"].item() == pytest.approx(-0.2)
    assert figures["rejected_reward"].item() == pytest.approx(-0.5)
    assert figures["margin"].item() == pytest.approx(0.3)
    assert figures["accuracy"].item() == 1.0
    assert figures["chosen_logp_change"].item() == pytest.approx(-2.0)


@pytest.mark.parametrize("loss", PAIRED)
def test_every_loss_trains_a_model_and_widens_the_gap(tmp_path: Path, loss: str) -> None:
    """P2, by name: the answers that people chose gain on those they did not."""
    model = learning_model()
    how = settings(loss=loss, epochs=4, **NEEDS.get(loss, {}))
    result = dpo(model, pairs(8), how, tmp_path, progress=False)
    assert result.metrics["margin"] > result.metrics["first_margin"]
    assert (result.checkpoint or tmp_path / "none").is_dir()


@pytest.mark.parametrize("loss", ["sigmoid", "cdpo"])
def test_the_first_loss_of_a_real_model_is_ln_two(tmp_path: Path, loss: str) -> None:
    result = dpo(learning_model(), pairs(4), settings(loss=loss, **NEEDS.get(loss, {})), tmp_path, progress=False)
    assert result.metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_dropout_is_off_however_the_model_was_configured(tmp_path: Path) -> None:
    """First steps: with dropout the first loss would not be ln 2."""
    model = learning_model(attention_dropout=0.5)
    result = dpo(model, pairs(4), settings(), tmp_path, progress=False)
    assert result.metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_adapters_off_are_the_reference(tmp_path: Path) -> None:
    """With adapters the first loss is ln 2 too, the base stays as it was, and the adapter loads again."""
    base = saved_model(tmp_path / "base")
    how = ModelSettings(path=str(base), lora_r=4, dtype="float32")
    model = load(how, trainable=True, seed=1)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    result = dpo(model, pairs(8), settings(epochs=3, lr=1e-2), tmp_path / "run", progress=False)
    assert result.metrics["first_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert result.metrics["margin"] > 0
    assert same_bits(frozen, {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad})
    again = load(how.model_copy(update={"path": str(result.checkpoint)}))
    rows = MicroBatch.of([unit()]).packed
    assert torch.allclose(model.row_logps(rows), again.row_logps(rows), atol=1e-5)


def test_the_reference_cache_is_used_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("a", "b"):
        dpo(learning_model(), pairs(4), settings(), tmp_path / name, cache=cache, progress=False)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("loss", "option"),
    [
        (loss, option)
        for loss in [*PAIRED, "kto"]
        for option in ("label_smoothing", "simpo_gamma", "desirable_weight", "undesirable_weight")
        if option not in NEEDS.get(loss, {}) and not (loss == "kto" and option.endswith("desirable_weight"))
    ],
)
def test_an_option_that_the_loss_does_not_have_is_an_error(tmp_path: Path, loss: str, option: str) -> None:
    """Pitfall: `label_smoothing` given to a loss that has no such option, and every other such pair."""
    how = settings(loss=loss, **{**NEEDS.get(loss, {}), option: 0.2})
    with pytest.raises(SettingError, match=f"'{loss}' has no option '{option}'"):
        dpo(learning_model(), thumbs(4) if loss == "kto" else pairs(4), how, tmp_path, progress=False)


@pytest.mark.parametrize("loss", sorted(NEEDS))
def test_an_option_that_the_loss_needs_is_asked_for(tmp_path: Path, loss: str) -> None:
    (option,) = NEEDS[loss]
    with pytest.raises(SettingError, match=f"needs 'update.{option}'"):
        dpo(learning_model(), pairs(4), settings(loss=loss), tmp_path, progress=False)


def test_an_unknown_loss_is_an_error_with_a_guess(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="Did you mean 'sigmoid'"):
        dpo(learning_model(), pairs(4), settings(loss="sigmoide"), tmp_path, progress=False)


def squared(logp_chosen, logp_rejected, *, beta, preference):  # type: ignore[no-untyped-def]
    return (beta * (logp_chosen - logp_rejected) - 1) ** 2


def test_a_loss_of_ones_own_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from thumbwheel.formulas.preference import PreferenceLoss

    module = types.ModuleType("my_losses")
    module.squared = PreferenceLoss(squared, needs_reference=False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_losses", module)
    assert loss_of([-3.0, -5.0], unit(), loss="my_losses:squared")[0] == pytest.approx(0.64)


def test_a_falling_chosen_answer_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P2: two answers that differ in one late token: unlearning both is what the loss rewards."""
    rows = [pair("q", "the very same long answer a", "the very same long answer b")]
    result = dpo(learning_model(), rows, settings(epochs=30, lr=3e-3), tmp_path, progress=False)
    fell = result.metrics["chosen_logp_change"]
    assert bool(result.notes) == (fell < 0)
    from thumbwheel.train.dpo import falling

    (note,) = falling({"chosen_logp_change": -1.25})
    assert "fell by 1.25 nats" in note
    assert falling({"chosen_logp_change": 0.1}) == []
    assert falling({}) == []


def test_thumbs_do_not_fit_a_paired_loss_nor_demonstrations_any(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Preference"):
        dpo(learning_model(), thumbs(4), settings(), tmp_path, progress=False)
    with pytest.raises(DataError, match="Labelled"):
        dpo(learning_model(), pairs(4), settings(loss="kto"), tmp_path, progress=False)
    with pytest.raises(DataError, match="Got: Demonstration"):
        dpo(learning_model(), [demonstration("q", "a")], settings(), tmp_path, progress=False)  # type: ignore[list-item]


def test_pairs_of_one_prompt_share_its_tokens(tmp_path: Path) -> None:
    rows = encode(
        [pair("a long question", "x", "y"), pair("a long question", "x", "zz")], learning_model().template,
        preference_rows, noun="pair", lengths=Lengths(), max_unusable_share=0.0,
    ).rows  # fmt: skip
    units = with_reference(learning_model(), [Unit(r.name, r.rows, Pair(1.0, 1.0)) for r in rows], settings(), tmp_path)
    prompt = rows[0].rows[0].shared
    answers = sum(len(row) - prompt for made in units for row in made.rows)
    assert MicroBatch.of(units).packed.n_tokens == prompt + answers
    assert asked("a")[0].content == said("a").content
