"""Records to token rows, fitted to the length allowed (pitfall: overlong answers are never taught as complete)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from made_rows import demonstration, pair, said

from thumbwheel.batches import token_row
from thumbwheel.errors import DataError
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.testing.models import tiny_language_model, tiny_tokenizer
from thumbwheel.train.rows import Lengths, RowTooLong, demonstration_rows, encode, fitted, preference_rows, within


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(tiny_tokenizer())


def encoded(template: ChatTemplate, records: list[Any], rows_of: Any, share: float = 1.0, **lengths: Any) -> Any:
    return encode(
        records, template, rows_of, noun="pair", lengths=Lengths(**lengths), max_unusable_share=share,
        is_tie=lambda record: getattr(record, "tie", False),
    )  # fmt: skip


def test_short_rows_stay_as_they_are() -> None:
    rows = (token_row([1, 2], [3]),)
    assert fitted(rows, Lengths(3), "row 0") == (rows, False)


def test_keep_start_cuts_the_answers_end() -> None:
    (row,), cut = fitted((token_row([1, 2], [3, 4, 5]),), Lengths(4, "keep_start"), "row 0")
    assert cut
    assert row.ids.tolist() == [1, 2, 3, 4]
    assert row.trained.tolist() == [False, False, True, True]
    assert row.shared == 2


def test_keep_end_cuts_the_prompts_start_alike_for_both_answers() -> None:
    (a, b), cut = fitted((token_row([1, 2, 3], [4, 5, 6]), token_row([1, 2, 3], [7])), Lengths(5, "keep_end"), "row 0")
    assert cut
    assert a.ids.tolist() == [2, 3, 4, 5, 6]
    assert b.ids.tolist() == [2, 3, 7]
    assert (a.shared, b.shared) == (2, 2)
    assert a.trained.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("row", "overlong", "why"),
    [
        (token_row([1, 2], [3, 4, 5]), "drop", "longer than 4 tokens"),
        (token_row([1, 2, 3, 4], [5]), "keep_start", "prompt alone"),
        (token_row([1], [2, 3, 4, 5]), "keep_end", "answer alone"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_its_reason(row: Any, overlong: Any, why: str) -> None:
    with pytest.raises(RowTooLong) as refused:
        fitted((row,), Lengths(4, overlong), "row 7")
    assert why in refused.value.reason
    assert "row 7" in str(refused.value)


def test_chosen_equal_to_rejected_is_refused_with_a_count(template: ChatTemplate) -> None:
    """Pitfall: chosen = rejected is refused with a count."""
    done = encoded(template, [pair("q", "same", "same"), pair("q", "yes", "no")], preference_rows)
    assert (done.account.read, done.account.kept, done.account.dropped.total()) == (2, 1, 1)


def test_a_bad_row_is_named_by_its_feedback(template: ChatTemplate, caplog: pytest.LogCaptureFixture) -> None:
    rows = [pair("q", "yes", "no"), pair("q", "same", "same", feedback_ids=("f-12",))]
    with caplog.at_level(logging.WARNING, logger="thumbwheel.train"):
        encoded(template, rows, preference_rows)
    assert "pair 1 (feedback f-12)" in caplog.text


def test_too_many_bad_rows_are_an_error_that_names_the_first(template: ChatTemplate) -> None:
    rows = [pair("q", "same", "same"), pair("q", "yes", "no")]
    with pytest.raises(DataError, match=r"pair 0.*at most 40%. Got: 50%"):
        encoded(template, rows, preference_rows, share=0.4)


def test_ties_are_counted(template: ChatTemplate) -> None:
    done = encoded(template, [pair("q", "a", "b", tie=True, p=0.5), pair("q", "a", "c")], preference_rows)
    assert done.account.ties == 1


def test_sampled_ids_are_trained_on_where_the_tokenizer_is_the_same(template: ChatTemplate) -> None:
    """Pitfall: an answer whose text re-tokenises differently: training uses the sampled ids."""
    record = pair("q", "yes", "no", chosen_token_ids=(10, 11, 12), tokenizer=template.tokenizer_hash)
    ((chosen, rejected),) = [row.rows for row in encoded(template, [record], preference_rows).rows]
    assert chosen.ids[chosen.shared :].tolist() == [10, 11, 12]
    assert rejected.ids[rejected.shared :].tolist() == [*template.tokenizer("no")["input_ids"], template.end_id]


def test_the_answer_and_its_end_are_trained_and_nothing_else(template: ChatTemplate) -> None:
    """Pitfall: prompt `2+2=`, answer `4`."""
    (row,) = demonstration_rows(template, demonstration("2+2=", "4"), "demonstration 0")
    assert row.ids[row.trained].tolist() == [*template.tokenizer("4")["input_ids"], template.end_id]
    assert said("4").content == "4"


def test_a_model_is_never_given_positions_it_does_not_know() -> None:
    model = tiny_language_model()
    assert within(Lengths(2000, "keep_end"), model) == Lengths(512, "keep_end")
    assert within(Lengths(40), model) == Lengths(40)
