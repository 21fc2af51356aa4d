"""A packed line gives what a plain padded forward gives, in values and gradients, whatever stands beside a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from thumbwheel.batches import PackedBatch, TokenRow, pack, token_row
from thumbwheel.config import ModelSettings
from thumbwheel.errors import ModelError
from thumbwheel.models.language import LanguageModel
from thumbwheel.testing.models import tiny_language_model, tiny_tokenizer

ROWS = [
    token_row([257, 4, 5, 6, 7], [10, 11, 12, 258]),
    token_row([257, 4, 5, 6, 7], [20, 258]),
    token_row([257, 9], [30, 31, 32, 33, 34, 35, 258]),
    token_row([257, 4, 5, 6, 7], [40, 41, 258]),
    TokenRow(np.array([5, 6, 7, 8]), np.array([False, True, True, True]), shared=0),
]


def plain_logps(network: Any, rows: list[TokenRow], *, side: str = "right", temperature: float = 1.0) -> Tensor:
    """Trained tokens' log-probabilities by transformers alone: padded rows, whole logits."""
    longest = max(map(len, rows)) + 3
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    starts = [longest - len(row) if side == "left" else 0 for row in rows]
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[i, start : start + len(row)] = torch.from_numpy(row.ids)
        mask[i, start : start + len(row)] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = network(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    logp = torch.log_softmax(logits / temperature, -1)
    return torch.stack(
        [
            logp[i, start + t - 1, int(row.ids[t])]
            for i, (row, start) in enumerate(zip(rows, starts, strict=True))
            for t in np.flatnonzero(row.trained)
        ]
    )


def other_network(name: str, **changes: Any) -> LanguageModel:
    """A tiny random network of another make."""
    import transformers

    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 259,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 258,
    }
    if name == "GPT2":
        shape = {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": 259,
            "n_positions": 64,
            "initializer_range": 0.2,
        }
        shape |= {"bos_token_id": 0, "eos_token_id": 258, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**{**shape, **changes})
    torch.manual_seed(3)
    return LanguageModel(
        getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config),
        tiny_tokenizer(),
    )


MAKES: dict[str, Any] = {
    "llama, fused": lambda: tiny_language_model(),
    "llama with biases, untied, fused": lambda: tiny_language_model(tied=False, attention_bias=True, mlp_bias=True),
    "llama by modules": lambda: by_modules(tiny_language_model()),
    "qwen2, fused": lambda: other_network("Qwen2"),
    "mistral, window longer than rows, fused": lambda: other_network("Mistral", sliding_window=32),
    "mistral, window shorter than rows, padded": lambda: other_network("Mistral", sliding_window=4),
    "qwen3 by modules": lambda: other_network("Qwen3"),
    "gemma by modules": lambda: other_network("Gemma", hidden_act="gelu_pytorch_tanh"),
    "gpt2, learned positions": lambda: other_network("GPT2"),
}


def by_modules(model: LanguageModel) -> LanguageModel:
    model.decoder = None
    return model


@pytest.mark.parametrize("make", MAKES)
def test_values_and_gradients_equal_those_of_a_plain_padded_forward(make: str) -> None:
    """P9: no padding waste, the same numbers. Float32, 1e-5, for every path a network can take."""
    model = MAKES[make]()
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    batch = pack(ROWS)
    weights = torch.linspace(-1.0, 1.0, batch.n_trained)
    got = model.token_logps(batch, temperature=0.7)
    (got * weights).sum().backward()
    gradients = [p.grad.clone() for p in model.trainable()]
    model.zero_grad()
    want = plain_logps(model.network, ROWS, temperature=0.7)
    (want * weights).sum().backward()
    assert torch.allclose(got, want, atol=1e-5)
    for mine, parameter in zip(gradients, model.trainable(), strict=True):
        scale = parameter.grad.abs().max().clamp(min=1e-3)
        assert float((mine - parameter.grad).abs().max() / scale) < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_and_amount_change_nothing(side: str) -> None:
    """Pitfalls: the same text left- and right-padded."""
    model = tiny_language_model()
    assert torch.allclose(model.token_logps(pack(ROWS)), plain_logps(model.network, ROWS, side=side), atol=1e-5)


def test_a_row_alone_equals_the_row_beside_a_long_neighbour() -> None:
    """Pitfalls: the same text scored alone and beside a long neighbour, equal to 1e-5."""
    model = tiny_language_model()
    long = token_row([257, *range(40, 200)], [*range(200), 258])
    alone = model.row_logps(pack([ROWS[0]]))
    beside = model.row_logps(pack([long, ROWS[0], ROWS[1]]))
    assert float((alone[0] - beside[1]).abs()) < 1e-5


