"""Adapters: a fresh one changes nothing, the reference never moves, folders are peft's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from thumbwheel.batches import pack, token_row
from thumbwheel.config import ModelSettings
from thumbwheel.errors import CheckpointError, ModelError
from thumbwheel.models.adapters import adapters_of
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.testing.models import tiny_language_model

BATCH = pack([token_row([257, 1, 2], [3, 4, 258]), token_row([257, 1, 2], [5, 258])])
LORA = ModelSettings(lora_r=4, lora_alpha=8.0, dtype="float32", device="cpu")


def logps(model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return model.row_logps(BATCH)


def shaken(model: LanguageModel, seed: int = 0) -> LanguageModel:
    """As if it had learnt something."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.trainable():
            parameter += 0.1 * torch.randn(parameter.shape, generator=dice)
    return model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_language_model().save(tmp_path / "base")
    return tmp_path / "base"


def opened(folder: Path, *, trainable: bool = False, **changes: object) -> LanguageModel:
    return load(LORA.model_copy(update={"path": str(folder), **changes}), trainable=trainable)


def test_before_the_first_update_policy_and_reference_are_the_same_bit_for_bit() -> None:
    """Golden values: the ratio is exactly 1 before the first update."""
    model = tiny_language_model()
    before = logps(model)
    model.make_trainable(LORA, seed=0)
    assert torch.equal(logps(model), before)
    with model.reference():
        assert torch.equal(logps(model), before)


def test_the_reference_stays_while_the_policy_moves() -> None:
    """Architecture: with adapters the reference is the same weights with the adapter off, never a second copy."""
    model = tiny_language_model()
    before = logps(model)
    model.make_trainable(LORA, seed=0)
    held = sum(p.numel() for p in model.parameters())
    shaken(model)
    assert float((logps(model) - before).abs().max()) > 0.01
    with model.reference():
        assert torch.equal(logps(model), before)
    assert float((logps(model) - before).abs().max()) > 0.01
    assert sum(p.numel() for p in model.parameters()) == held


def test_only_the_adapters_learn_and_the_rank_is_that_of_the_settings() -> None:
    """P9: LoRA. Rank 4 on seven layers of two blocks: sizes by hand for width 64, key width 32, inner width 128."""
    model = tiny_language_model()
    learning = model.make_trainable(LORA, seed=0)
    by_hand = 2 * 4 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 2 * (64 + 128) + (128 + 64))
    assert sum(p.numel() for p in learning) == by_hand
    assert all(p.dtype == torch.float32 for p in learning)
    model.row_logps(BATCH).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is not None and not n.endswith((".a", ".b"))] == []


def test_targets_by_name_and_an_unknown_name_is_refused() -> None:
    """Settings: lora_targets names modules."""
    model = tiny_language_model()
    model.make_trainable(LORA.model_copy(update={"lora_targets": ("q_proj", "down_proj")}), seed=0)
    assert {name.rpartition(".")[2] for name, _ in adapters_of(model.network)} == {"q_proj", "down_proj"}
    shaken(model)
    plain = tiny_language_model()
    plain.make_trainable(LORA.model_copy(update={"lora_targets": ("q_proj", "down_proj")}), seed=0)
    shaken(plain).decoder = None
    assert torch.allclose(logps(model), logps(plain), atol=1e-5)
    with pytest.raises(ModelError, match="lora_targets"):
        tiny_language_model().make_trainable(LORA.model_copy(update={"lora_targets": ("query",)}), seed=0)


