"""A tiny random BERT in a folder, as sentence-transformers lays one out; for tests that need an encoder and no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEXT = (
    "the a cat dog sat on mat ran fast slow good bad because it was very not and of to in is this answer question why how"
    " red green blue one two three long short text some more words here . , ! ?"
)
WORDS = TEXT.split()


def write_encoder(
    folder: Path,
    *,
    pooling: str | None = "mean_tokens",
    normalise: bool = True,
    max_seq_length: int | None = 16,
    layers: int = 3,
    seed: int = 0,
) -> Path:
    """Write the model: words of `WORDS`, letters for what is not among them, width 16."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = [letter for base in map(chr, range(97, 123)) for letter in (base, f"##{base}")]
    entries = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters])
    vocabulary = {word: i for i, word in enumerate(entries)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=layers, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=40,
        )  # fmt: skip
        network = BertModel(config, add_pooling_layer=False)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules: list[dict[str, Any]] = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        modes = {
            f"pooling_mode_{mode}": mode == pooling for mode in ("mean_tokens", "cls_token", "max_tokens", "lasttoken")
        }
        _write(folder / "1_Pooling" / "config.json", modes)
        modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
    if normalise:
        modules.append({"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"})
    _write(folder / "modules.json", modules)
    if max_seq_length is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
