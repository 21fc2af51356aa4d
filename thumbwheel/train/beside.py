"""Ordinary texts that a policy keeps on learning to write while it learns from rewards, against forgetting (Ouyang et al. 2022).

texts_of(settings.online, model, max_tokens=1024)      # of the file that 'online.lm_texts' names
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from thumbwheel.batches import TokenRow, token_row
from thumbwheel.config import OnlineSettings
from thumbwheel.errors import DataError, NotFound, explain
from thumbwheel.models.language import LanguageModel

log = logging.getLogger("thumbwheel.train")
COLUMN = "text"


def texts_of(settings: OnlineSettings, model: LanguageModel, *, max_tokens: int) -> list[TokenRow]:
    """The texts of `settings.lm_texts`, each to its first `max_tokens` tokens, all of them trained.

    A text begins with the tokenizer's BOS; without one its own first token is given and not trained.
    Raises NotFound for a missing file, DataError where none is named, for a line without text or a file without one.
    """
    if settings.lm_texts is None:
        raise DataError(
            "'online.lm_weight' is set, and there is no text for the language-model loss. Name a file of texts as "
            "'online.lm_texts', or set the weight to 0."
        )
    path = Path(settings.lm_texts)
    if not path.is_file():
        raise NotFound(f"There is no file '{path}', which 'online.lm_texts' names.")
    bos = model.tokenizer.bos_token_id
    begin = [] if bos is None else [int(bos)]
    rows, cut = [], 0
    for text in _lines(path):
        ids = [*begin, *model.tokenizer(text, add_special_tokens=False)["input_ids"]]
        cut += len(ids) > max_tokens
        if len(ids) > 1:
            rows.append(token_row(ids[:1], ids[1:max_tokens]))
    if not rows:
        raise DataError(
            f"'{path}' holds no text. Give a .txt with a text a line, or JSON lines with a column '{COLUMN}'."
        )
    log.info("texts beside: %d of %s%s", len(rows), path, f", {cut} of them cut to {max_tokens} tokens" if cut else "")
    return rows


def _lines(path: Path) -> Iterator[str]:
    """The texts of a file: JSON lines by their name, else a text a line; gzip by its name too."""
    json_lines = any(suffix in (".jsonl", ".json") for suffix in path.suffixes)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _text(line, path, number) if json_lines else line.strip()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read as UTF-8 text: {error}.") from error


def _text(line: str, path: Path, number: int) -> str:
    try:
        row = json.loads(line)
        text = row[COLUMN]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise DataError(
            explain(f"Line {number} of '{path}' is no text.", allowed=f'{{"{COLUMN}": "…"}}', got=line.strip()[:80])
        )
    return text
