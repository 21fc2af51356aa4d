"""Engines by name: what `engine.kind` may say."""

from __future__ import annotations

from collections.abc import Callable

from thumbwheel.config import EngineSettings
from thumbwheel.engines.base import StreamingSampler
from thumbwheel.models.language import LanguageModel
from thumbwheel.registry import Registry

Engine = Callable[[LanguageModel, EngineSettings], StreamingSampler]

engines: Registry[Engine] = Registry("engine")


def open_sampler(model: LanguageModel, settings: EngineSettings) -> StreamingSampler:
    """The sampler that `settings.kind` names, answering as `model` would.

    Raises RegistryError on an unknown name, ModelError where the engine's library is not installed or cannot serve the model.
    """
    return engines.get(settings.kind)(model, settings)


@engines.register("own")
def _own(model: LanguageModel, settings: EngineSettings) -> StreamingSampler:
    from thumbwheel.engines.batch_sampler import BatchSampler

    return BatchSampler(model)


@engines.register("llama_cpp")
def _llama_cpp(model: LanguageModel, settings: EngineSettings) -> StreamingSampler:
    from thumbwheel.engines.llama_cpp import LlamaCppSampler

    return LlamaCppSampler(model, settings)


@engines.register("vllm")
def _vllm(model: LanguageModel, settings: EngineSettings) -> StreamingSampler:
    from thumbwheel.engines.vllm_engine import VllmSampler

    return VllmSampler(model, settings)
