"""Token rows and packed batches: what trainers feed to models. No padding exists here; a mask is True where it counts.

Axes: N packed token, M trained token, R row (one answer), T token of one row.

A batch is one line of N tokens cut into segments. A row is a chain of at most two segments: the prompt it shares with
other rows (a pair, a group) and its own answer. A prompt is stored once, however many answers hang on it:

    ids        p p p p | a a a | b b          two answers a, b to one prompt p
    positions  0 1 2 3 | 4 5 6 | 4 5          an answer goes on counting where its prompt ended
    segments   prompt    child   child        a child sees its parent's tokens and its own earlier ones, nothing else
    source     3 4 5 | 3 4                    position whose hidden state predicts the trained token …
    target     a a a | b b                    … and that token's id
    row        0 0 0 | 1 1                    … and whose answer it belongs to
    last       6, 8                           last token of each row: where a reward is read
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thumbwheel.errors import DataError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class TokenRow:
    """One rendered row.

    ids      (T,) token ids, prompt and answer together, no padding
    trained  (T,) True where the token is a training target; position 0 never is
    shared   leading tokens that other rows may share (the prompt); the tokens after it are this row's own
    """

    ids: Ints
    trained: Bools
    shared: int

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.shape != self.trained.shape:
            raise DataError(
                f"A row needs ids and trained of one shape (T,). Got {self.ids.shape} and {self.trained.shape}."
            )
        if len(self.ids) == 0:
            raise DataError("A row needs at least one token.")
        if self.trained[0]:
            raise DataError("The first token of a row cannot be trained: nothing comes before it to predict it.")
        if not 0 <= self.shared <= len(self.ids):
            raise DataError(f"'shared' must lie in [0, {len(self.ids)}]. Got {self.shared}.")

    def __len__(self) -> int:
        return len(self.ids)


def token_row(prompt: Sequence[int], response: Sequence[int]) -> TokenRow:
    """A row whose response tokens are all trained and whose prompt is shared. Raises DataError on an empty prompt."""
    if not len(prompt):
        raise DataError("A row needs a prompt of at least one token (a BOS or the template's opening).")
    ids = np.concatenate([np.asarray(prompt, dtype=np.int64), np.asarray(response, dtype=np.int64)])
    trained = np.zeros(len(ids), dtype=np.bool_)
    trained[len(prompt) :] = True
    return TokenRow(ids=ids, trained=trained, shared=len(prompt))


@dataclass(frozen=True)
class Segment:
    """Tokens start:stop of a packed line. `parent` is the index of the segment that comes before it, or None."""

    start: int
    stop: int
    parent: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PackedBatch:
    """Rows in one line of tokens; see the module's picture.

    ids (N,) int64 · positions (N,) int64 · segments · source (M,) int64 in [0, N) · target (M,) int64 · row (M,) int64 in
    [0, R), ascending · last (R,) int64 in [0, N).
    """

    ids: Ints
    positions: Ints
    segments: tuple[Segment, ...]
    source: Ints
    target: Ints
    row: Ints
    last: Ints

    @property
    def n_tokens(self) -> int:
        """N: tokens that a forward pass computes."""
        return len(self.ids)

    @property
    def n_trained(self) -> int:
        """M: tokens that carry loss."""
        return len(self.target)

    @property
    def n_rows(self) -> int:
        """R."""
        return len(self.last)


def _prompt_key(row: TokenRow) -> bytes | None:
    return row.ids[: row.shared].tobytes() if 0 < row.shared < len(row) else None


def packed_tokens(rows: Iterable[TokenRow]) -> int:
    """Tokens that `pack(rows)` would hold: every distinct prompt once, every answer whole."""
    seen: set[bytes] = set()
    total = 0
    for row in rows:
        key = _prompt_key(row)
        total += len(row)
        if key is not None and key in seen:
            total -= row.shared
        elif key is not None:
            seen.add(key)
    return total


def pack(rows: Sequence[TokenRow]) -> PackedBatch:
    """One batch of all rows, in their order. Rows whose prompts are equal id for id share the prompt's tokens."""
    if not rows:
        raise DataError("A batch needs at least one row.")
    ids: list[Ints] = []
    positions: list[Ints] = []
    segments: list[Segment] = []
    source: list[Ints] = []
    target: list[Ints] = []
    row_of: list[Ints] = []
    last: list[int] = []
    prompts: dict[bytes, int] = {}
    length = 0

    def append(tokens: Ints, first_position: int, parent: int | None) -> int:
        nonlocal length
        ids.append(tokens)
        positions.append(np.arange(first_position, first_position + len(tokens), dtype=np.int64))
        segments.append(Segment(length, length + len(tokens), parent))
        length += len(tokens)
        return len(segments) - 1

    for index, row in enumerate(rows):
        key = _prompt_key(row)
        if key is None:
            own = segments[append(row.ids, 0, None)]
            place = np.arange(own.start, own.stop, dtype=np.int64)
        else:
            if key not in prompts:
                prompts[key] = append(row.ids[: row.shared], 0, None)
            prompt = segments[prompts[key]]
            own = segments[append(row.ids[row.shared :], row.shared, prompts[key])]
            place = np.concatenate(
                [np.arange(prompt.start, prompt.stop), np.arange(own.start, own.stop)], dtype=np.int64
            )
        trained = np.flatnonzero(row.trained)
        source.append(place[trained - 1])
        target.append(row.ids[trained])
        row_of.append(np.full(len(trained), index, dtype=np.int64))
        last.append(int(place[-1]))
    return PackedBatch(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        segments=tuple(segments),
        source=np.concatenate(source),
        target=np.concatenate(target),
        row=np.concatenate(row_of),
        last=np.asarray(last, dtype=np.int64),
    )


def micro_batches(groups: Sequence[Sequence[TokenRow]], *, max_tokens: int) -> list[list[int]]:
    """Indices of groups, cut into micro-batches of at most `max_tokens` packed tokens each.

    A group (a pair, all answers of a prompt) is never split, since its loss needs all of it; a group over the budget goes
    alone. Groups of like size sit together and the largest come first, so that memory peaks at the first micro-batch.
    """
    cost = [packed_tokens(group) for group in groups]
    order = sorted(range(len(groups)), key=lambda index: -cost[index])
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        place = next((b for b, free in enumerate(room) if cost[index] <= free), None)
        if place is None:
            bins.append([index])
            room.append(max_tokens - cost[index])
        else:
            bins[place].append(index)
            room[place] -= cost[index]
    return bins
