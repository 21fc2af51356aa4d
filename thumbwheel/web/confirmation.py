"""Awaiting the store's writer thread.

A group commit resolves many futures at once. `asyncio.wrap_future` would wake the event loop once for each of them, and each
wake-up hands the interpreter from thread to thread; here a whole group wakes it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class Confirmations:
    """Carries results of futures that other threads resolve into one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resolved: deque[tuple[Future[object], asyncio.Future[object]]] = deque()
        self._woken = False

    async def of(self, future: Future[T]) -> T:
        """The future's result, or its exception. Cancelling the wait leaves the future alone: others share its group."""
        waiter: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(lambda done: self._arrived(done, waiter))
        return await waiter

    def _arrived(self, done: Future[T], waiter: asyncio.Future[T]) -> None:
        """In the thread that resolved it."""
        self._resolved.append((done, waiter))  # type: ignore[arg-type]
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._resolved.clear()

    def _deliver(self) -> None:
        """In the loop. What arrives after the flag falls wakes it again, so nothing is left behind."""
        self._woken = False
        while self._resolved:
            done, waiter = self._resolved.popleft()
            if waiter.done():  # cancelled: the client hung up or the wait was too long
                continue
            if done.cancelled():
                waiter.cancel()
            elif (error := done.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(done.result())


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Confirmations] = WeakKeyDictionary()


async def confirmed(future: Future[T], *, within_s: float) -> T:
    """The result of a future that another thread resolves. Raises TimeoutError, or what the future raises."""
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = Confirmations(loop)
    async with asyncio.timeout(within_s):
        return await found.of(future)
