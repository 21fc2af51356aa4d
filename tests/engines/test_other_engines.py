"""Engines by name, what they ask their libraries, and what they say where they cannot serve."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.stand_ins import StandInLlamaServer, StandInVllm
from thumbwheel.batches import pack, token_row
from thumbwheel.config import EngineSettings, ModelSettings, SampleSettings
from thumbwheel.engines.base import listen
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.engines.llama_cpp import LlamaCppSampler, gguf_file
from thumbwheel.engines.opening import open_sampler
from thumbwheel.engines.vllm_engine import VllmSampler, write_whole
from thumbwheel.errors import DataError, ModelError, RegistryError
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.records import Message
from thumbwheel.testing.models import tiny_language_model

HI = (Message(role="user", content="hi"),)
TEMPLATE = tiny_language_model().template
END = TEMPLATE.end_id
H, I, A = TEMPLATE.tokenizer("Hia", add_special_tokens=False).input_ids
ODD = next(id for id in TEMPLATE.tokenizer.all_special_ids if id not in TEMPLATE.stop_ids)  # a control token


def moved() -> LanguageModel:
    """A tiny model with adapters that change something."""
    model = tiny_language_model()
    model.make_trainable(ModelSettings(lora_r=2), seed=0)
    with torch.no_grad():
        for parameter in model.trainable():
            parameter += 0.2
    return model


def llama(tokens: list[tuple[int, float]], **options: Any) -> tuple[LlamaCppSampler, StandInLlamaServer]:
    server = StandInLlamaServer(tokens, **options)
    return LlamaCppSampler(tiny_language_model(), EngineSettings(kind="llama_cpp"), server=server), server


# ---------------------------------------------------------------- by name


def test_our_own_is_the_default() -> None:
    """P9: nothing to install, nothing to choose."""
    assert isinstance(open_sampler(tiny_language_model(), EngineSettings()), BatchSampler)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """House style: what, allowed, got, next."""
    with pytest.raises(RegistryError, match="Did you mean 'vllm'"):
        open_sampler(tiny_language_model(), EngineSettings(kind="vlm"))


def test_an_engine_of_ones_own_is_named_by_module_and_attribute() -> None:
    """Extending is one file."""
    kind = "thumbwheel.engines.opening:_own"
    assert isinstance(open_sampler(tiny_language_model(), EngineSettings(kind=kind)), BatchSampler)


@pytest.mark.parametrize(("kind", "package"), [("vllm", "vllm"), ("llama_cpp", "xllamacpp")])
def test_an_absent_library_is_told_with_what_to_install(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Optional engines: a clear error, no traceback from an import."""
    monkeypatch.setitem(sys.modules, package, None)
    file = tmp_path / "m.gguf"
    file.touch()
    with pytest.raises(ModelError, match=rf"pip install {package}.*engine.kind='own'"):
        open_sampler(tiny_language_model(), EngineSettings(kind=kind, gguf=file))


# ---------------------------------------------------------------- llama.cpp


@pytest.mark.parametrize("as_text", [False, True])
def test_llama_cpp_tokens_become_a_sample(*, as_text: bool) -> None:
    """Probabilities ½ and ¼ are log-probabilities -ln 2 and -2 ln 2; the end token is drawn and not shown."""
    sampler, server = llama([(H, 0.5), (I, 0.25), (END, 1.0)], as_text=as_text)
    (sample,) = sampler.sample([HI], seeds=[3], settings=SampleSettings())
    assert (sample.text, sample.stop_reason, sample.token_ids) == ("Hi", "completed", (H, I, END))
    assert sample.token_logps == pytest.approx([-math.log(2), -2 * math.log(2), 0.0])
    assert server.asked[0]["prompt"] == list(tiny_language_model().template.prompt_ids(HI))


def test_llama_cpp_is_asked_for_our_distribution_and_no_other() -> None:
    """Temperature, then top-k, then top-p; no penalty, no other sampler; the seed as it is."""
    sampler, server = llama([(END, 1.0)])
    sampler.sample([HI], seeds=[7], settings=SampleSettings(temperature=0.5, top_p=0.9, top_k=5, max_new_tokens=6))
    asked = server.asked[0]
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "n_predict": 6}
    assert {key: asked[key] for key in wanted} == wanted
    assert asked["samplers"] == ["temperature", "top_k", "top_p"]


def test_llama_cpp_stops_drawing_when_nobody_listens() -> None:
    """A talk that is broken off costs no further tokens."""
    sampler, server = llama([(A, 0.5)] * 400)
    spoken = sampler.stream(HI, seed=1, settings=SampleSettings(max_new_tokens=400))
    assert next(spoken) == "a"
    spoken.close()
    given = server.given
    assert given <= 400
    sampler.sample([HI], seeds=[1], settings=SampleSettings(max_new_tokens=1))
    assert server.given == given + 1