def test_the_seed_decides_the_adapters_alone() -> None:
    """Reproducible from a seed, whatever the global state."""
    first, second, third = (tiny_language_model() for _ in range(3))
    torch.manual_seed(1)
    first.make_trainable(LORA, seed=5)
    torch.manual_seed(2)
    second.make_trainable(LORA, seed=5)
    third.make_trainable(LORA, seed=6)
    assert all(torch.equal(p, q) for p, q in zip(first.trainable(), second.trainable(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(first.trainable(), third.trainable(), strict=True))


def test_saved_and_loaded_it_scores_the_same_and_holds_no_base_weights(base: Path, tmp_path: Path) -> None:
    """W3: a version can be rebuilt from its folder. Adapter only for LoRA, with template and tokenizer."""
    model = shaken(opened(base, trainable=True))
    model.save(tmp_path / "v1", parent="v0")
    again = opened(tmp_path / "v1")
    assert torch.equal(logps(again), logps(model))
    assert again.template.hash == model.template.hash
    assert not (tmp_path / "v1" / "model.safetensors").exists()
    notes = json.loads((tmp_path / "v1" / "thumbwheel.json").read_text())
    assert notes["parent"] == "v0"
    assert notes["template_hash"] == model.template.hash
    assert Path(notes["base"]) == base.resolve()


@pytest.mark.parametrize("r", [2, 4, 7])
def test_a_continued_version_has_its_parent_as_reference(r: int, base: Path, tmp_path: Path) -> None:
    """Training goes on from a version, and the reference is that version, whatever rank is asked for next."""
    shaken(opened(base, trainable=True)).save(tmp_path / "v1")
    parent = logps(opened(tmp_path / "v1"))
    model = opened(tmp_path / "v1", trainable=True, lora_r=r)
    assert torch.allclose(logps(model), parent, atol=1e-6)
    assert {a.a.shape[0] for _, a in adapters_of(model.network)} == {max(r, 4)}
    shaken(model, seed=1)
    with model.reference():
        assert torch.allclose(logps(model), parent, atol=1e-6)
    model.save(tmp_path / "v2")
    assert torch.allclose(logps(opened(tmp_path / "v2")), logps(model), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft's call, not ours
def test_peft_reads_what_we_write(base: Path, tmp_path: Path) -> None:
    """The saved format stays peft's."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = shaken(opened(base, trainable=True))
    model.save(tmp_path / "v1")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "v1")
    ids = torch.tensor([[257, 1, 2, 3, 4, 258]])
    logp = torch.log_softmax(theirs(ids).logits[0], -1)
    want = sum(float(logp[t - 1, ids[0, t]].detach()) for t in (3, 4, 5))
    assert float(logps(model)[0]) == pytest.approx(want, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft's call, not ours
def test_we_read_what_peft_writes(base: Path, tmp_path: Path) -> None:
    """An adapter from elsewhere is a version to start from."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    theirs.save_pretrained(tmp_path / "foreign")
    opened(base).tokenizer.save_pretrained(tmp_path / "foreign")
    logp = torch.log_softmax(theirs(torch.tensor([[257, 1, 2, 5, 258]])).logits[0], -1)
    want = float((logp[2, 5] + logp[3, 258]).detach())
    assert float(logps(opened(tmp_path / "foreign"))[1]) == pytest.approx(want, abs=1e-4)


def test_merged_it_is_a_whole_model_that_scores_the_same(base: Path, tmp_path: Path) -> None:
    """For other engines, and for training all weights on top."""
    model = shaken(opened(base, trainable=True))
    before = logps(model)
    model.merge_adapters()
    assert not model.adapted()
    assert torch.allclose(logps(model), before, atol=1e-4)
    model.save(tmp_path / "whole")
    assert torch.allclose(logps(opened(tmp_path / "whole")), before, atol=1e-4)


def test_an_adapter_on_changed_base_weights_is_refused(base: Path, tmp_path: Path) -> None:
    """Pitfalls: nothing is served on other weights than it was trained on."""
    shaken(opened(base, trainable=True)).save(tmp_path / "v1")
    tiny_language_model(seed=1).save(base)
    with pytest.raises(ModelError, match="other weights"):
        opened(tmp_path / "v1")


def test_all_weights_cannot_learn_on_top_of_an_adapter(base: Path, tmp_path: Path) -> None:
    """Said, not guessed."""
    shaken(opened(base, trainable=True)).save(tmp_path / "v1")
    with pytest.raises(ModelError, match="merge"):
        opened(tmp_path / "v1", trainable=True, adapter="full")


def test_an_adapter_without_a_known_base_cannot_be_saved(tmp_path: Path) -> None:
    """A folder nobody could load is not written."""
    model = tiny_language_model()
    model.make_trainable(LORA, seed=0)
    with pytest.raises(ModelError, match="base"):
        model.save(tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["cut", "gone", "json", "kind", "shape"])
def test_a_broken_adapter_folder_is_a_clear_error(harm: str, base: Path, tmp_path: Path) -> None:
    """Bad input: an unreadable checkpoint."""
    from safetensors.torch import load_file, save_file

    shaken(opened(base, trainable=True)).save(tmp_path / "v1")
    weights, config = tmp_path / "v1" / "adapter_model.safetensors", tmp_path / "v1" / "adapter_config.json"
    if harm == "cut":
        weights.write_bytes(weights.read_bytes()[:-40])
    elif harm == "gone":
        weights.unlink()
    elif harm == "json":
        config.write_text(config.read_text()[:-30])
    elif harm == "kind":
        config.write_text(json.dumps({**json.loads(config.read_text()), "use_dora": True}))
    else:
        tensors = load_file(weights)
        tensors[min(tensors)] = torch.zeros(1, 1)
        save_file(tensors, weights)
    with pytest.raises(ModelError if harm == "kind" else CheckpointError, match="v1"):
        opened(tmp_path / "v1")


def test_full_training_refuses_a_reference_it_no_longer_has() -> None:
    """P2: there the reference is computed before the first step."""
    model = tiny_language_model()
    with model.reference():  # nothing learns yet: the model is its own reference
        assert np.isfinite(logps(model).numpy()).all()
    model.make_trainable(ModelSettings(adapter="full"), seed=0)
    with pytest.raises(ModelError, match="reference_logps"), model.reference():
        pass
