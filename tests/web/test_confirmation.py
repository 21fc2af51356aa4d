"""Awaiting futures that another thread resolves, many at a time."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from thumbwheel.web.confirmation import Confirmations, confirmed


def test_a_group_wakes_the_loop_once():
    """200 futures resolved in a row by one thread: every waiter gets its own result, with one wake-up for them all."""

    async def go() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        wakes = 0
        wake = loop.call_soon_threadsafe

        def counted(*args, **kwargs):
            nonlocal wakes
            wakes += 1
            return wake(*args, **kwargs)

        loop.call_soon_threadsafe = counted
        futures = [Future() for _ in range(200)]
        waits = [asyncio.create_task(confirmed(future, within_s=30)) for future in futures]
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: [future.set_result(n) for n, future in enumerate(futures)])
        thread.start()
        thread.join()  # holds the loop, as a busy one would be
        return await asyncio.gather(*waits), wakes

    results, wakes = asyncio.run(go())
    assert results == list(range(200))
    assert wakes == 1


def test_many_threads_and_nothing_left_behind():
    async def go() -> list[int]:
        futures = [Future() for _ in range(400)]
        waits = [asyncio.create_task(confirmed(future, within_s=30)) for future in futures]
        await asyncio.sleep(0)

        def resolve(part: int) -> None:
            for n in range(part, 400, 8):
                futures[n].set_result(n)

        threads = [threading.Thread(target=resolve, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        return await asyncio.gather(*waits)

    assert asyncio.run(go()) == list(range(400))


def test_errors_time_outs_and_cancelled_futures_touch_nobody_else():
    async def go() -> None:
        good, bad, gone, never = Future(), Future(), Future(), Future()
        waits = [asyncio.create_task(confirmed(f, within_s=30)) for f in (gone, bad, good)]
        late = asyncio.create_task(confirmed(never, within_s=0.01))
        await asyncio.sleep(0)
        gone.cancel()
        bad.set_exception(OSError("disk"))
        good.set_result("kept")
        with pytest.raises(TimeoutError):
            await late
        assert not never.cancelled()
        never.set_result("too late")
        assert await waits[2] == "kept"
        with pytest.raises(OSError, match="disk"):
            await waits[1]
        with pytest.raises(asyncio.CancelledError):
            await waits[0]

    asyncio.run(go())


def test_already_resolved_and_after_the_loop_is_gone():
    done, late = Future(), Future()
    done.set_result(7)

    async def go() -> int:
        task = asyncio.create_task(confirmed(late, within_s=30))
        await asyncio.sleep(0)
        task.cancel()
        return await confirmed(done, within_s=1)

    assert asyncio.run(go()) == 7
    late.set_result(1)  # the loop is closed; this must not raise

    loop = asyncio.new_event_loop()
    confirmations = Confirmations(loop)
    loop.run_until_complete(asyncio.sleep(0))
    pending = Future()
    waiter = loop.create_task(confirmations.of(pending))
    loop.run_until_complete(asyncio.sleep(0))
    waiter.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    pending.set_result(1)
