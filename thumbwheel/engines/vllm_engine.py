"""vLLM as an engine, for accelerators: the same protocol, the same ends, its own scheduling.

vLLM is optional. It holds weights of its own, so the model's (adapters folded in) are written to a folder that it reads; when the
model has changed since, the next call does so again, which takes as long as starting vLLM. Training loops that sample in
every step are better served by our own sampler, which reads the trainer's weights where they lie.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thumbwheel.config import EngineSettings, SampleSettings
from thumbwheel.engines.base import Progress, Sample, Spoken, check_request
from thumbwheel.engines.ending import Ending, ids_of, room_for
from thumbwheel.errors import DataError, ModelError
from thumbwheel.models import adapters
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt


class VllmSampler:
    """Answers all prompts of a call side by side. `library` is for tests; by default it is the package `vllm`.

    Raises ModelError where vLLM is not installed.
    """

    def __init__(self, model: LanguageModel, settings: EngineSettings, *, library: Any = None) -> None:
        self.library = _library() if library is None else library
        self.model = model
        self.settings = settings
        self._engine: Any = None
        self._written: tuple[Any, ...] = ()

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        seeds: Sequence[int],
        settings: SampleSettings,
        progress: Progress | None = None,
    ) -> list[Sample]:
        """See `thumbwheel.engines.base.Sampler`. vLLM chooses its batches; `settings.batch_size` changes nothing here."""
        check_request(prompts, seeds, settings)
        asked = [ids_of(self.model, prompt) for prompt in prompts]
        if any(not ids for ids in asked):
            raise DataError("A prompt renders to no token at all, so nothing can be sampled after it.")
        endings = [Ending(self.model.template, settings, room_for(self.model, ids)) for ids in asked]
        samples = {i: s for i, ending in enumerate(endings) if (s := ending.sample((), (), seeds[i])) is not None}
        open_ = [i for i in range(len(asked)) if i not in samples]
        if open_:
            outputs = self._current().generate(
                [{"prompt_token_ids": list(asked[i])} for i in open_],
                [self.library.SamplingParams(**self.request(seeds[i], endings[i].limit, settings)) for i in open_],
                use_tqdm=False,
            )
            for i, output in zip(open_, outputs, strict=True):
                samples[i] = self._sample(output.outputs[0], endings[i], seeds[i])
                if progress is not None:
                    progress(len(samples), len(prompts))
        return [samples[i] for i in range(len(asked))]

    def stream(self, prompt: Prompt, *, seed: int, settings: SampleSettings) -> Spoken:
        """See `thumbwheel.engines.base.StreamingSampler`. vLLM's offline engine hands answers over whole: one piece."""
        sample = self.sample([prompt], seeds=[seed], settings=settings)[0]
        if sample.text:
            yield sample.text
        return sample

    def request(self, seed: int, limit: int, settings: SampleSettings) -> dict[str, Any]:
        """The parameters of one answer; log-probabilities are of the token drawn, after temperature, top-k and top-p."""
        return {
            "temperature": settings.temperature,
            "top_p": settings.top_p or 1e-9,  # 0 leaves the most likely token; vLLM refuses 0 itself
            "top_k": settings.top_k,
            "max_tokens": limit,
            "seed": seed,
            "stop": list(settings.stop),
            "stop_token_ids": list(self.model.template.stop_ids),
            "ignore_eos": True,  # the template's own end tokens count, and no others
            "logprobs": 0,
        }

    def _sample(self, output: Any, ending: Ending, seed: int) -> Sample:
        ids = [int(token) for token in output.token_ids]
        logps = [float(step[token].logprob) for token, step in zip(ids, output.logprobs, strict=True)]
        for size in range(1, len(ids) + 1):
            sample = ending.sample(ids[:size], logps[:size], seed)
            if sample is not None:
                return sample
        raise ModelError(
            f"vLLM ended an answer after {len(ids)} tokens ({output.finish_reason}), where this model's answers do not end. "
            "Please report it with the model's name; engine.kind='own' samples it meanwhile."
        )

    def _current(self) -> Any:
        """The engine on the model's weights as they stand."""
        now = (*((p.data_ptr(), p._version) for p in self.model.network.parameters()), _view(self.model))
        if self._engine is None or now != self._written:
            self._engine = None  # its memory is needed for the next one
            with tempfile.TemporaryDirectory(prefix="thumbwheel-vllm-") as folder:
                write_whole(self.model, Path(folder))
                self._engine = self.library.LLM(
                    model=folder,
                    dtype=str(self.model.compute_dtype).removeprefix("torch."),
                    gpu_memory_utilization=self.settings.vllm_memory_share,
                    logprobs_mode="processed_logprobs",
                    seed=0,
                )
            self._written = now
        return self._engine


def _view(model: LanguageModel) -> bool:
    """Whether the model stands as its own reference just now."""
    return any(adapter.use_reference for _, adapter in adapters.adapters_of(model.network))


@torch.no_grad()
def write_whole(model: LanguageModel, folder: Path) -> None:
    """Write the model as it stands, adapters folded into the weights, with its tokenizer. Holds a copy while it writes."""
    network = copy.deepcopy(model.network)
    for _, adapter in adapters.adapters_of(network):
        factors = adapter.factors()
        if factors is None:
            adapter.b.zero_()
        else:
            adapter.a, adapter.b = (torch.nn.Parameter(factor.detach().clone()) for factor in factors)
    adapters.merge(network)
    network.to(model.compute_dtype).save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def _library() -> Any:
    try:
        import vllm  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ModelError(
            "engine.kind='vllm' needs the package 'vllm', which is not installed. "
            "Install it on a machine with an accelerator (pip install vllm), or set engine.kind='own'."
        ) from error
    return vllm
