"""Packing: prompts stored once, targets predicted by the token before them, budgets kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.batches import TokenRow, micro_batches, pack, packed_tokens, token_row
from thumbwheel.errors import DataError


def test_two_answers_share_their_prompt() -> None:
    batch = pack([token_row([10, 11, 12, 13], [1, 2, 3]), token_row([10, 11, 12, 13], [4, 5])])
    assert batch.ids.tolist() == [10, 11, 12, 13, 1, 2, 3, 4, 5]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5]
    assert [(s.start, s.stop, s.parent) for s in batch.segments] == [(0, 4, None), (4, 7, 0), (7, 9, 0)]
    assert batch.source.tolist() == [3, 4, 5, 3, 7]
    assert batch.target.tolist() == [1, 2, 3, 4, 5]
    assert batch.row.tolist() == [0, 0, 0, 1, 1]
    assert batch.last.tolist() == [6, 8]


def test_other_prompts_are_not_shared_and_whole_rows_stand_alone() -> None:
    talk = TokenRow(ids=np.array([7, 8, 9, 6]), trained=np.array([False, True, False, True]), shared=0)
    batch = pack([token_row([1, 2], [3]), talk, token_row([1, 2, 5], [3])])
    assert batch.ids.tolist() == [1, 2, 3, 7, 8, 9, 6, 1, 2, 5, 3]
    assert batch.source.tolist() == [1, 3, 5, 9]
    assert batch.target.tolist() == [3, 8, 6, 3]
    assert batch.last.tolist() == [2, 6, 10]


def test_a_truncated_answer_may_have_no_trained_token() -> None:
    row = TokenRow(ids=np.array([1, 2, 3]), trained=np.zeros(3, dtype=np.bool_), shared=2)
    batch = pack([row])
    assert batch.n_trained == 0
    assert batch.last.tolist() == [2]


@pytest.mark.parametrize(
    ("ids", "trained", "shared"),
    [([], [], 0), ([1, 2], [True, False], 1), ([1, 2], [False], 1), ([1, 2], [False, True], 3)],
)
def test_malformed_rows_are_refused(ids: list[int], trained: list[bool], shared: int) -> None:
    with pytest.raises(DataError):
        TokenRow(ids=np.array(ids, dtype=np.int64), trained=np.array(trained, dtype=np.bool_), shared=shared)


rows = st.builds(
    token_row,
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), min_size=0, max_size=6),
)


@given(st.lists(rows, min_size=1, max_size=8))
def test_every_row_can_be_read_back(given_rows: list[TokenRow]) -> None:
    batch = pack(given_rows)
    assert batch.n_tokens == packed_tokens(given_rows)
    for index, row in enumerate(given_rows):
        assert batch.target[batch.row == index].tolist() == row.ids[row.trained].tolist()
        assert batch.ids[batch.last[index]] == row.ids[-1]
        before = batch.source[batch.row == index]
        assert batch.positions[before].tolist() == (np.flatnonzero(row.trained) - 1).tolist()
        assert batch.ids[before].tolist() == row.ids[np.flatnonzero(row.trained) - 1].tolist()


@given(st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=10), st.integers(1, 60))
def test_micro_batches_hold_every_group_once_within_budget(groups: list[list[TokenRow]], budget: int) -> None:
    parts = micro_batches(groups, max_tokens=budget)
    assert sorted(index for part in parts for index in part) == list(range(len(groups)))
    for part in parts:
        assert len(part) == 1 or packed_tokens([r for index in part for r in groups[index]]) <= budget
