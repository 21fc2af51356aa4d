"""Rows as people can check them: every token with its text, trained or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thumbwheel.batches import TokenRow

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class TokenView:
    """One token: its place, id, the text it stands for, and whether it is a training target."""

    place: int
    id: int
    text: str
    trained: bool


def token_views(row: TokenRow, tokenizer: Any) -> list[TokenView]:
    """The row's tokens in order. Control tokens are shown by their names; pieces of a character by their byte values."""
    return [
        TokenView(place, int(token), _text(int(token), tokenizer), bool(trained))
        for place, (token, trained) in enumerate(zip(row.ids, row.trained, strict=True))
    ]


def _text(token: int, tokenizer: Any) -> str:
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    return text if "\ufffd" not in text else str(tokenizer.convert_ids_to_tokens(token))


def summary(row: TokenRow) -> str:
    """One line of figures, such as "31 tokens: 23 of the prompt, 8 after it, 8 trained"."""
    return f"{len(row)} tokens: {row.shared} of the prompt, {len(row) - row.shared} after it, {int(row.trained.sum())} trained"


def rendered(views: Sequence[TokenView]) -> Text:
    """The row for a terminal: trained tokens on green, the others dim, line ends visible, token borders at the dots."""
    from rich.text import Text

    out = Text()
    for view in views:
        shown = view.text.replace("\n", "⏎\n")
        out.append(shown, style="bold black on green" if view.trained else "dim")
        out.append("·", style="dim")
    return out
