"""Where models come from, and what is said when they cannot be had."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings
from thumbwheel.errors import CheckpointError, ModelError, StoreError
from thumbwheel.models import folders, gguf
from thumbwheel.models.language import load
from thumbwheel.records import Message
from thumbwheel.testing.models import TEMPLATE, tiny_language_model

BATCH = pack([token_row([257, 1, 2], [3, 4, 258])])


def settings(path: object, **changes: Any) -> ModelSettings:
    return ModelSettings(path=str(path), device="cpu", **{"dtype": "float32", **changes})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Calls to the network; each fails."""
    calls: list[object] = []

    def refuse(self: socket.socket, address: object) -> None:
        calls.append(address)
        raise OSError("the network is switched off in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return calls


def test_a_whole_model_saved_and_loaded_scores_the_same_without_a_network_call(
    tmp_path: Path, no_network: list[object]
) -> None:
    """W3, and no network calls when the path is local."""
    model = tiny_language_model()
    model.save(tmp_path / "m")
    again = load(settings(tmp_path / "m"))
    assert torch.equal(again.row_logps(BATCH), model.row_logps(BATCH))
    assert again.template.hash == model.template.hash
    assert again.trainable() == []
    assert no_network == []


@pytest.mark.parametrize(
    "path", ["./nowhere", "/nowhere/at/all", "~/nowhere", "smollm2-135m-instrukt", "a/b/c", "x.gguf"]
)
def test_a_missing_model_says_what_was_tried_and_what_to_do(path: str, no_network: list[object]) -> None:
    """Bad input: a missing model."""
    with pytest.raises(ModelError, match=r"Tried: .*smollm2-135m-instruct.*Set 'model.path'"):
        load(settings(path))
    assert no_network == []


def test_a_near_miss_of_a_carried_name_is_pointed_at() -> None:
    """House style: did you mean."""
    with pytest.raises(ModelError, match="Did you mean 'smollm2-135m-instruct'"):
        load(settings("smollm2-135m-instrukt"))


def test_a_hub_id_is_not_asked_for_when_the_hub_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, no_network: list[object]
) -> None:
    """HF_HUB_OFFLINE is respected."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        load(settings("nobody/no-such-model"))
    assert no_network == []


@pytest.mark.parametrize("harm", ["cut", "tensor missing", "no weights", "config cut", "empty", "a file"])
def test_a_broken_folder_is_a_clear_error(harm: str, tmp_path: Path) -> None:
    """Bad input: weights cut short must never become random weights."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "m"
    tiny_language_model().save(folder)
    weights = folder / "model.safetensors"
    if harm == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif harm == "tensor missing":
        tensors = load_file(weights)
        tensors.pop("model.norm.weight")
        save_file(tensors, weights, metadata={"format": "pt"})
    elif harm == "no weights":
        weights.unlink()
    elif harm == "config cut":
        (folder / "config.json").write_text((folder / "config.json").read_text()[:50])
    elif harm == "empty":
        folder = tmp_path / "empty"
        folder.mkdir()
    else:
        folder = folder / "config.json"
    with pytest.raises((CheckpointError, ModelError), match=str(folder.name)):
        load(settings(folder))


def test_a_device_that_is_not_there_is_named() -> None:
    """House style: what, allowed, got."""
    with pytest.raises(ModelError, match="cuda:7"):
        load(ModelSettings(path="whatever/it-is", device="cuda:7")) if torch.cuda.is_available() else _device("cuda:7")


def _device(name: str) -> None:
    from thumbwheel.models.sources import device_of

    device_of(ModelSettings(device=name))


def test_precision_by_setting(tmp_path: Path) -> None:
    """P9: frozen weights in the compute dtype; float32 where all of them learn."""
    tiny_language_model().save(tmp_path / "m")
    assert load(settings(tmp_path / "m", dtype="bfloat16")).network.dtype == torch.bfloat16
    assert load(settings(tmp_path / "m")).network.dtype == torch.float32
    lora = load(settings(tmp_path / "m", dtype="bfloat16"), trainable=True)
    assert {p.dtype for p in lora.trainable()} == {torch.float32}
    full = load(settings(tmp_path / "m", dtype="auto", adapter="full"), trainable=True)
    assert {p.dtype for p in full.trainable()} == {torch.float32}


def test_another_template_than_the_trained_one_is_warned_of_with_the_difference(tmp_path: Path) -> None:
    """Pitfalls: a model served with another chat template than it was trained with."""
    tiny_language_model().save(tmp_path / "m")
    other = TEMPLATE.replace("<|end|>", "<|end|> ")
    tiny_language_model(template=other).save(tmp_path / "t")
    with pytest.warns(UserWarning, match=r"\+.*<\|end\|> "):
        load(settings(tmp_path / "m", tokenizer=str(tmp_path / "t")))


def test_a_cut_description_is_a_clear_error(tmp_path: Path) -> None:
    """Bad input: an unreadable checkpoint."""
    tiny_language_model().save(tmp_path / "m")
    (tmp_path / "m" / "thumbwheel.json").write_text('{"kind": ')
    with pytest.raises(CheckpointError, match=r"thumbwheel\.json"):
        load(settings(tmp_path / "m"))


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """X4: a crash in the middle of saving leaves what stood there before."""
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "old").write_text("old")

    def crash() -> None:
        with folders.new_folder(tmp_path / "v") as made:
            (made / "new").write_text("new")
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    assert [p.name for p in tmp_path.iterdir()] == ["v"]
    assert (tmp_path / "v" / "old").read_text() == "old"
    with folders.new_folder(tmp_path / "v") as made:
        (made / "new").write_text("new")
    assert [p.name for p in (tmp_path / "v").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["v"]


def test_a_full_disk_is_a_store_error_and_leaves_nothing(tmp_path: Path) -> None:
    """Bad input: a full disk."""
    with pytest.raises(StoreError, match="No space left"), folders.new_folder(tmp_path / "v"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_carried_model_whose_package_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The carried model is found, never imported."""
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="--no-deps"):
        gguf.carried_file("smollm2-135m-instruct")


def test_a_broken_gguf_file_is_a_clear_error(tmp_path: Path) -> None:
    """Bad input: not a GGUF file at all."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelError, match=r"m\.gguf.*cannot be read"):
        gguf.as_folder(tmp_path / "m.gguf", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("config.json"))


@pytest.mark.model
def test_the_carried_model_speaks_and_its_converted_folder_is_kept() -> None:
    """D1, X1: SmolLM2 from GGUF. pad = eos (2), bos 1; it knows the capital of France better than a wrong one."""
    model = load(ModelSettings(dtype="float32", device="cpu"))
    template = model.template
    assert (template.end_id, template.bos_id, template.tokenizer.pad_token_id) == (2, 1, 2)
    prompt = (Message(role="user", content="What is the capital of France?"),)
    rows = [template.encode(prompt, f"The capital of France is {city}.") for city in ("Paris", "Madrid")]
    assert [int((row.ids[row.trained] == 2).sum()) for row in rows] == [1, 1]
    right, wrong = model.row_logps(pack(rows)).tolist()
    assert right > wrong + 2
    folder = gguf.as_folder(gguf.carried_file("smollm2-135m-instruct"))
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
