"""Reading streams: memory stays flat, however much is stored."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_step, a_thumb


def peak(stream: Iterable[object]) -> tuple[int, int]:
    """(items, highest number of bytes in use while they went by)."""
    tracemalloc.start()
    n = sum(1 for _ in stream)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return n, highest


def test_memory_stays_flat(tmp_path: Path) -> None:
    """S2, pitfall: an export of 50 000 items ran out of memory. Three times the rows need no more of it."""
    highest: list[list[int]] = []
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        for start in (0, 600, 1200):
            numbers = range(start, start + 600)
            store.add_steps([a_step(f"s{n}", episode=f"e{n}", task=f"t{n}", text="x" * 5000) for n in numbers])
            store.add_feedback([a_thumb(f"f{n}", step=f"s{n}", comment="y" * 5000) for n in numbers], now=NOON)
            found = [peak(stream) for stream in (store.steps(), store.all_feedback(), store.episodes())]
            assert [n for n, _ in found] == [start + 600] * 3
            highest.append([most for _, most in found])
    for first, last in zip(highest[0], highest[-1], strict=True):
        assert last < 1.3 * first


def test_a_stream_that_is_left_early_leaves_the_store_usable(tmp_path: Path) -> None:
    """S2: more open streams than connections, none of which holds one."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step(f"s{n}", episode=f"e{n}") for n in range(210)])
        streams = [store.episodes() for _ in range(40)]
        assert {next(stream).id for stream in streams} == {"e0"}
        store.add_steps([a_step("late", episode="late")])
        assert [episode.id for episode in streams[0]][-1] == "late"
