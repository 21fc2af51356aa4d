"""The store on SQLite (one file, WAL) and PostgreSQL: `open_store`.

    with open_store("sqlite:///thumbwheel.db") as store:
        store.add_feedback([feedback], now=clock())   # returns when it is on disk
        for episode in store.episodes(): ...

Writes of all threads go through one writer thread (`writer`), so that many clients share a disk sync; reads use a pool of
connections and never wait for a writer. Several processes may open the same store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import URL, Connection, Select, Table, func, select

from thumbwheel.errors import ConflictError, NotFound, RecordError, StoreError
from thumbwheel.records import Episode, Feedback, Report, Step, Update
from thumbwheel.stores import engine, erasing, joining, lineage, migrate, tables, versions
from thumbwheel.stores.base import Erasure, PolicyVersion, Receipt
from thumbwheel.stores.failures import told_as_store_error
from thumbwheel.stores.ingest import prepare_feedback, prepare_steps
from thumbwheel.stores.writer import Writer

T = TypeVar("T")


def open_store(url: str, *, create: bool = True) -> SqlStore:
    """Open the store at an SQLAlchemy URL, and migrate it where its schema is behind.

    Raises SettingError for a URL that names no store, NotFound where `create=False` and there is no file, StoreError for
    a file that is damaged, locked, not writable, or written by a newer version.
    """
    parsed = engine.parsed(url)
    engine.prepare_file(parsed, create=create)
    return SqlStore(parsed)


class SqlStore:
    """Implements `thumbwheel.stores.base.Store`. Safe to use from several threads; open it anew after a fork."""

    def __init__(self, url: URL) -> None:
        self.url = url
        is_file = url.get_backend_name() == "sqlite"
        self.where = str(url.database) if is_file else url.render_as_string(hide_password=True)
        self._read_engine = engine.reading(url)
        write_engine = engine.writing(url)
        try:
            with told_as_store_error(self.where):
                migrate.bring_up_to_date(self._read_engine, write_engine, self.where)
        except BaseException:
            self._read_engine.dispose()
            write_engine.dispose()
            raise
        self._writer = Writer(write_engine, self.where)
        self._closed = False

    # Writing

    def submit_steps(self, steps: Sequence[Step]) -> Future[Receipt]:
        """Queue a durable write. The future resolves when it is on disk, or raises StoreError."""
        return self._writer.ingest(prepare_steps(steps))

    def submit_feedback(self, feedback: Sequence[Feedback], *, now: datetime) -> Future[Receipt]:
        """Queue a durable write; `received_at` becomes `now`. The future resolves when it is on disk."""
        return self._writer.ingest(prepare_feedback(feedback, now=now))

    def add_steps(self, steps: Sequence[Step]) -> Receipt:
        """Write and wait. Raises ConflictError for ids that came again with another payload; the rest is kept."""
        return _without_conflicts(self.submit_steps(steps).result())

    def add_feedback(self, feedback: Sequence[Feedback], *, now: datetime) -> Receipt:
        """Write and wait. Raises ConflictError as `add_steps`."""
        return _without_conflicts(self.submit_feedback(feedback, now=now).result())

    # Reading

    def step(self, id: str) -> Step | None:
        """The step of that id."""
        rows = self._rows(select(tables.steps.c.record).where(tables.steps.c.id == id))
        return joining.step_of(rows[0]) if rows else None

    def feedback(self, id: str) -> Feedback | None:
        """The feedback of that id, in force or not."""
        table = tables.feedback
        rows = self._rows(select(table.c.record, table.c.received_us).where(table.c.id == id))
        return joining.feedback_of(rows[0]) if rows else None

    def steps(self, *, after: str | None = None, limit: int | None = None) -> Iterator[Step]:
        """Steps in the order they were stored, streamed. Raises NotFound for an unknown `after`."""
        table = tables.steps
        query = select(table.c.seq, table.c.record)
        for rows in self._pages(query, table.c.seq, after=self._seq(table, after), limit=limit):
            yield from map(joining.step_of, rows)

    def all_feedback(self, *, after: str | None = None, limit: int | None = None) -> Iterator[Feedback]:
        """Every feedback, in order of arrival, streamed. Raises NotFound for an unknown `after`."""
        table = tables.feedback
        query = select(table.c.seq, table.c.record, table.c.received_us)
        for rows in self._pages(query, table.c.seq, after=self._seq(table, after), limit=limit):
            yield from map(joining.feedback_of, rows)

    def feedback_for(self, *, task_id: str | None = None, episode_id: str | None = None) -> list[Feedback]:
        """Feedback in force joined to the task or to the episode (with both: to either), in order of (at, id)."""
        if task_id is None and episode_id is None:
            raise RecordError("feedback_for needs a task_id or an episode_id.", field="task_id")
        with self._reading() as connection:
            keys = {} if task_id is None else joining.keys_of_task(connection, task_id)
            keys |= {} if episode_id is None else joining.keys_of_episode(connection, episode_id)
            found = joining.feedback_in_force(connection, keys)
        return sorted((item for items in found.values() for item in items), key=lambda item: (item.at, item.id))

    def episodes(self, *, with_feedback_only: bool = False, since: datetime | None = None) -> Iterator[Episode]:
        """Joined episodes, streamed in order of their first step's arrival; only feedback in force.

        `since` keeps episodes with a step that happened, or feedback in force that was received, then or later.
        """
        table = tables.steps
        query = select(table.c.seq, table.c.episode_id).where(table.c.opens.is_(True))
        for rows in self._pages(query, table.c.seq):
            ids = [row.episode_id for row in rows]
            with self._reading() as connection:
                found = joining.join(connection, ids, with_feedback_only=with_feedback_only, since=since)
            yield from found

    def orphans(self, *, now: datetime, older_than_h: float = 24.0) -> list[Feedback]:
        """Feedback that still waits for its target, received more than so many hours ago; oldest first."""
        table = tables.feedback
        before = tables.hours_before(now, older_than_h)
        query = select(table.c.record, table.c.received_us).where(
            table.c.waiting.is_(True), table.c.received_us < before
        )
        return [joining.feedback_of(row) for row in self._rows(query.order_by(table.c.seq))]

    def counts(self) -> dict[str, int]:
        """Rows by table; `episodes`; and `waiting`, the feedback without its target."""
        counted = {
            name: select(func.count()).select_from(getattr(tables, name))
            for name in ("steps", "feedback", "snapshots", "updates", "reports", "versions")
        }
        counted["episodes"] = select(func.count()).where(tables.steps.c.opens.is_(True))
        counted["waiting"] = select(func.count()).where(tables.feedback.c.waiting.is_(True))
        with self._reading() as connection:
            return {name: connection.scalar(query) or 0 for name, query in counted.items()}

    # People

    def erase_person(self, who: str, *, now: datetime) -> Erasure:
        """Remove everything a person said: rows, snapshots, and the bytes in the file. See `thumbwheel.stores.erasing`."""
        return erasing.erase(self._writer, self.url, who, now=now)

    def must_retrain(self) -> list[str]:
        """Ids of the updates that learned from feedback erased since, and of their descendants; oldest first."""
        return self._read(erasing.must_retrain)

    # Lineage

    def record_snapshot(self, hash: str, path: str, feedback_ids: Sequence[str], *, now: datetime) -> None:
        """Note a snapshot, its file and the feedback in it. The same hash again moves it to the new path."""
        self._writer.call(lambda it: lineage.add_snapshot(it, hash, path, feedback_ids, now=now))

    def record_update(self, update: Update) -> None:
        """Note a weight change. Raises NotFound for an unknown snapshot; ConflictError for another payload."""
        self._writer.call(lambda it: lineage.add_update(it, update))

    def record_report(self, report: Report) -> None:
        """Note a report. Raises ConflictError for another payload."""
        self._writer.call(lambda it: lineage.add_report(it, report))

    def update(self, id: str) -> Update | None:
        """The update of that id."""
        return self._read(lambda it: lineage.update_of(it, id))

    def report(self, id: str) -> Report | None:
        """The report of that id."""
        return self._read(lambda it: lineage.report_of(it, id))

    def learned_from(self, feedback_id: str) -> list[str]:
        """Ids of the updates whose data held that feedback, oldest first."""
        return self._read(lambda it: lineage.learned(it, [feedback_id]))

    # Versions

    def add_version(self, version: PolicyVersion) -> None:
        """Register a version; the same one again changes nothing. Raises ConflictError, NotFound, RecordError."""
        self._writer.call(lambda it: versions.add(it, version))

    def versions(self, *, kind: str = "policy") -> list[PolicyVersion]:
        """Newest last."""
        return self._read(lambda it: versions.all_of(it, kind))

    def live(self, *, kind: str = "policy") -> PolicyVersion | None:
        """The version now serving."""
        return self._read(lambda it: versions.live(it, kind))

    def promote(self, id: str, *, now: datetime, report_id: str | None = None) -> PolicyVersion:
        """Make a version live, and retire the one before. Atomic. `report_id` notes the report that allowed it."""
        return self._writer.call(lambda it: versions.promote(it, id, now=now, report_id=report_id))

    def hold(self, id: str, *, now: datetime, report_id: str | None = None) -> PolicyVersion:
        """Mark a version as held back. Raises ConflictError where it is live."""
        return self._writer.call(lambda it: versions.hold(it, id, report_id=report_id))

    def rollback(self, *, kind: str = "policy", now: datetime) -> PolicyVersion:
        """Make the version that was live before the present one live again. Raises NotFound where there is none."""
        return self._writer.call(lambda it: versions.rollback(it, kind, now=now))

    # Health and ending

    def probe(self) -> str:
        """Write durably and leave nothing behind; the schema's version. Raises StoreError with what is in the way."""
        return self._writer.call(migrate.probe)

    def close(self) -> None:
        """Write what is queued, then close every connection. Closing twice is harmless."""
        self._closed = True
        self._writer.close()
        self._read_engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store. Raises StoreError, also where the store was closed."""
        if self._closed:
            raise StoreError(f"The store '{self.where}' is closed. Open it again with open_store.")
        with told_as_store_error(self.where), self._read_engine.begin() as connection:
            yield connection

    def _read(self, run: Callable[[Connection], T]) -> T:
        with self._reading() as connection:
            return run(connection)

    def _rows(self, query: Select[Any]) -> Sequence[Any]:
        with self._reading() as connection:
            return connection.execute(query).all()

    def _pages(
        self, query: Select[Any], seq: Any, *, after: int = -1, limit: int | None = None
    ) -> Iterator[Sequence[Any]]:
        return joining.pages(self._rows, query, seq, after=after, limit=limit)

    def _seq(self, table: Table, id: str | None) -> int:
        if id is None:
            return -1
        rows = self._rows(select(table.c.seq).where(table.c.id == id))
        if not rows:
            raise NotFound(
                f"There is no '{id}' among the stored {table.name} to go on after. Start from the beginning."
            )
        return int(rows[0].seq)


def _without_conflicts(receipt: Receipt) -> Receipt:
    if receipt.conflicts:
        reasons = list(receipt.conflicts.values())
        more = (
            f" And {len(reasons) - 1} more of this kind; the rest of the batch is stored." if len(reasons) > 1 else ""
        )
        raise ConflictError(reasons[0] + more, field="id")
    return receipt
