"""Reference log-probabilities: once, cached, and never stale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from thumbwheel.batches import TokenRow, pack, token_row
from thumbwheel.config import ModelSettings
from thumbwheel.errors import StoreError
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.reference import reference_key, reference_logps
from thumbwheel.testing.models import TEMPLATE, tiny_language_model


def rows() -> list[TokenRow]:
    return [token_row([1, 2, 3], [4, 5]), token_row([9], [8, 7, 6]), token_row([1, 2, 3], [6])]


def counted(model: LanguageModel) -> list[int]:
    """Rows of every forward from here on."""
    seen: list[int] = []
    plain = model.row_logps

    def counting(batch, **options):  # type: ignore[no-untyped-def]
        seen.append(batch.n_rows)
        return plain(batch, **options)

    model.row_logps = counting  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("budget", [1, 8, 4096])
def test_in_the_rows_order_whatever_the_budget(budget: int) -> None:
    model = tiny_language_model()
    with torch.no_grad():
        alone = [float(model.row_logps(pack([row]))[0]) for row in rows()]
    assert reference_logps(model, rows(), max_tokens=budget).tolist() == pytest.approx(alone, abs=1e-4)


def test_one_prompt_is_computed_once() -> None:
    model = tiny_language_model()
    seen = counted(model)
    reference_logps(model, rows(), max_tokens=1)
    assert sorted(seen) == [1, 2]


def test_the_cache_is_used_and_gives_the_same(tmp_path: Path) -> None:
    model = tiny_language_model()
    first = reference_logps(model, rows(), cache=tmp_path)
    seen = counted(model)
    assert np.array_equal(reference_logps(model, rows(), cache=tmp_path), first)
    assert seen == []


def test_a_change_of_data_model_or_template_is_never_served_from_the_cache(tmp_path: Path) -> None:
    """Pitfall: the cache key covers all three."""
    model = tiny_language_model()
    key = reference_key(model, rows())
    other = [*rows()[:2], token_row([1, 2, 3], [7])]
    masked = rows()
    masked[0] = TokenRow(masked[0].ids, np.array([False, False, False, False, True]), 3)
    assert key == reference_key(tiny_language_model(), rows())
    keys = [
        reference_key(model, other),
        reference_key(model, masked),
        reference_key(model, rows()[::-1]),
        reference_key(tiny_language_model(1), rows()),
        reference_key(tiny_language_model(template=TEMPLATE + " "), rows()),
    ]
    with torch.no_grad():
        next(iter(model.network.parameters()))[0, 0] += 1e-3
    keys.append(reference_key(model, rows()))
    assert len({key, *keys}) == 7


def test_a_cache_file_cut_short_is_computed_anew(tmp_path: Path) -> None:
    model = tiny_language_model()
    first = reference_logps(model, rows(), cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert np.array_equal(reference_logps(model, rows(), cache=tmp_path), first)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match="another cache folder"):
        reference_logps(tiny_language_model(), rows(), cache=tmp_path / "taken")


def test_adapters_are_off() -> None:
    model = tiny_language_model()
    before = reference_logps(model, rows())
    model.make_trainable(ModelSettings(lora_r=2), seed=0)
    with torch.no_grad():
        for parameter in model.trainable():
            parameter.add_(0.3)
    assert np.allclose(reference_logps(model, rows()), before, atol=1e-5)
    with torch.no_grad():
        assert not np.allclose(model.row_logps(pack(rows())).numpy(), before, atol=1e-2)


def test_a_continued_adapter_is_its_own_reference_and_key() -> None:
    model = tiny_language_model()
    model.make_trainable(ModelSettings(lora_r=2), seed=0)
    fresh = reference_key(model, rows())
    with torch.no_grad():
        for parameter in model.trainable():
            parameter.add_(0.3)
    assert reference_key(model, rows()) == fresh, "weights that learn are no part of the reference"
    model.make_trainable(ModelSettings(lora_r=2), seed=0)
    assert reference_key(model, rows()) != fresh
    with torch.no_grad():
        now = model.row_logps(pack(rows())).numpy()
    assert np.allclose(reference_logps(model, rows()), now, atol=1e-4)
