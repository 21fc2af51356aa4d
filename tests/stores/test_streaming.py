"""Reading streams: memory stays flat, however much is stored."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_step, a_thumb

MEGABYTE = 2**20


def peak(stream: Iterable[object]) -> tuple[int, int]:
    """(items, highest number of bytes in use while they went by)."""
    tracemalloc.start()
    n = sum(1 for _ in stream)
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return n, highest


def test_memory_stays_flat(tmp_path: Path) -> None:
    """S2, pitfall: an export of 50 000 items ran out of memory. Here 15 MB of text in each table."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        for start in range(0, 1500, 500):
            numbers = range(start, start + 500)
            store.add_steps([a_step(f"s{n}", episode=f"e{n}", task=f"t{n}", text="x" * 10_000) for n in numbers])
            store.add_feedback([a_thumb(f"f{n}", step=f"s{n}", comment="y" * 10_000) for n in numbers], now=NOON)
        for stream in (store.steps(), store.all_feedback(), store.episodes()):
            n, highest = peak(stream)
            assert n == 1500
            assert highest < 8 * MEGABYTE, highest


def test_a_stream_that_is_left_early_leaves_the_store_usable(tmp_path: Path) -> None:
    """S2: more open streams than connections, none of which holds one."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step(f"s{n}", episode=f"e{n}") for n in range(210)])
        streams = [store.episodes() for _ in range(40)]
        assert {next(stream).id for stream in streams} == {"e0"}
        store.add_steps([a_step("late", episode="late")])
        assert [episode.id for episode in streams[0]][-1] == "late"
