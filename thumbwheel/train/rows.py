"""From records to units: rendered, tokenised, fitted to the length allowed, with an account of what was left out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from thumbwheel.batches import TokenRow
from thumbwheel.errors import DataError, explain
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import Demonstration, Id, Labelled, Preference
from thumbwheel.signals.accounts import Account, Accounted

log = logging.getLogger("thumbwheel.train")
Overlong = Literal["drop", "keep_start", "keep_end"]
SHOWN = 3


class HasFeedback(Protocol):
    """Any training record: it knows the feedback it was made from."""

    @property
    def feedback_ids(self) -> tuple[Id, ...]: ...


R = TypeVar("R", bound=HasFeedback)


@dataclass(frozen=True)
class Lengths:
    """How long a row may be, in tokens of prompt and answer together, and what becomes of a longer one.

    drop        the record is left out
    keep_start  the answer loses its end (it then has no end token: nobody is taught that it was complete)
    keep_end    the prompt loses its beginning, by the same number of tokens for all answers of the record
    """

    max_tokens: int = 1024
    overlong: Overlong = "drop"


def within(lengths: Lengths | None, model: LanguageModel) -> Lengths:
    """The lengths asked for (the defaults where none are), held to the positions that the model knows."""
    lengths = lengths or Lengths()
    known = getattr(model.config, "max_position_embeddings", None) or lengths.max_tokens
    return replace(lengths, max_tokens=min(lengths.max_tokens, known))


@dataclass(frozen=True)
class Encoded(Generic[R]):
    """A record's token rows, and what to call it."""

    name: str
    record: R
    rows: tuple[TokenRow, ...]


def preference_rows(template: ChatTemplate, record: Preference, name: str) -> tuple[TokenRow, ...]:
    """(chosen, rejected). Raises DataError where both are the same tokens, or the template changes one of them."""
    chosen, rejected = (
        template.encode(record.prompt, answer, token_ids=ids, tokenizer=record.tokenizer, name=name)
        for answer, ids in (
            (record.chosen, record.chosen_token_ids),
            (record.rejected, record.rejected_token_ids),
        )
    )
    if np.array_equal(chosen.ids, rejected.ids):
        raise DataError(f"The chosen and the rejected answer of {name} are the same tokens.")
    return chosen, rejected


def labelled_rows(template: ChatTemplate, record: Labelled, name: str) -> tuple[TokenRow, ...]:
    """(answer,). Raises DataError where the template changes it."""
    ids, tokenizer = record.token_ids, record.tokenizer
    return (template.encode(record.prompt, record.response, token_ids=ids, tokenizer=tokenizer, name=name),)


def demonstration_rows(template: ChatTemplate, record: Demonstration, name: str) -> tuple[TokenRow, ...]:
    """(answer,). Raises DataError where the template changes it."""
    return (template.encode(record.prompt, record.response, name=name),)


def encode(
    records: Sequence[R],
    template: ChatTemplate,
    rows_of: Callable[[ChatTemplate, R, str], tuple[TokenRow, ...]],
    *,
    noun: str,
    lengths: Lengths,
    max_unusable_share: float,
    is_tie: Callable[[R], bool] = lambda record: False,
) -> Accounted[Encoded[R]]:
    """Every record that can be used, in order. Raises DataError, naming rows, where more than the share cannot."""
    kept: list[Encoded[R]] = []
    dropped: Counter[str] = Counter()
    said: list[str] = []
    cuts = 0
    for index, record in enumerate(records):
        source = f" (feedback {record.feedback_ids[0]})" if record.feedback_ids else ""
        name = f"{noun} {index}{source}"
        try:
            rows, cut = fitted(rows_of(template, record, name), lengths, name)
        except RowTooLong as error:
            dropped[error.reason] += 1
            said.append(str(error))
        except DataError as error:
            dropped["cannot be rendered exactly or says nothing"] += 1
            said.append(str(error))
        else:
            kept.append(Encoded(name, record, rows))
            cuts += cut
    for text in said[:SHOWN]:
        log.warning("left out: %s", text)
    account = Account(
        read=len(records), kept=len(kept), dropped=dropped, truncated=cuts,
        ties=sum(is_tie(encoded.record) for encoded in kept),
    )  # fmt: skip
    if records:
        log.info("%s rows: %s", noun, account.line())
    if account.dropped_share > max_unusable_share:
        raise DataError(
            explain(
                f"Too many rows cannot be used: {account.line()}. The first: {said[0]}",
                allowed=f"a share of at most {max_unusable_share:.0%}",
                got=f"{account.dropped_share:.0%}",
                next="Mend the data, or raise 'max_unusable_share'; for long rows see 'model.max_length' and 'model.overlong'.",
            )
        )
    return Accounted(kept, account)


class RowTooLong(DataError):
    """A row is over the length allowed and cannot be cut as asked."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def fitted(rows: tuple[TokenRow, ...], lengths: Lengths, name: str) -> tuple[tuple[TokenRow, ...], bool]:
    """Rows of at most the length allowed, and whether one was cut. Raises RowTooLong."""
    limit = lengths.max_tokens
    longest = max(len(row) for row in rows)
    if longest <= limit:
        return rows, False
    if lengths.overlong == "drop":
        raise RowTooLong(f"{name} has {longest} tokens; {limit} are allowed.", f"longer than {limit} tokens")
    if lengths.overlong == "keep_start":
        if min(row.shared for row in rows) >= limit:
            reason = f"prompt alone has {limit} tokens or more"
            raise RowTooLong(f"The prompt of {name} leaves no room for its answer within {limit} tokens.", reason)
        return tuple(TokenRow(row.ids[:limit], row.trained[:limit], row.shared) for row in rows), True
    surplus = longest - limit
    if min(row.shared for row in rows) <= surplus:
        reason = f"answer alone has {limit} tokens or more"
        raise RowTooLong(f"The answer of {name} leaves no room for its prompt within {limit} tokens.", reason)
    return tuple(TokenRow(row.ids[surplus:], row.trained[surplus:], row.shared - surplus) for row in rows), True