def test_llama_cpp_ends_at_an_end_token_of_its_file() -> None:
    """The file may know more end tokens than the template; the library stops there by itself."""
    sampler, _ = llama([(H, 0.5), (I, 0.5), (ODD, 0.5)])
    pieces: list[str] = []
    sample = listen(sampler.stream(HI, seed=1, settings=SampleSettings()), pieces.append)
    assert (sample.text, sample.stop_reason, sample.token_ids[-1]) == ("Hi", "completed", ODD)
    assert "".join(pieces) == "Hi"


def test_llama_cpp_errors_are_told() -> None:
    """What the library refuses, and an answer of nothing."""
    refused, _ = llama([], error="context size exceeded")
    with pytest.raises(ModelError, match="context size exceeded"):
        refused.sample([HI], seeds=[1], settings=SampleSettings())
    silent, _ = llama([])
    with pytest.raises(ModelError, match="drew no token"):
        silent.sample([HI], seeds=[1], settings=SampleSettings())


def test_a_prompt_without_room_needs_no_library() -> None:
    """As everywhere: context overflow, with no token."""
    sampler, server = llama([(A, 0.5)])
    sampler.room = 4
    (sample,) = sampler.sample([HI], seeds=[1], settings=SampleSettings())
    assert (sample.stop_reason, sample.token_ids, server.asked) == ("context_overflow", (), [])


def test_llama_cpp_refuses_adapters_and_a_missing_file(tmp_path: Path) -> None:
    """It would answer as the base model: never a silent guess."""
    with pytest.raises(ModelError, match="adapters"):
        LlamaCppSampler(moved(), EngineSettings(), server=object())
    with pytest.raises(ModelError, match=r"engine\.gguf"):
        gguf_file(tiny_language_model(), EngineSettings())
    with pytest.raises(ModelError, match=r"none\.gguf"):
        gguf_file(tiny_language_model(), EngineSettings(gguf=tmp_path / "none.gguf"))
    file = tmp_path / "there.gguf"
    file.touch()
    assert gguf_file(tiny_language_model(), EngineSettings(gguf=file)) == file


# ---------------------------------------------------------------- vLLM


def test_vllm_is_asked_for_processed_log_probabilities_and_our_ends() -> None:
    """Pitfall: behaviour log-probabilities before temperature, top-k and top-p are another distribution's."""
    library = StandInVllm()
    sampler = VllmSampler(tiny_language_model(), EngineSettings(vllm_memory_share=0.3), library=library)
    sampler.sample([HI], seeds=[5], settings=SampleSettings(temperature=0.5, top_p=0.9, top_k=4, max_new_tokens=3))
    (opened,) = library.opened
    assert (opened["logprobs_mode"], opened["gpu_memory_utilization"]) == ("processed_logprobs", 0.3)
    (asked,) = library.asked
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "max_tokens": 3, "seed": 5, "ignore_eos": True}
    assert {key: asked[key] for key in wanted} == wanted
    assert END in asked["stop_token_ids"]


def test_vllm_answers_as_the_policy_and_as_its_reference() -> None:
    """Adapters are folded in as they stand; the trainer's own log-probabilities agree to 1e-4."""
    model, library = moved(), StandInVllm()
    sampler = VllmSampler(model, EngineSettings(), library=library)
    settings = SampleSettings(temperature=0.7, max_new_tokens=8)

    def check() -> float:
        (sample,) = sampler.sample([HI], seeds=[2], settings=settings)
        row = token_row(model.template.prompt_ids(HI), sample.token_ids)
        with torch.no_grad():
            assert model.row_logps(pack([row]), temperature=0.7).item() == pytest.approx(sample.logp, abs=1e-4)
        return sample.logp

    policy = check()
    with model.reference():
        assert check() != policy
    assert check() == pytest.approx(policy, abs=1e-6)
    check()
    assert len(library.opened) == 3  # the last call found the weights unchanged
    with torch.no_grad():
        model.trainable()[0].add_(0.1)
    check()
    assert len(library.opened) == 4


def test_writing_the_model_whole_leaves_it_as_it_is(tmp_path: Path) -> None:
    """The trainer goes on with its adapters."""
    model = moved()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    write_whole(model, tmp_path)
    assert model.adapted()
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    assert not load(ModelSettings(path=str(tmp_path))).adapted()


def test_a_prompt_of_nothing_is_refused() -> None:
    """Bad input: there is nothing to go on from."""
    model = tiny_language_model()
    model.template.prompt_ids = lambda prompt: []  # type: ignore[method-assign,assignment]
    for sampler in (
        VllmSampler(model, EngineSettings(), library=StandInVllm()),
        LlamaCppSampler(model, EngineSettings(), server=StandInLlamaServer([])),
        BatchSampler(model),
    ):
        with pytest.raises(DataError, match="no token"):
            sampler.sample([HI], seeds=[1], settings=SampleSettings())
