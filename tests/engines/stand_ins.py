"""Stand-ins for libraries that are not installed: they take what the library takes and give what it gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings, SampleSettings
from thumbwheel.engines.choosing import choose
from thumbwheel.models.language import load


class StandInVllm:
    """The two classes of vLLM that are used. It reads the folder and draws token by token, without any cache."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []

    def SamplingParams(self, **options: Any) -> dict[str, Any]:
        self.asked.append(options)
        return options

    def LLM(self, **options: Any) -> Any:
        self.opened.append(options)
        model = load(ModelSettings(path=options["model"], dtype=options["dtype"]))

        def generate(prompts: Sequence[Any], params: Sequence[Any], *, use_tqdm: bool) -> list[Any]:
            return [
                SimpleNamespace(outputs=[self._one(model, p["prompt_token_ids"], how)])
                for p, how in zip(prompts, params, strict=True)
            ]

        return SimpleNamespace(generate=generate)

    @torch.no_grad()
    def _one(self, model: Any, prompt: list[int], how: dict[str, Any]) -> Any:
        dice = torch.Generator().manual_seed(how["seed"])
        settings = SampleSettings(temperature=how["temperature"], top_p=how["top_p"], top_k=how["top_k"])
        ids: list[int] = []
        steps: list[dict[int, Any]] = []
        weight, _ = model.head(model.compute_dtype)
        while True:
            h = model.hidden(pack([token_row((*prompt, *ids), ())]))[-1:]
            token, logp = choose(h @ weight.t(), torch.rand(1, generator=dice), settings)
            ids.append(int(token))
            steps.append({int(token): SimpleNamespace(logprob=float(logp))})
            text = model.template.text_of(ids)
            ended = ids[-1] in how["stop_token_ids"] or any(stop in text for stop in how["stop"])
            if ended or len(ids) == how["max_tokens"]:
                return SimpleNamespace(token_ids=ids, logprobs=steps, finish_reason="stop" if ended else "length")


class StandInLlamaServer:
    """llama.cpp's server as its wheel offers it: one call, whose parts go to a callback that may return True to stop."""

    def __init__(self, tokens: Sequence[tuple[int, float]], *, error: str | None = None, as_text: bool = False) -> None:
        self.tokens, self.error, self.as_text = tokens, error, as_text
        self.asked: list[dict[str, Any]] = []
        self.given = 0

    def handle_completions(self, body: dict[str, Any], take: Callable[[Any], bool]) -> None:
        self.asked.append(body)
        if self.error is not None:
            take({"error": {"code": 400, "message": self.error}})
            return
        for id, prob in self.tokens[: body["n_predict"]]:
            self.given += 1
            part: Any = {"choices": [{"text": "", "logprobs": {"content": [{"id": id, "prob": prob}]}}]}
            if take(json.dumps(part) if self.as_text else part):
                return
        take({"choices": [{"text": "", "logprobs": None, "finish_reason": "stop"}]})
