"""Answers side by side: each the same as alone, with the log-probabilities that training will compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings, SampleSettings
from thumbwheel.engines.base import Sample
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.errors import DataError, ModelError, SettingError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Message, Prompt
from thumbwheel.testing.models import ScriptedSampler, tiny_language_model

TEXTS = ("hi", "hello there, you", "hi", "a", "hello there, you", "one more question for you", "hi")


def user(text: str) -> Prompt:
    return (Message(role="user", content=text),)


PROMPTS = [user(text) for text in TEXTS]
SEEDS = list(range(10, 10 + len(TEXTS)))


def settings(**changes: object) -> SampleSettings:
    return SampleSettings.model_validate({"temperature": 0.7, "max_new_tokens": 24, "batch_size": 4, **changes})


def eager_to_end(seed: int = 0) -> LanguageModel:
    """A tiny model whose answers end at any of some twenty tokens, so that they are of many lengths."""
    model = tiny_language_model(seed)
    model.template.stop_ids = (*range(0, 250, 12), model.template.end_id)
    return model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return eager_to_end()


def sample(model: LanguageModel, prompts: list[Prompt], seeds: list[int], **changes: object) -> list[Sample]:
    return BatchSampler(model).sample(prompts, seeds=seeds, settings=settings(**changes))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 50])
def test_a_row_does_not_depend_on_batch_size_or_neighbours(batch_size: int, model: LanguageModel) -> None:
    """Issue part 5: seeds per row. Rows finish at different times here, so others enter and move in between."""
    together = sample(model, PROMPTS, SEEDS, batch_size=batch_size)
    alone = [sample(model, [p], [s])[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert len({len(s.token_ids) for s in alone}) > 2
    assert [s.token_ids for s in together] == [s.token_ids for s in alone]
    assert [s.stop_reason for s in together] == [s.stop_reason for s in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.token_logps == pytest.approx(other.token_logps, abs=1e-5)


def test_the_seed_decides(model: LanguageModel) -> None:
    """Same seed, same answer; another seed, another answer."""
    first, second, third = sample(model, [user("hi")] * 3, [1, 1, 2])
    assert first.token_ids == second.token_ids
    assert first.token_ids != third.token_ids
    assert [first.seed, third.seed] == [1, 2]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_recomputed_log_probabilities_equal_the_sampled_ones(temperature: float, model: LanguageModel) -> None:
    """Pitfalls: sampled at temperature .7, recomputed before any update: ratio exactly 1 (1e-5 in float32)."""
    samples = sample(model, PROMPTS, SEEDS, temperature=temperature)
    rows = [token_row(model.template.prompt_ids(p), s.token_ids) for p, s in zip(PROMPTS, samples, strict=True)]
    again = model.token_logps(pack(rows), temperature=temperature)
    assert again.tolist() == pytest.approx([x for s in samples for x in s.token_logps], abs=1e-5)
    with torch.no_grad():
        sums = model.row_logps(pack(rows), temperature=temperature)
    assert sums.tolist() == pytest.approx([s.logp for s in samples], abs=1e-4)


@pytest.mark.parametrize("path", ["fused", "modules"])
def test_greedy_answers_are_those_of_transformers_generate(path: str, model: LanguageModel) -> None:
    """Our loop equals the network's own, token by token."""
    made = eager_to_end() if path == "modules" else model
    if path == "modules":
        made.decoder = None
    for prompt, got in zip(PROMPTS, sample(made, PROMPTS, SEEDS, temperature=0.0), strict=True):
        ids = torch.tensor([made.template.prompt_ids(prompt)])
        want = made.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=24,
            pad_token_id=256,
            eos_token_id=list(made.template.stop_ids),
        )
        assert list(got.token_ids) == want[0, ids.shape[1] :].tolist()


def test_both_ways_through_the_network_sample_the_same(model: LanguageModel) -> None:
    """The generic path is a fallback, not another sampler."""
    by_modules = eager_to_end()
    by_modules.decoder = None
    assert [s.token_ids for s in sample(by_modules, PROMPTS, SEEDS)] == [
        s.token_ids for s in sample(model, PROMPTS, SEEDS)
    ]


def test_an_answer_that_ends_carries_its_end_token_once_and_not_in_its_text(model: LanguageModel) -> None:
    """Ids are those really drawn; the text is what a person reads."""
    ended = [s for s in sample(model, PROMPTS * 4, list(range(28))) if s.stop_reason == "completed"]
    assert ended
    for s in ended:
        assert s.token_ids[-1] in model.template.stop_ids
        assert not set(s.token_ids[:-1]) & set(model.template.stop_ids)
        assert s.text == model.template.text_of(s.token_ids[:-1])
        assert len(s.token_logps) == len(s.token_ids)


