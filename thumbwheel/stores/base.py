"""The store protocol: what any back end must do. The conformance suite in `thumbwheel.testing.stores` holds it to this.

A write returns only when it is durable: after the return (or after the future resolves) `kill -9` loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from thumbwheel.records import Episode, Feedback, Report, Step, Update


@dataclass(frozen=True)
class Receipt:
    """What a write did, id by id. `conflicts` maps an id to why it was refused (same id, other payload).

    `inserted` and `duplicates` are durable. `waiting` are inserted feedback ids whose target has not arrived yet.
    """

    inserted: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    conflicts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyVersion:
    """One version of a policy (or reward model) in the registry. `status`: candidate, live, retired, held."""

    id: str
    kind: str
    parent: str | None
    checkpoint: str
    status: str
    update_id: str | None
    report_id: str | None
    at: datetime


@dataclass(frozen=True)
class Erasure:
    """What erasing a person did: rows removed, and the snapshots and models that had learned from them.

    `snapshots` are hashes; `models` ids of updates, with every update that started from their weights: what must be
    retrained. `missing` are snapshot files that were not where they had been: no copy of them could be cleaned.
    """

    who: str
    feedback: int
    snapshots: tuple[str, ...]
    models: tuple[str, ...]
    missing: tuple[str, ...] = ()


@runtime_checkable
class Store(Protocol):
    """Steps and feedback in, joined episodes out; versions and lineage beside them."""

    def submit_steps(self, steps: Sequence[Step]) -> Future[Receipt]:
        """Queue a durable write of steps (group commit). The future resolves when they are on disk."""
        ...

    def submit_feedback(self, feedback: Sequence[Feedback], *, now: datetime) -> Future[Receipt]:
        """Queue a durable write of feedback; `received_at` becomes `now`. Feedback without its target waits for it."""
        ...

    def add_steps(self, steps: Sequence[Step]) -> Receipt:
        """`submit_steps` and wait. Raises ConflictError when any id came again with another payload (the rest is kept)."""
        ...

    def add_feedback(self, feedback: Sequence[Feedback], *, now: datetime) -> Receipt:
        """`submit_feedback` and wait. Raises ConflictError as `add_steps`."""
        ...

    def step(self, id: str) -> Step | None: ...

    def feedback(self, id: str) -> Feedback | None: ...

    def steps(self, *, after: str | None = None, limit: int | None = None) -> Iterator[Step]:
        """Steps in the order they were stored, streamed; `after` is the id of the last one seen."""
        ...

    def all_feedback(self, *, after: str | None = None, limit: int | None = None) -> Iterator[Feedback]:
        """Every feedback ever stored (corrections and what they supersede too), in order of arrival, streamed."""
        ...

    def feedback_for(self, *, task_id: str | None = None, episode_id: str | None = None) -> list[Feedback]:
        """Feedback in force joined to the task or to the episode (with both: to either), in order of (at, id)."""
        ...

    def episodes(self, *, with_feedback_only: bool = False, since: datetime | None = None) -> Iterator[Episode]:
        """Joined episodes, streamed in order of their first step's arrival; superseded and retracted feedback left out.

        Feedback belongs to the episode of the step it names; else to the episode it names; else to every episode of the
        task it names. `since` keeps episodes with a step that happened, or feedback that was received, then or later.
        """
        ...

    def orphans(self, *, now: datetime, older_than_h: float = 24.0) -> list[Feedback]:
        """Feedback still waiting for its target after that many hours."""
        ...

    def counts(self) -> dict[str, int]:
        """Rows by table, and `waiting` feedback."""
        ...

    def erase_person(self, who: str, *, now: datetime) -> Erasure:
        """Remove a person's feedback everywhere (snapshots included), and say which models had learned from it.

        The same feedback sent again is refused as a conflict; so is a snapshot that holds it.
        """
        ...

    def record_snapshot(self, hash: str, path: str, feedback_ids: Sequence[str], *, now: datetime) -> None:
        """Note a snapshot, its file and the feedback in it. The same hash again notes where the file is now."""
        ...

    def record_update(self, update: Update) -> None:
        """Note a weight change; again, it changes nothing. Raises NotFound for an unknown snapshot, ConflictError."""
        ...

    def record_report(self, report: Report) -> None:
        """Note a report; again, it changes nothing. Raises ConflictError for another payload."""
        ...

    def report(self, id: str) -> Report | None: ...

    def update(self, id: str) -> Update | None: ...

    def add_version(self, version: PolicyVersion) -> None:
        """Register a version; again, it changes nothing (its status and report are the store's since).

        Raises ConflictError for another payload, NotFound for an unknown update or report, RecordError for a status.
        """
        ...

    def versions(self, *, kind: str = "policy") -> list[PolicyVersion]:
        """Newest last."""
        ...

    def live(self, *, kind: str = "policy") -> PolicyVersion | None:
        """The version now serving."""
        ...

    def promote(self, id: str, *, now: datetime, report_id: str | None = None) -> PolicyVersion:
        """Make a version live; the one before is retired. Atomic. `report_id` notes the report that allowed it."""
        ...

    def hold(self, id: str, *, now: datetime, report_id: str | None = None) -> PolicyVersion:
        """Mark a candidate as held back. Raises ConflictError for the version now serving."""
        ...

    def rollback(self, *, kind: str = "policy", now: datetime) -> PolicyVersion:
        """Make the version that was live before the present one live again. Raises NotFound where there is none."""
        ...

    def learned_from(self, feedback_id: str) -> list[str]:
        """Ids of the updates whose data held that feedback."""
        ...

    def probe(self) -> str:
        """Write something durably and leave nothing behind; the schema version. Raises StoreError with what is in the way."""
        ...

    def close(self) -> None: ...