@pytest.mark.parametrize("prompt_length", [3, 255, 300])
def test_long_prompts_and_answers_are_cut_into_blocks_without_a_trace(prompt_length: int) -> None:
    """Blocks of the attention plan: prompts and answers longer than a block, siblings far apart in the line."""
    dice = np.random.default_rng(0)
    prompt = [257, *dice.integers(0, 250, prompt_length).tolist()]
    rows = [token_row(prompt, dice.integers(0, 250, length).tolist()) for length in (40, 290, 7)]
    rows.insert(1, token_row([257, 1], dice.integers(0, 250, 30).tolist()))  # stands between siblings
    model = tiny_language_model(max_position_embeddings=1024)
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    batch = pack(rows)
    got = model.row_logps(batch)
    got.sum().backward()
    gradients = [p.grad.clone() for p in model.trainable()]
    model.zero_grad()
    want = plain_logps(model.network, rows)
    want.sum().backward()
    sums = [float(want.detach()[torch.from_numpy(batch.row == r)].sum()) for r in range(batch.n_rows)]
    assert np.allclose(got.tolist(), sums, rtol=1e-5)
    for mine, parameter in zip(gradients, model.trainable(), strict=True):
        assert float((mine - parameter.grad).abs().max() / parameter.grad.abs().max()) < 2e-5


def test_asking_for_places_gives_the_same_states_as_asking_for_all() -> None:
    """The last layer skips tokens nobody reads; those that are read stay the same."""
    model = tiny_language_model()
    batch = pack(ROWS)
    whole = model.hidden(batch)
    assert whole.shape == (batch.n_tokens, 64)
    assert torch.allclose(model.hidden(batch, at=batch.last), whole[torch.from_numpy(batch.last)], atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_gradient_checkpointing_changes_memory_and_nothing_else(*, fused: bool) -> None:
    """P9."""
    gradients = []
    for on in (False, True):
        model = tiny_language_model() if fused else by_modules(tiny_language_model())
        model.make_trainable(ModelSettings(adapter="full", gradient_checkpointing=on), seed=0)
        model.row_logps(pack(ROWS)).sum().backward()
        gradients.append([p.grad for p in model.trainable()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)


def test_bfloat16_stays_near_float32() -> None:
    """P9: mixed precision. A token's log-probability moves by hundredths of a nat, never by tenths."""
    exact = tiny_language_model()
    half = tiny_language_model(compute_dtype=torch.bfloat16)
    batch = pack(ROWS)
    got, want = half.token_logps(batch), exact.token_logps(batch)
    assert got.dtype == torch.float32
    assert float((got - want).abs().max()) < 0.1
    assert bool((got <= 0).all())


def test_float32_masters_get_gradients_through_bfloat16_products() -> None:
    """P9: all weights in training are float32 whatever the products are computed in."""
    model = tiny_language_model(compute_dtype=torch.bfloat16)
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    exact = tiny_language_model()
    exact.make_trainable(ModelSettings(adapter="full"), seed=0)
    for one in (model, exact):
        one.row_logps(pack(ROWS)).sum().backward()
    for p, q in zip(model.trainable(), exact.trainable(), strict=True):
        assert p.dtype == p.grad.dtype == torch.float32
        assert float(torch.nn.functional.cosine_similarity(p.grad.flatten(), q.grad.flatten(), dim=0)) > 0.99


def test_a_model_that_caps_its_logits_is_refused() -> None:
    """A head that is more than a linear map would be computed wrongly, so it is refused by name."""
    with pytest.raises(ModelError, match="final_logit_softcapping"):
        other_network("Gemma2", sliding_window=8)


def test_entropy_is_that_of_the_distribution() -> None:
    """Entropy only when asked for, from the same hidden states."""
    model = tiny_language_model()
    batch: PackedBatch = pack([ROWS[0]])
    logits = model.network(input_ids=torch.from_numpy(ROWS[0].ids)[None]).logits[0, 4:8] / 0.5
    want = torch.distributions.Categorical(logits=logits).entropy()
    assert torch.allclose(model.token_entropies(batch, temperature=0.5), want, atol=1e-5)


def test_sampling_first_and_training_afterwards_works_on_the_same_weights() -> None:
    """Frozen weights are stacked on first use; that must not change them, nor keep them from training later."""
    model = tiny_language_model()
    model.requires_grad_(False)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    with torch.inference_mode():
        model.row_logps(pack(ROWS))
    assert all(torch.equal(before[name], value) for name, value in model.network.state_dict().items())
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    model.row_logps(pack(ROWS)).sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.trainable())


def test_a_token_of_another_vocabulary_is_refused() -> None:
    """Pitfalls: rows made with another tokenizer are an error that says so, not an index error."""
    with pytest.raises(ModelError, match="another tokenizer"):
        tiny_language_model().hidden(pack([token_row([1], [9999])]))
