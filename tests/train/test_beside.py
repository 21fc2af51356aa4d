"""P3: texts of the auxiliary language-model loss, from a file to token rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from thumbwheel.config import OnlineSettings
from thumbwheel.errors import DataError, NotFound
from thumbwheel.models.language import LanguageModel
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.beside import texts_of


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_language_model()


def settings(path: Path | None) -> OnlineSettings:
    return OnlineSettings(lm_weight=0.5, lm_texts=None if path is None else str(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "the sea is wide\n\n  a second text \n"),
        ("a.jsonl", '{"text": "the sea is wide", "id": 1}\n{"text": "a second text"}\n'),
        ("a.jsonl.gz", '{"text": "the sea is wide"}\n\n{"text": "a second text"}\n'),
    ],
)
def test_every_text_is_learned_from_its_second_token_on(
    name: str, content: str, model: LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    rows = texts_of(settings(path), model, max_tokens=100)
    for row, text in zip(rows, ["the sea is wide", "a second text"], strict=True):
        assert not row.trained[0]
        assert row.trained[1:].all()
        assert model.tokenizer.decode(row.ids, skip_special_tokens=True).strip() == text


def test_a_long_text_is_cut(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the sea " * 50, encoding="utf-8")
    (row,) = texts_of(settings(tmp_path / "a.txt"), model, max_tokens=7)
    assert len(row) == 7


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"\n \n", "holds no text"),
        ("a.jsonl", b'{"text": "good"}\n{"words": "bad"}\n', "Line 2"),
        ("a.jsonl", b"[]\n", "Line 1"),
        ("a.jsonl", b'{"text": 3}\n', "Line 1"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read as UTF-8"),
        ("a.txt.gz", b"no gzip", "cannot be read"),
    ],
)
def test_what_is_no_text_is_told(name: str, content: bytes, said: str, model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        texts_of(settings(tmp_path / name), model, max_tokens=100)


def test_a_weight_without_texts_and_a_file_that_is_not_there(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"online\.lm_texts"):
        texts_of(settings(None), model, max_tokens=100)
    with pytest.raises(NotFound, match="no file"):
        texts_of(settings(tmp_path / "none.txt"), model, max_tokens=100)
