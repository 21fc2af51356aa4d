"""Where a model comes from: a carried name, a GGUF file, a local folder, an adapter folder, or a hub id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thumbwheel.config import ModelSettings
from thumbwheel.errors import CheckpointError, ModelError, did_you_mean
from thumbwheel.models import folders, gguf


@dataclass(frozen=True)
class Source:
    """`named` is what the settings said; `folder` holds the weights, or is None while they are on the hub."""

    named: str
    folder: Path | None

    @property
    def place(self) -> str:
        """What transformers is given."""
        return self.named if self.folder is None else str(self.folder)


class BaseModel:
    """The weights that a model, or an adapter on it, stands on: their name, and their hash when it is asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        local = source.folder is not None and source.named not in gguf.CARRIED
        self.name = str(Path(source.named).expanduser().resolve()) if local else source.named

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the weight files."""
        return folders.weights_hash(folder_of(self._source))


def find(path: str) -> Source:
    """The source of `path`. Raises ModelError when it is plainly local and not there."""
    if path in gguf.CARRIED:
        return Source(path, gguf.as_folder(gguf.carried_file(path)))
    local = Path(path).expanduser()
    if local.is_file():
        if local.suffix.lower() != ".gguf":
            raise ModelError(
                f"'{path}' is a file and not a model. Allowed files end in .gguf; otherwise give the model's folder."
            )
        return Source(path, gguf.as_folder(local))
    if local.is_dir():
        if not ((local / "config.json").exists() or is_adapter(local)):
            raise ModelError(
                f"The folder '{path}' holds no model: neither config.json nor adapter_config.json is in it. "
                "Give the folder that holds the weights."
            )
        return Source(path, local)
    if local.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1 or "\\" in path:
        raise ModelError(_not_found(path, "it cannot be a hub id, which reads 'owner/name'"))
    return Source(path, None)


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter and no whole model."""
    return (folder / "adapter_config.json").exists() and not (folder / "config.json").exists()


def _not_found(path: str, hub: str) -> str:
    known = ", ".join(sorted(gguf.CARRIED))
    return (
        f"There is no model '{path}'.{did_you_mean(path, gguf.CARRIED)} Tried: the carried models ({known}); a file or "
        f"folder of that name, from {Path.cwd()}; the hub ({hub}). "
        "Set 'model.path' to a folder, a GGUF file, a carried model, or a hub id that this machine can reach."
    )


def read_network(source: Source, settings: ModelSettings, *, dtype: torch.dtype) -> nn.Module:
    """The causal language model in `dtype`, on the CPU. Raises ModelError, or CheckpointError on cut or absent weights."""
    from transformers import AutoModelForCausalLM

    network, report = _from_pretrained(
        AutoModelForCausalLM, source, settings, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    absent = sorted(report.get("missing_keys") or ())
    if absent:
        raise CheckpointError(
            f"The weights in '{source.place}' lack {len(absent)} tensors that the model needs, {absent[0]} for one. "
            "They are cut short, or belong to another architecture than config.json says."
        )
    return network  # type: ignore[no-any-return]


def read_tokenizer(source: Source, settings: ModelSettings) -> Any:
    """The tokenizer, fast where there is one. Raises ModelError."""
    from transformers import AutoTokenizer

    return _from_pretrained(AutoTokenizer, source, settings)


def _from_pretrained(kind: Any, source: Source, settings: ModelSettings, **options: Any) -> Any:
    offline = source.folder is not None or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    try:
        with folders.quiet():
            return kind.from_pretrained(
                source.place, trust_remote_code=settings.trust_remote_code, local_files_only=offline, **options
            )
    except Exception as error:  # the loader raises OSError, ValueError, KeyError, SafetensorError, …
        first = " ".join(str(error).split())[:300] or type(error).__name__
        if source.folder is None:
            why = "not asked, since it is switched off by HF_HUB_OFFLINE, and not in the cache" if offline else first
            raise ModelError(_not_found(source.named, why)) from error
        if type(error).__name__ == "SafetensorError":
            raise CheckpointError(
                f"The weights in '{source.place}' cannot be read: {first}. The file is cut short; take another copy."
            ) from error
        raise ModelError(f"The model in '{source.place}' cannot be loaded: {first}") from error


def folder_of(source: Source) -> Path:
    """The local folder of the weights, once they have been read (a hub model lies in the hub's cache by then)."""
    if source.folder is not None:
        return source.folder
    from transformers.utils import cached_file

    return Path(str(cached_file(source.named, "config.json", local_files_only=True))).parent


def device_of(settings: ModelSettings) -> torch.device:
    """The device of the settings; `auto` takes an accelerator where there is one. Raises ModelError."""
    if settings.device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(settings.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(
            f"'model.device' names a device this machine does not have. Allowed: auto, cpu, cuda, cuda:N, mps. "
            f"Got: {settings.device!r} ({first})."
        ) from error
    return device


def compute_dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype:
    """Of matrix products. `auto` is bfloat16 where the device multiplies it natively, float32 elsewhere."""
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = False
    return torch.bfloat16 if native else torch.float32
