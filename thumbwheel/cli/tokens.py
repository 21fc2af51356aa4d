"""`thumbwheel inspect`: a row as the trainers see it, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from thumbwheel.cli.app import out
from thumbwheel.cli.rows import rows_of
from thumbwheel.config import ModelSettings, Settings
from thumbwheel.errors import DataError, explain
from thumbwheel.models import sources
from thumbwheel.models.inspect import rendered, summary, token_views
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import Demonstration, Labelled, Preference
from thumbwheel.train.rows import Lengths, demonstration_rows, fitted, labelled_rows, preference_rows

if TYPE_CHECKING:
    from thumbwheel.batches import TokenRow

LEGEND = Text.assemble(
    ("trained", "bold black on green"), (" not trained", "dim"), "; a dot ends a token, ⏎ is a line end"
)


def show(file: Path, settings: Settings, *, row: int, view: str) -> None:
    """Print every token of the answers of row `row` (from 1), cut as `model.overlong` says. Raises DataError."""
    rows = rows_of(file, view, settings)
    if not 1 <= row <= len(rows):
        raise DataError(explain("There is no such row.", allowed=f"1 to {len(rows)}", got=row))
    template = template_of(settings.model)
    lengths = Lengths(settings.model.max_length, settings.model.overlong)
    answers, cut = fitted(_token_rows(template, rows[row - 1], f"row {row}", view), lengths, f"Row {row}")
    out.print(LEGEND)
    for name, answer in zip(("chosen", "rejected") if len(answers) == 2 else ("response",), answers, strict=True):
        out.print(f"\n[bold]{name}[/] of row {row}: {summary(answer)}" + (", after a cut" if cut else ""))
        out.print(rendered(token_views(answer, template.tokenizer)))


def template_of(settings: ModelSettings) -> ChatTemplate:
    """The chat template that a model is trained with, read without its weights. Raises ModelError."""
    return ChatTemplate(sources.read_tokenizer(sources.find(settings.tokenizer or settings.path), settings))


def _token_rows(template: ChatTemplate, record: object, name: str, view: str) -> tuple[TokenRow, ...]:
    match record:
        case Preference():
            return preference_rows(template, record, name)
        case Demonstration():
            return demonstration_rows(template, record, name)
        case Labelled():
            return labelled_rows(template, record, name)
    raise DataError(explain("No trainer reads this view.", allowed="preferences, demonstrations or labelled", got=view))
