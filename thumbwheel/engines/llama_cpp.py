"""llama.cpp as an engine: fast for one answer at a time on a CPU, from a GGUF file whose weights may be quantised.

The wheel `xllamacpp` carries the library; it is optional. The library draws the tokens; where an answer ends is decided here,
as for every engine. Log-probabilities are those of the distribution that was drawn from, which for quantised weights is not
quite the model's that is trained.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from thumbwheel.config import EngineSettings, SampleSettings
from thumbwheel.engines.base import Progress, Sample, Spoken, check_request, listen
from thumbwheel.engines.ending import Ending, Speech, ids_of, room_for
from thumbwheel.errors import DataError, ModelError
from thumbwheel.models import gguf
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt

CONTEXT = 4096  # tokens of prompt and answer that memory is set aside for, where the model allows more
Drawn = tuple[int, float]  # a token and its log-probability, nats


class LlamaCppSampler:
    """Answers one prompt after another. `server` is for tests; by default the library is started on the GGUF file.

    Raises ModelError where the library is not installed, no GGUF file is known, or the model has adapters, which a GGUF
    file does not hold.
    """

    def __init__(self, model: LanguageModel, settings: EngineSettings, *, server: Any = None) -> None:
        if model.adapted():
            raise ModelError(
                "llama.cpp reads a GGUF file and would not see this model's adapters. Set engine.kind='own', or merge the "
                "adapters, convert the model to GGUF and name that file in 'engine.gguf'."
            )
        self.model = model
        self.room = min(room_for(model, ()), CONTEXT)
        self.server = _server(gguf_file(model, settings), settings, self.room) if server is None else server

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        seeds: Sequence[int],
        settings: SampleSettings,
        progress: Progress | None = None,
    ) -> list[Sample]:
        """See `thumbwheel.engines.base.Sampler`. `settings.batch_size` changes nothing here."""
        check_request(prompts, seeds, settings)
        samples: list[Sample] = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            samples.append(listen(self.stream(prompt, seed=seed, settings=settings), lambda piece: None))
            if progress is not None:
                progress(len(samples), len(prompts))
        return samples

    def stream(self, prompt: Prompt, *, seed: int, settings: SampleSettings) -> Spoken:
        """See `thumbwheel.engines.base.StreamingSampler`."""
        check_request([prompt], [seed], settings)
        ids = ids_of(self.model, prompt)
        if not ids:
            raise DataError("The prompt renders to no token at all, so nothing can be sampled after it.")
        ending = Ending(self.model.template, settings, self.room - len(ids))
        if (nothing := ending.sample((), (), seed)) is not None:
            return nothing
        speech = Speech(ending)
        drawn: list[int] = []
        logps: list[float] = []
        tokens = self._tokens(request(ids, seed, ending.limit, settings))
        try:
            for token, logp in tokens:
                drawn.append(token)
                logps.append(logp)
                sample = ending.sample(drawn, logps, seed)
                if sample is not None:
                    if rest := speech.rest(sample):
                        yield rest
                    return sample
                if piece := speech.piece(drawn):
                    yield piece
        finally:
            tokens.close()
        if not drawn:
            raise ModelError("llama.cpp drew no token and gave no reason. Look at the GGUF file: 'engine.gguf'.")
        # The file has end tokens of its own, which this model's template may not know; the library stops there.
        sample = Sample(ending.template.text_of(drawn), tuple(drawn), tuple(logps), "completed", seed)
        if rest := speech.rest(sample):
            yield rest
        return sample

    def _tokens(self, body: dict[str, Any]) -> Generator[Drawn, None, None]:
        """Tokens as the library draws them, in a thread of its own; closing the generator stops it."""
        arrived: queue.Queue[Drawn | Exception | None] = queue.Queue()
        closed = threading.Event()

        def take(part: Any) -> bool:
            for item in _parsed(part):
                arrived.put(item)
            return closed.is_set()  # True stops the library

        def work(handle: Callable[..., Any]) -> None:
            try:
                handle(body, take)
                arrived.put(None)
            except Exception as error:
                arrived.put(error)

        worker = threading.Thread(target=work, args=(self.server.handle_completions,), daemon=True)
        worker.start()
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, Exception):
                    raise ModelError(f"llama.cpp cannot answer: {item}") from item
                yield item
        finally:
            closed.set()
            worker.join()


def _parsed(part: Any) -> list[Drawn | Exception]:
    """The tokens of one part of an answer."""
    told = json.loads(part) if isinstance(part, str | bytes) else part
    if "error" in told:
        return [ModelError(str(told["error"].get("message", told["error"])))]
    found = [token for choice in told["choices"] for token in (choice.get("logprobs") or {}).get("content") or ()]
    return [(int(token["id"]), math.log(token["prob"]) if token["prob"] > 0 else -math.inf) for token in found]


def request(ids: Sequence[int], seed: int, limit: int, settings: SampleSettings) -> dict[str, Any]:
    """What the library is asked: the order of its samplers is ours, and nothing else changes the distribution."""
    return {
        "prompt": list(ids),
        "n_predict": limit,
        "seed": seed % 2**32,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "samplers": ["temperature", "top_k", "top_p"],
        "n_probs": 1,
        "post_sampling_probs": True,
        "cache_prompt": False,  # a cached prompt is computed in other batches, and then a seed is no promise
        "stream": True,
    }


def gguf_file(model: LanguageModel, settings: EngineSettings) -> Path:
    """The GGUF file of the settings, or the one that the model was read from. Raises ModelError."""
    named = None if model.base is None else model.base.name
    if settings.gguf is not None:
        found = settings.gguf.expanduser()
    elif named in gguf.CARRIED:
        return gguf.carried_file(str(named))
    else:
        found = Path(named or "")
    if found.suffix.lower() != ".gguf" or not found.is_file():
        raise ModelError(
            f"llama.cpp needs a GGUF file of this model. Got: '{settings.gguf or named}'. "
            "Name the file in 'engine.gguf', or set engine.kind='own'."
        )
    return found


def _server(file: Path, settings: EngineSettings, room: int) -> Any:
    try:
        import xllamacpp  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ModelError(
            "engine.kind='llama_cpp' needs the package 'xllamacpp', which is not installed. "
            "Install it (pip install xllamacpp), or set engine.kind='own'."
        ) from error
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = room
    params.n_parallel = 1
    params.cpuparams.n_threads = settings.threads or torch.get_num_threads()
    params.verbosity = -1
    params.warmup = False
    return xllamacpp.Server(params)
