"""States out: records by id, the feedback in force for a task (a rating restored on reload), orphans, counts, health."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import islice
from time import perf_counter
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel

from thumbwheel import __version__
from thumbwheel.config import Settings
from thumbwheel.errors import NotFound, RecordError
from thumbwheel.records import Feedback, Id, Step, Time
from thumbwheel.stores.base import Store
from thumbwheel.web.openapi import errors

T = TypeVar("T")
Key = Annotated[Id | None, Query()]


class FeedbackList(BaseModel):
    """Feedback in order of arrival. `more` is true where the list was cut at `limit`."""

    feedback: list[Feedback]
    more: bool = False


class Counts(BaseModel):
    """Rows by table, and `waiting` feedback."""

    counts: dict[str, int]


class Version(BaseModel):
    """One version of the policy in the registry."""

    id: str
    kind: str
    parent: str | None
    status: str
    report_id: str | None
    at: Time


class StoreHealth(BaseModel):
    """`writable` was tried just now, and took `write_s` seconds; `schema_version` names the last migration."""

    writable: bool
    write_s: float
    schema_version: str


class Health(BaseModel):
    """The server answers, and its store can write. Anything else is a 503 that says why."""

    status: Literal["ok"]
    version: str
    time: Time
    store: StoreHealth


def routes(store: Store, settings: Settings, clock: Callable[[], datetime]) -> APIRouter:
    """Every GET of the API. Handlers are plain functions: they read from disk, so they run beside the event loop."""
    router = APIRouter()

    @router.get("/v1/steps/{id:path}", tags=["steps"], summary="One step", responses=errors(404, 422, 503))
    def step(id: Id) -> Step:
        return _found(store.step(id), "step", id)

    @router.get("/v1/feedback", tags=["feedback"], summary="Feedback in force", responses=errors(422, 503))
    def feedback_in_force(
        task_id: Key = None, episode_id: Key = None, who: Key = None, kind: Key = None
    ) -> FeedbackList:
        """What a person has said about a task or an episode, corrections applied: restores a rating on reload."""
        if (task_id is None) == (episode_id is None):
            raise RecordError.of(
                "Say whose feedback to list.",
                field="task_id",
                allowed="exactly one of the parameters task_id, episode_id",
                got={"task_id": task_id, "episode_id": episode_id},
                next="Add it to the address, such as /v1/feedback?task_id=…",
            )
        found = store.feedback_for(task_id=task_id, episode_id=episode_id)
        return FeedbackList(feedback=[f for f in found if who in (None, f.who) and kind in (None, f.kind)])

    @router.get("/v1/feedback/{id:path}", tags=["feedback"], summary="One feedback", responses=errors(404, 422, 503))
    def feedback(id: Id) -> Feedback:
        """As it was sent, with `received_at`; also when a later one supersedes it."""
        return _found(store.feedback(id), "feedback", id)

    @router.get("/v1/orphans", tags=["feedback"], summary="Feedback without a target", responses=errors(422, 503))
    def orphans(
        older_than_h: Annotated[float | None, Query(ge=0, le=1e6)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> FeedbackList:
        """Feedback still waiting for its target after `older_than_h` hours (the 'store.orphan_after_h' setting)."""
        hours = settings.store.orphan_after_h if older_than_h is None else older_than_h
        found = list(islice(store.orphans(now=clock(), older_than_h=hours), limit + 1))
        return FeedbackList(feedback=found[:limit], more=len(found) > limit)

    @router.get("/v1/counts", tags=["server"], summary="What is stored", responses=errors(503))
    def counts() -> Counts:
        return Counts(counts=store.counts())

    @router.get("/v1/policy", tags=["server"], summary="The policy now live", responses=errors(404, 503))
    def policy() -> Version:
        """Its id belongs into `policy_version` of the steps it produces."""
        live = store.live()
        if live is None:
            raise NotFound.of("No policy is live yet.", next="Run `thumbwheel round`; a promoted version becomes live.")
        return Version(
            id=live.id, kind=live.kind, parent=live.parent, status=live.status, report_id=live.report_id, at=live.at
        )

    @router.get("/health", tags=["server"], summary="Alive, and able to write", responses=errors(503))
    def health() -> Health:
        """A full disk or a lost database answers 503 with the reason."""
        return _health(store, clock)

    return router


def _found(record: T | None, noun: str, id: str) -> T:
    if record is None:
        raise NotFound.of(
            f"There is no {noun} '{id[:200]}'.",
            field="id",
            got=id,
            next="It was never stored, or its person asked for erasure. What was confirmed with 2xx is never lost.",
        )
    return record


def _health(store: Store, clock: Callable[[], datetime]) -> Health:
    started = perf_counter()
    schema = store.probe()
    return Health(
        status="ok",
        version=__version__,
        time=clock(),
        store=StoreHealth(writable=True, write_s=round(perf_counter() - started, 6), schema_version=schema),
    )
