"""Group commit: one thread per process collects queued writes and commits them in one transaction.

While one group is on its way to the disk the next one gathers, so the number of disk syncs falls as the load rises and
a lone writer waits for nobody. A future resolves only after its commit has returned.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from thumbwheel.errors import StoreError
from thumbwheel.stores.base import Receipt
from thumbwheel.stores.failures import is_busy, told
from thumbwheel.stores.ingest import Batch, apply

T = TypeVar("T")
GROUP_ROWS = 5000  # a group closes at this many rows


@dataclass
class _Ingest:
    batch: Batch
    future: Future[Receipt] = field(default_factory=Future)


@dataclass
class _Call(Generic[T]):
    run: Callable[[Connection], T]
    in_transaction: bool
    future: Future[T] = field(default_factory=Future)


_Job = _Ingest | _Call[Any]


class Writer:
    """The one writing thread of this process. `where` names the store in error messages."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="thumbwheel-writer", daemon=True)
        self._thread.start()

    def ingest(self, batch: Batch) -> Future[Receipt]:
        """Queue rows. The future resolves after the commit, or raises StoreError."""
        job = _Ingest(batch)
        self._put(job)
        return job.future

    def call(self, run: Callable[[Connection], T]) -> T:
        """Run `run` in a transaction of its own and wait. What it raises undoes the transaction and is raised here."""
        return self._called(_Call(run, in_transaction=True))

    def outside_transaction(self, run: Callable[[Connection], T]) -> T:
        """As `call`, in autocommit, for statements that no transaction may hold (VACUUM)."""
        return self._called(_Call(run, in_transaction=False))

    def close(self) -> None:
        """Write what was queued before, then stop. Further writes raise StoreError."""
        with self._gate:
            first, self._closed = not self._closed, True
            if first:
                self._queue.put(None)
        if self._pid == os.getpid():
            self._thread.join()
            self._engine.dispose()

    def _called(self, job: _Call[T]) -> T:
        self._put(job)
        return job.future.result()

    def _put(self, job: _Job) -> None:
        if self._pid != os.getpid():
            raise StoreError(
                f"The store '{self._where}' was opened before this process was forked. Open it again in each process."
            )
        with self._gate:
            if self._closed:
                raise StoreError(f"The store '{self._where}' is closed. Open it again with open_store.")
            self._queue.put(job)

    def _loop(self) -> None:
        going = True
        while going:
            jobs, going = self._gather()
            group: list[_Ingest] = []
            for job in jobs:
                if not job.future.set_running_or_notify_cancel():
                    continue  # cancelled while queued: not written, and nobody was told that it was
                if isinstance(job, _Ingest):
                    group.append(job)
                else:
                    self._commit(group)
                    group = []
                    self._run(job)
            self._commit(group)

    def _gather(self) -> tuple[list[_Job], bool]:
        """Everything that is queued now, at least one job; and whether to go on."""
        jobs: list[_Job] = []
        rows = 0
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            rows += len(job.batch.rows) if isinstance(job, _Ingest) else GROUP_ROWS
            if rows >= GROUP_ROWS:
                return jobs, True
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs, True
        return jobs, False

    def _commit(self, group: Sequence[_Ingest]) -> None:
        if not group:
            return
        try:
            with self._engine.begin() as connection:
                receipts = apply(connection, [job.batch for job in group])
        except BaseException as error:  # whatever it is, somebody waits for the future
            self._reset()
            if len(group) > 1 and not is_busy(error):
                for job in group:  # alone, so that a bad write fails by itself and its neighbours are kept
                    self._commit([job])
                return
            failure = told(error, self._where) if isinstance(error, SQLAlchemyError) else error
            for job in group:
                job.future.set_exception(failure)
            return
        for job, receipt in zip(group, receipts, strict=True):
            job.future.set_result(receipt)

    def _run(self, job: _Call[T]) -> None:
        try:
            if job.in_transaction:
                with self._engine.begin() as connection:
                    result = job.run(connection)
            else:
                with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    result = job.run(connection)
        except SQLAlchemyError as error:
            self._reset()
            job.future.set_exception(told(error, self._where))
        except BaseException as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _reset(self) -> None:
        """Forget the connection after a failure: the next write starts from a clean one."""
        self._engine.dispose()
