"""`thumbwheel inspect`: a row as the trainers see it, token by token."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.cli.app import out
from thumbwheel.cli.rows import rows_of
from thumbwheel.config import Settings
from thumbwheel.errors import DataError, explain
from thumbwheel.models.inspect import render, tokens_of
from thumbwheel.models.language import load_template
from thumbwheel.records import Demonstration, Preference


def show(file: Path, settings: Settings, *, row: int, view: str) -> None:
    """Print every token of the answers of row `row` (from 1)."""
    rows = rows_of(file, view, settings)
    if not 1 <= row <= len(rows):
        raise DataError(explain("There is no such row.", allowed=f"1 to {len(rows)}", got=row))
    template = load_template(settings.model)
    one = rows[row - 1]
    answers = (
        {"chosen": (one.chosen, one.chosen_token_ids), "rejected": (one.rejected, one.rejected_token_ids)}
        if isinstance(one, Preference)
        else {"response": (one.response, None if isinstance(one, Demonstration) else one.token_ids)}
    )
    tokenizer = getattr(one, "tokenizer", None)
    for name, (answer, ids) in answers.items():
        encoded = template.encode(one.prompt, answer, token_ids=ids, tokenizer=tokenizer, name=f"row {row}")
        out.print(render(tokens_of(template, encoded), title=f"{name} of row {row}"))
