"""Decoding by columns: the same numbers as rows give, from weights that are read where they lie."""

from __future__ import annotations

import pytest
import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings, SampleSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.engines.columns import Columns, Linear, columns_for, product
from thumbwheel.engines.decoding import FusedStepper, open_stepper
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Message
from thumbwheel.testing.models import tiny_language_model

PROMPTS = [(Message(role="user", content=text),) for text in ("hi", "hello there", "a longer question than that")]


def test_products_come_in_few_sizes() -> None:
    """A library compiles a product anew for each size; never fewer columns than rows, at most a few more."""
    sizes = {rows: columns_for(rows) for rows in range(1, 400)}
    assert [sizes[n] for n in (1, 2, 3, 4, 5, 8, 9, 17, 33, 63, 64, 65)] == [1, 2, 4, 4, 8, 8, 16, 24, 40, 64, 64, 96]
    assert all(rows <= columns < rows + max(8, 32) for rows, columns in sizes.items())
    assert len(set(sizes.values())) < 24


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_product_by_hand(columns: int) -> None:
    """[[1, 2], [3, 4]] · (5, 6) = (17, 39), and a residual of (1, -1) makes it (18, 38)."""
    weight, x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0], [6.0]]).repeat(1, columns)
    residual = torch.tensor([[1.0], [-1.0]]).repeat(1, columns)
    assert product(weight, x).tolist() == [[17.0] * columns, [39.0] * columns]
    assert product(weight, x, residual).tolist() == [[18.0] * columns, [38.0] * columns]


@pytest.mark.parametrize(
    "config",
    [{}, {"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}],
    ids=["plain", "biases", "a key head each", "one key head"],
)
@pytest.mark.parametrize("adapter", ["none", "lora", "full"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_gives_what_the_whole_row_gives(config: dict[str, object], adapter: str, rows: int) -> None:
    """P9: hidden states after a token equal those of reading prompt and token at once (1e-5 in float32)."""
    model = _model(config, adapter)
    prompts = [tuple(model.template.prompt_ids(prompt)) for prompt in PROMPTS[:rows]]
    stepper = open_stepper(model, rows=rows, tokens=64)
    assert isinstance(stepper, FusedStepper)
    tokens = [[65 + row, 80 - row, 97] for row in range(rows)]
    with torch.no_grad():
        stepper.add([(prompt, 1) for prompt in prompts])
        for step in range(3):
            got = stepper.step(torch.tensor([line[step] for line in tokens]))
            whole = [(*p, *t[: step + 1]) for p, t in zip(prompts, tokens, strict=True)]
            want = torch.stack([model.hidden(pack([token_row(ids, ())]))[-1] for ids in whole])
            assert torch.allclose(got, want, atol=1e-5), (got - want).abs().max()


def _model(config: dict[str, object], adapter: str) -> LanguageModel:
    model = tiny_language_model(3, **config)  # type: ignore[arg-type]
    if adapter != "none":
        model.make_trainable(ModelSettings(adapter=adapter, lora_r=2), seed=0)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_weights_are_handed_over_without_a_copy(adapter: str) -> None:
    """Every weight that is multiplied with lies in the trainer's own memory, and none is in memory of its own."""
    model = tiny_language_model()
    model.make_trainable(ModelSettings(adapter=adapter, lora_r=2), seed=0)  # type: ignore[arg-type]
    assert model.decoder is not None
    columns = Columns(model.decoder, torch.float32)
    own = {w.untyped_storage().data_ptr() for w in model.network.parameters()}
    used = [
        weight
        for layer in columns.layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
        for weight in linear.weights
    ]
    assert len(used) >= 4 * len(columns.layers)
    assert all(weight.untyped_storage().data_ptr() in own for weight in used)


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_the_next_call_samples_from_what_training_changed(adapter: str) -> None:
    """One sampler over a whole run: after each update it gives what a sampler opened anew on those weights gives."""
    model = tiny_language_model(1)
    model.make_trainable(ModelSettings(adapter=adapter, lora_r=2), seed=0)  # type: ignore[arg-type]
    sampler = BatchSampler(model)
    settings = SampleSettings(temperature=0.7, max_new_tokens=10)
    seen = []
    for round_ in range(3):
        samples = sampler.sample(PROMPTS, seeds=[1, 2, 3], settings=settings)
        rows = [token_row(model.template.prompt_ids(p), s.token_ids) for p, s in zip(PROMPTS, samples, strict=True)]
        with torch.no_grad():
            again = model.row_logps(pack(rows), temperature=0.7)
        assert again.tolist() == pytest.approx([s.logp for s in samples], abs=1e-4)
        seen.append(tuple(s.logp for s in samples))
        with torch.no_grad():
            for parameter in model.trainable():
                noise = torch.Generator().manual_seed(round_)
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    assert len(set(seen)) == 3


def test_master_weights_in_float32_are_cast_once_a_call() -> None:
    """Products in bfloat16 under weights in float32: each weight is rounded to bfloat16, as training does."""
    model = tiny_language_model(compute_dtype=torch.bfloat16)
    assert model.decoder is not None
    linear = Linear(model.decoder.layers[0].o, torch.bfloat16)
    assert [weight.dtype for weight in linear.weights] == [torch.bfloat16]
    assert torch.equal(linear.weights[0], model.decoder.layers[0].o.weight(torch.bfloat16))