def test_an_answer_cut_off_says_so_and_has_no_end(model: LanguageModel) -> None:
    """Terminated and truncated are two things."""
    cuts = [s for s in sample(model, PROMPTS, SEEDS, max_new_tokens=2) if s.stop_reason == "max_tokens"]
    assert cuts
    assert all(len(s.token_ids) == 2 and s.token_ids[-1] not in model.template.stop_ids for s in cuts)


def test_a_stop_string_ends_the_answer_and_is_not_in_its_text() -> None:
    """Issue part 5: stop strings. The ids keep every token that was drawn."""
    (free,) = sample(tiny_language_model(), [user("hi")], [12])
    text = free.text
    assert len(text) > 8
    stop = text[4:6]
    (got,) = sample(tiny_language_model(), [user("hi")], [12], stop=(stop, "never in there"))
    assert got.stop_reason == "stop_string"
    assert got.text == text[: text.index(stop)]
    assert free.token_ids[: len(got.token_ids)] == got.token_ids


def test_the_models_own_length_is_a_limit_with_its_own_name() -> None:
    """A prompt at the limit yields nothing, one near it a shorter answer; neither is called complete."""
    model = tiny_language_model(max_position_embeddings=40)
    long, longer = user("x" * 16), user("y" * 40)
    short, none = sample(model, [long, longer], [0, 1])
    room = 40 - len(model.template.prompt_ids(long))
    assert 0 < room < 24
    assert (short.stop_reason, len(short.token_ids)) == ("context_overflow", room)
    assert (none.stop_reason, none.token_ids, none.text) == ("context_overflow", (), "")


def test_progress_counts_every_answer(model: LanguageModel) -> None:
    """X5: progress as answers finish."""
    seen: list[tuple[int, int]] = []
    BatchSampler(model).sample(PROMPTS, seeds=SEEDS, settings=settings(), progress=lambda a, b: seen.append((a, b)))
    assert seen[-1] == (7, 7)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_the_adapter_and_its_reference_can_both_be_sampled_from() -> None:
    """The policy and its parent are the same weights, with the adapter on or off."""
    plain = tiny_language_model()
    model = tiny_language_model()
    model.make_trainable(ModelSettings(lora_r=2), seed=0)
    with torch.no_grad():
        for parameter in model.trainable():
            parameter += 0.2
    policy = sample(model, PROMPTS, SEEDS)
    with model.reference():
        reference = sample(model, PROMPTS, SEEDS)
    want = [s.token_ids for s in sample(plain, PROMPTS, SEEDS)]
    assert [s.token_ids for s in reference] == want
    assert [s.token_ids for s in policy] != want


def test_bfloat16_samples_are_near_what_training_computes() -> None:
    """P9: rollouts in half precision. The ratio to training's own forward stays near 1."""
    model = tiny_language_model(compute_dtype=torch.bfloat16)
    model.network.bfloat16()
    samples = sample(model, PROMPTS, SEEDS)
    rows = [token_row(model.template.prompt_ids(p), s.token_ids) for p, s in zip(PROMPTS, samples, strict=True)]
    again = model.token_logps(pack(rows), temperature=0.7).numpy()
    assert np.abs(again - np.array([x for s in samples for x in s.token_logps])).max() < 0.15


def test_prompts_and_seeds_must_be_as_many() -> None:
    """House style: never a guess."""
    with pytest.raises(DataError, match="seed of its own"):
        sample(tiny_language_model(), PROMPTS, [1])


def test_nothing_to_sample_gives_nothing(model: LanguageModel) -> None:
    """An empty call is no error."""
    assert sample(model, [], []) == []


def test_the_scripted_sampler_reads_its_script() -> None:
    """The shipped fake: known texts with known log-probabilities, and a record of its calls."""
    fake = ScriptedSampler({"hi": "hello", "bye": "farewell, my friend"}, logp=-0.5)
    first, second = fake.sample([user("hi"), user("bye")], seeds=[1, 2], settings=settings(max_new_tokens=8))
    assert (first.text, first.stop_reason, first.logp) == ("hello", "completed", -2.5)
    assert (second.text, second.stop_reason) == ("farewell", "max_tokens")
    assert fake.calls[0][1] == (1, 2)
    with pytest.raises(DataError, match="no answer to 'why'"):
        fake.sample([user("why")], seeds=[0], settings=settings())


def test_what_cannot_be_sampled_is_refused_with_the_reason() -> None:
    """Bad input: a negative seed, an empty stop string, a model that computes NaN."""
    with pytest.raises(DataError, match="0 or more"):
        sample(tiny_language_model(), [user("hi")], [-1])
    with pytest.raises(SettingError, match="empty string"):
        sample(tiny_language_model(), [user("hi")], [1], stop=("",))
    broken = tiny_language_model()
    with torch.no_grad():
        broken.network.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        sample(broken, [user("hi")], [1])
