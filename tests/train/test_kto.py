"""KTO on single thumbs (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_rows import learning_model, thumb, thumbs

from thumbwheel.batches import TokenRow, token_row
from thumbwheel.config import UpdateSettings
from thumbwheel.errors import DataError, SettingError
from thumbwheel.train.dpo import dpo
from thumbwheel.train.kto import Kto, Thumb, Totals, matched
from thumbwheel.train.rows import Encoded, Lengths, encode, labelled_rows
from thumbwheel.train.units import MicroBatch, Unit


def settings(**values: object) -> UpdateSettings:
    return UpdateSettings.model_validate(
        {"lr": 1e-3, "batch_size": 4, "eval_share": 0.0, "epochs": 1, "beta": 0.1, "loss": "kto", **values}
    )


class Given(torch.nn.Module):
    """Gives every row the log-probability written in its first token, in nats below 0."""

    def row_logps(self, batch) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return -torch.from_numpy(batch.ids[[segment.start for segment in batch.segments]]).float()


def row(nats: int) -> TokenRow:
    ids = token_row([nats], [1])
    return TokenRow(ids.ids, ids.trained, 0)  # nothing shared: every row is a segment of its own


def unit(nats: int, reference: float, liked: float, weight: float = 1.0, other: int = 0, other_ref: float = 0.0):
    return Unit("answer", (row(nats),), Thumb(liked, weight, row(other), reference, other_ref))


def test_known_losses_reach_the_update() -> None:
    """β = .1, r = 2, z = .5: liked .462570, disliked .537430; weights weigh them."""
    task = Kto(Given(), [], [], settings())  # type: ignore[arg-type]
    units = [unit(3, -5.0, liked=1.0, weight=3.0), unit(3, -5.0, liked=0.0)]
    losses = task.loss(MicroBatch.of(units), Totals(4.0, torch.tensor(0.5)))
    assert (4 * losses.per_unit).tolist() == pytest.approx([3 * 0.462570, 0.537430], abs=1e-5)


def test_the_kl_is_the_mean_log_ratio_of_mismatched_answers_and_never_negative() -> None:
    """Ratios 1 and 2 -> 1.5; -3 and 1 -> 0."""
    task = Kto(Given(), [], [], settings())  # type: ignore[arg-type]
    up = [unit(1, 0.0, 1.0, other=4, other_ref=-5.0), unit(1, 0.0, 0.0, other=6, other_ref=-8.0)]
    assert float(task.totals(up).kl) == pytest.approx(1.5)
    down = [unit(1, 0.0, 1.0, other=4, other_ref=-1.0), unit(1, 0.0, 0.0, other=6, other_ref=-7.0)]
    assert float(task.totals(down).kl) == 0.0


def test_the_last_answer_alone_has_kl_zero() -> None:
    """The documented fallback of a ragged last step of one answer."""
    task = Kto(Given(), [], [], settings())  # type: ignore[arg-type]
    assert float(task.totals([unit(1, 0.0, 1.0, other=4, other_ref=-90.0)]).kl) == 0.0


def encoded(records) -> list[Encoded]:  # type: ignore[no-untyped-def]
    template = learning_model().template
    return encode(records, template, labelled_rows, noun="answer", lengths=Lengths(), max_unusable_share=0.0).rows


def test_every_prompt_is_matched_with_another_prompts_answer() -> None:
    rows = encoded([thumb(f"q{index % 3}", f"answer {index}", 1.0) for index in range(9)])
    by_prompt = {row.rows[0].ids[: row.rows[0].shared].tobytes(): index % 3 for index, row in enumerate(rows)}
    answers = {row.rows[0].ids[row.rows[0].shared :].tobytes(): index % 3 for index, row in enumerate(rows)}
    for made in matched(rows, seed=0, max_tokens=1000):
        other = made.label.mismatched
        assert by_prompt[other.ids[: other.shared].tobytes()] != answers[other.ids[other.shared :].tobytes()]


def test_labels_become_liked_weight_and_noise() -> None:
    rows = encoded([thumb("a", "x", 0.5, weight=2.0, noise_rate=0.1), thumb("b", "y", -1.0, noise_rate=0.2)])
    labels = [made.label for made in matched(rows, seed=0, max_tokens=1000)]
    assert [(label.liked, label.weight) for label in labels] == [(0.9, 1.0), (0.2, 1.0)]


def test_a_mismatched_answer_is_cut_to_the_length_allowed() -> None:
    rows = encoded([thumb("a" * 50, "x", 1.0), thumb("b", "y" * 80, -1.0)])
    limit = rows[0].rows[0].shared + 10
    first = matched(rows, seed=0, max_tokens=limit)[0].label.mismatched
    assert len(first) == limit


def test_it_learns_to_like_what_people_liked(tmp_path: Path) -> None:
    result = dpo(learning_model(), thumbs(16), settings(epochs=6), tmp_path, progress=False)
    assert result.metrics["liked_reward"] > result.metrics["disliked_reward"]
    assert result.metrics["kl"] >= 0
    assert result.metrics["loss"] < result.metrics["first_loss"]


def test_the_first_loss_is_one_half(tmp_path: Path) -> None:
    """Policy = reference: r = z = 0, so every answer costs 1 - σ(0)."""
    result = dpo(learning_model(), thumbs(4), settings(), tmp_path, progress=False)
    assert result.metrics["first_loss"] == pytest.approx(0.5, abs=1e-5)


def test_neutral_answers_say_nothing_and_are_counted(tmp_path: Path) -> None:
    rows = [*thumbs(6), thumb("q", "so so", 0.0)]
    result = dpo(learning_model(), rows, settings(), tmp_path, progress=False)
    assert (result.account.read, result.account.kept, result.account.unscored) == (7, 6, 1)


def test_a_batch_of_one_is_an_error(tmp_path: Path) -> None:
    """Pitfall: KTO with batch 1."""
    with pytest.raises(SettingError, match="2 or more"):
        dpo(learning_model(), thumbs(4), settings(batch_size=1), tmp_path, progress=False)


@pytest.mark.parametrize(("value", "named", "next_step"), [(1.0, "liked", "sft"), (-1.0, "disliked", "Collect")])
def test_only_one_kind_is_an_error(tmp_path: Path, value: float, named: str, next_step: str) -> None:
    """Pitfall: KTO with only liked answers."""
    rows = [thumb(f"q{index}", "x", value) for index in range(4)]
    with pytest.raises(DataError, match=f"all of these are {named}.*{next_step}"):
        dpo(learning_model(), rows, settings(), tmp_path, progress=False)


def test_an_nll_term_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nll_weight"):
        dpo(learning_model(), thumbs(4), settings(nll_weight=0.1), tmp_path, progress=False)
