"""A tiny language model that needs no download, and a sampler that reads from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Progress, Sample, Spoken, Stop, check_request
from thumbwheel.errors import DataError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, OPEN, END = "<|pad|>", "<|open|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|open|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|open|>assistant\n{% endif %}"
)


def tiny_tokenizer(*, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte by byte: ids 0 … 255 are bytes, 256 … 258 are padding, opening and end of a turn. No BOS."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (PAD, OPEN, END)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END)
    tokenizer.add_special_tokens({"additional_special_tokens": [OPEN]})
    tokenizer.chat_template = template
    return tokenizer


def tiny_language_model(
    seed: int = 0,
    *,
    vocab: int = 259,
    layers: int = 2,
    dim: int = 64,
    tied: bool = True,
    template: str | None = TEMPLATE,
    compute_dtype: torch.dtype = torch.float32,
    **config: Any,
) -> LanguageModel:
    """A random Llama of `layers` × `dim`, four heads on two key/value heads. `vocab` below 259 is an error.

    The weights are drawn from `seed` alone, and frozen until `make_trainable`; the caller's random state is left as it was.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    if vocab < 259:
        raise DataError(f"'vocab' must be at least 259 (256 bytes and 3 control tokens). Got {vocab}.")
    tokenizer = tiny_tokenizer(template=template)
    shape = {
        "hidden_size": dim,
        "intermediate_size": 2 * dim,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(LlamaConfig(**{**shape, **config}))
    return LanguageModel(network.requires_grad_(False), tokenizer, compute_dtype=compute_dtype)


class ScriptedSampler:
    """Answers from a script: a text for every last user message, or a function of prompt and seed.

    Log-probabilities are given as `logp` for every byte of the answer, so that they are known outside any model.
    """

    def __init__(self, script: Mapping[str, str] | Callable[[Prompt, int], str], *, logp: float = -1.0) -> None:
        self.script = script
        self.logp = logp
        self.calls: list[tuple[tuple[Prompt, ...], tuple[int, ...]]] = []

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        seeds: Sequence[int],
        settings: SampleSettings,
        progress: Progress | None = None,
    ) -> list[Sample]:
        """As `thumbwheel.engines.base.Sampler.sample`. Raises DataError on a prompt the script does not know."""
        check_request(prompts, seeds, settings)
        self.calls.append((tuple(prompts), tuple(seeds)))
        samples = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            samples.append(self._sample(self._answer(prompt, seed), seed, settings))
            if progress is not None:
                progress(len(samples), len(prompts))
        return samples

    def stream(self, prompt: Prompt, *, seed: int, settings: SampleSettings) -> Spoken:
        """As `thumbwheel.engines.base.StreamingSampler.stream`: a character at a time."""
        sample = self.sample([prompt], seeds=[seed], settings=settings)[0]
        yield from sample.text
        return sample

    def _sample(self, text: str, seed: int, settings: SampleSettings) -> Sample:
        ends = [place + len(stop) for stop in settings.stop if (place := text.find(stop)) >= 0]
        data = text[: min(ends, default=len(text))].encode("utf-8")
        ids = tuple(data[: settings.max_new_tokens])
        shown = bytes(ids).decode("utf-8", errors="replace")
        reason: Stop = "max_tokens" if len(data) > len(ids) else "stop_string" if ends else "completed"
        if reason == "stop_string":
            shown = shown[: min(place for stop in settings.stop if (place := shown.find(stop)) >= 0)]
        return Sample(shown, ids, (self.logp,) * len(ids), reason, seed)

    def _answer(self, prompt: Prompt, seed: int) -> str:
        if not isinstance(self.script, Mapping):
            return self.script(prompt, seed)
        question = prompt[-1].content
        if question not in self.script:
            raise DataError(f"The script has no answer to '{question}'. It knows: {', '.join(sorted(self.script))}.")
        return self.script[question]
