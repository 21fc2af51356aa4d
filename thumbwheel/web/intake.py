"""Steps and feedback in. A 2xx answer means: on disk and readable; whatever is not stored is named, with the reason.

One record:  201 new ("stored", or "waiting" for a target that has not arrived) · 200 the same again ("duplicate")
             409 the same id with another payload · 422 a bad field · 503 the store cannot write now (Retry-After)
A batch:     200 every record is stored · 207 some are, see `results` · 409 or 422 none is · 503 nothing was confirmed
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from thumbwheel.collect.redact import Redactor
from thumbwheel.config import Settings
from thumbwheel.errors import ConflictError, RecordError, SettingError, StoreError, ThumbwheelError, did_you_mean
from thumbwheel.feedback import Kind, check, kinds
from thumbwheel.records import Feedback, Step
from thumbwheel.stores.base import Receipt, Store
from thumbwheel.validation import read
from thumbwheel.web import openapi
from thumbwheel.web.bodies import read_json
from thumbwheel.web.confirmation import confirmed
from thumbwheel.web.faults import Refused, parts, status_of

log = logging.getLogger(__name__)

R = TypeVar("R", Step, Feedback)
Status = Literal["stored", "waiting", "duplicate", "conflict", "invalid"]


@dataclass(frozen=True)
class Result:
    """What became of one record of a request."""

    id: str | None
    status: Status
    error: ThumbwheelError | None = None

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": self.id, "status": self.status}
        return shown if self.error is None else shown | {"error": parts(self.error)}


@dataclass(frozen=True)
class Intake(Generic[R]):
    """How one type of record comes in: its name in one and in many, its schema, its check, its way to the store.

    `check` returns the record to be stored, with personal details taken out where the settings say so.
    """

    noun: str
    plural: str
    model: type[R]
    check: Callable[[R], R]
    submit: Callable[[Sequence[R]], Future[Receipt]]
    settings: Settings

    async def one(self, request: Request) -> Response:
        """Store one record."""
        data = await read_json(request, max_bytes=self.settings.server.max_body_bytes)
        record = self.check(read(self.model, data, noun=self.noun))
        result = _result(record, await self._written([record]))
        if result.error is not None:
            raise result.error
        status = HTTPStatus.OK if result.status == "duplicate" else HTTPStatus.CREATED
        return _json(result.as_json(), status)

    async def many(self, request: Request) -> Response:
        """Store the good records of a batch, and say of each what became of it."""
        data = await read_json(request, max_bytes=self.settings.server.max_body_bytes)
        read_or_refused = [self._read(item) for item in self._rows(data)]
        firsts: dict[str, R] = {}
        for item in read_or_refused:
            if not isinstance(item, Result):
                firsts.setdefault(item.id, item)
        receipt = await self._written(list(firsts.values())) if firsts else Receipt()
        results = [
            item if isinstance(item, Result) else _result(item, receipt, first=firsts[item.id])
            for item in read_or_refused
        ]
        return _json(_summary(results), _batch_status(results))

    def _rows(self, data: Any) -> list[Any]:
        rows = data.get(self.plural) if isinstance(data, dict) and len(data) == 1 else None
        most = self.settings.server.max_batch
        if not isinstance(rows, list) or not rows:
            raise RecordError.of(
                f"The body of a batch must be one object with the field '{self.plural}'.",
                field=self.plural,
                allowed=f'{{"{self.plural}": [1 to {most} records]}}',
                got=sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__,
                next=f"For one record use POST /v1/{self.plural}.",
            )
        if len(rows) > most:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "The batch holds too many records.",
                allowed=f"at most {most} (the 'server.max_batch' setting)",
                got=len(rows),
                next="Send the records in several batches.",
            )
        return rows

    def _read(self, item: Any) -> R | Result:
        try:
            return self.check(read(self.model, item, noun=self.noun))
        except RecordError as error:
            named = item.get("id") if isinstance(item, dict) else None
            return Result(named if isinstance(named, str) else None, "invalid", error)

    async def _written(self, records: Sequence[R]) -> Receipt:
        """Wait until the store says the records are on disk. Raises StoreError when it cannot."""
        wait_s = self.settings.server.write_timeout_s
        try:
            return await confirmed(self.submit(records), within_s=wait_s)
        except ThumbwheelError:
            raise
        except TimeoutError:
            raise StoreError.of(
                f"The store did not confirm the write within {wait_s:g} s, so it may or may not be there.",
                next="Send the same records again with the same ids: sent twice, stored once.",
            ) from None
        except Exception as error:
            log.error("a write of %d %s records failed", len(records), self.noun, exc_info=error)
            raise StoreError.of(
                f"The store could not write: {error or type(error).__name__}.",
                next="Nothing was confirmed; send the same records again with the same ids later.",
            ) from error


def _result(record: Step | Feedback, receipt: Receipt, *, first: Step | Feedback | None = None) -> Result:
    """What became of `record`; `first` is the record of the same id that stood first in its batch."""
    repeated = first is not None and first is not record
    why = receipt.conflicts.get(record.id)
    if why is None and first is not None and repeated and first.digest() != record.digest():
        why = f"The id '{record.id}' stands in this batch twice, with different payloads; the first one was kept."
    if why is not None:
        error = ConflictError.of(
            why,
            field="id",
            allowed="a new id for a new record; the same id only with the same payload",
            got=record.id,
            next="Do not send this record again: the answer will be the same.",
        )
        return Result(record.id, "conflict", error)
    if repeated or record.id in receipt.duplicates:
        return Result(record.id, "duplicate")
    if record.id not in receipt.inserted:
        raise StoreError(f"The store gave no receipt for '{record.id}'. Send it again with the same id.")
    return Result(record.id, "waiting" if record.id in receipt.waiting else "stored")


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    counted = dict.fromkeys(("stored", "waiting", "duplicate", "conflict", "invalid"), 0)
    for result in results:
        counted[result.status] += 1
    return {**counted, "results": [result.as_json() for result in results]}


def _batch_status(results: Sequence[Result]) -> HTTPStatus:
    failed = [result.error for result in results if result.error is not None]
    if not failed:
        return HTTPStatus.OK
    return HTTPStatus.MULTI_STATUS if len(failed) < len(results) else max(map(status_of, failed))


def _json(value: dict[str, Any], status: HTTPStatus) -> Response:
    return Response(json.dumps(value, ensure_ascii=True), status_code=status, media_type="application/json")


def kind_check(own: Sequence[str]) -> Callable[[Feedback], Feedback]:
    """A check of feedback that knows the registered kinds and those of one's `own` ("module:attr"), and imports no other.

    A stranger may not name a module for the server to import. Raises SettingError for an `own` name that is no kind.
    """
    for name in own:
        if not (isinstance(found := kinds.get(name), type) and issubclass(found, Kind)):
            raise SettingError.of(
                f"The 'server.kinds' setting names '{name}', which is no feedback kind.",
                allowed="'module:Class' of subclasses of thumbwheel.feedback.Kind",
                got=found,
            )

    def checked(feedback: Feedback) -> Feedback:
        if feedback.kind not in kinds and feedback.kind not in own:
            known = [*kinds, *own]
            raise RecordError.of(
                f"There is no feedback kind '{feedback.kind}'.{did_you_mean(feedback.kind, known)}",
                field="kind",
                allowed=", ".join(known),
                got=feedback.kind,
                next="Use one of these, or list your own under the 'server.kinds' setting.",
            )
        return check(feedback)

    return checked


def routes(store: Store, settings: Settings, clock: Callable[[], datetime]) -> APIRouter:
    """POST /v1/steps, /v1/steps/batch, /v1/feedback, /v1/feedback/batch."""
    router = APIRouter()
    checked = kind_check(settings.server.kinds)
    redactor = Redactor(settings.redact) if settings.redact.enabled else None
    steps = Intake(
        "step", "steps", Step, redactor.step if redactor else lambda step: step, store.submit_steps, settings
    )
    feedback = Intake(
        "feedback",
        "feedback",
        Feedback,
        (lambda row: redactor.feedback(checked(row))) if redactor else checked,
        lambda rows: store.submit_feedback(rows, now=clock()),
        settings,
    )
    for intake in (steps, feedback):
        one, many = openapi.intake_docs(intake.noun, intake.plural)
        router.add_api_route(f"/v1/{intake.plural}", intake.one, methods=["POST"], response_model=None, **one)
        router.add_api_route(f"/v1/{intake.plural}/batch", intake.many, methods=["POST"], response_model=None, **many)
    return router
