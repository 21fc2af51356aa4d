"""What an application imports to send steps and feedback. Needs httpx and nothing of the training side.

    client = Client("http://127.0.0.1:8321", surface="chat", policy_version="policy-7")
    step = client.step("How do I undo my last commit?", "Run `git reset --soft HEAD~1`.")
    client.thumb(step, up=True, who="u-93f1")

Every method of `Recorder` is here and sends what it makes. It returns the record, and only when the server has it on disk.
Ids are made here, so a call that is tried again is stored once. `AsyncClient` has the same methods, to be awaited.

Errors: RecordError (a field is not valid), ConflictError (the id is taken), NotFound, Undelivered (the server did not
answer or could not store; hand `error.records` to `send` later).
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack

import httpx

from thumbwheel.delivery import Call, Delivery, Outcome, Pause, Plan, Record
from thumbwheel.errors import SettingError
from thumbwheel.recorder import R, Recorder
from thumbwheel.records import Origin, Role

P = ParamSpec("P")
T = TypeVar("T")


class Defaults(TypedDict, total=False):
    """What every record gets unless the call says otherwise; and the clock and the maker of ids."""

    clock: Callable[[], datetime]
    make_id: Callable[[], str]
    who: str | None
    role: Role
    origin: Origin
    surface: str | None
    policy_version: str | None
    guideline_version: str | None


class Transport(TypedDict, total=False):
    """How the server is reached: seconds to wait for an answer, further tries, the first pause between tries in seconds
    (it doubles), records in one batch, and dice in [0, 1) that spread the pauses of many clients."""

    timeout_s: float
    retries: int
    backoff_s: float
    batch_size: int
    dice: Callable[[], float]


class Options(Defaults, Transport, total=False):
    """All keyword arguments of a client."""


class Batch(Recorder):
    """A recorder that keeps what it makes, to be sent together."""

    def __init__(self, **defaults: Unpack[Defaults]) -> None:
        super().__init__(**defaults)
        self.records: list[Record] = []

    def _made(self, record: R) -> R:
        self.records.append(record)
        return record


def _now(plan: Callable[Concatenate[Delivery, P], Plan[T]]) -> Callable[Concatenate[Client, P], T]:
    """The plan, carried out before the call returns."""

    @functools.wraps(plan)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(plan(self.delivery, *args, **kwargs))

    return call


class Client(Recorder):
    """Sends every record it makes. Safe to use from several threads. Close it, or use it in a `with` block."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None, **options: Unpack[Options]) -> None:
        self.delivery, timeout_s, self._defaults_given = _opened(url, options)
        super().__init__(**self._defaults_given)
        self._http = httpx.Client(base_url=self.delivery.url, timeout=timeout_s, transport=transport)

    def _made(self, record: R) -> R:
        self._run(self.delivery.one(record))
        return record

    send = _now(Delivery.send)
    offer = _now(Delivery.offer)
    find_step = _now(Delivery.find_step)
    find_feedback = _now(Delivery.find_feedback)
    feedback_in_force = _now(Delivery.feedback_in_force)
    orphans = _now(Delivery.orphans)
    live_policy = _now(Delivery.live_policy)
    counts = _now(Delivery.counts)
    health = _now(Delivery.health)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """A recorder whose records are sent together at the end of the block; an exception in it sends nothing."""
        batch = Batch(**self._defaults_given)
        yield batch
        self.send(batch.records)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, plan: Plan[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                action = plan.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._pause(action) if isinstance(action, Pause) else self._perform(action)

    def _pause(self, pause: Pause) -> Outcome:
        time.sleep(pause.seconds)
        return None

    def _perform(self, call: Call) -> Outcome:
        try:
            return self._http.request(call.method, call.path, **_request(call))
        except httpx.TransportError as error:
            return error


def _soon(plan: Callable[Concatenate[Delivery, P], Plan[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """The plan, to be awaited."""

    @functools.wraps(plan)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(plan(self.delivery, *args, **kwargs))

    return call


def _sends(verb: Callable[Concatenate[Recorder, P], R]) -> Callable[Concatenate[AsyncClient, P], Awaitable[R]]:
    """A method of Recorder whose record is sent when it is awaited."""

    @functools.wraps(verb)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        record = verb(self.recorder, *args, **kwargs)
        await self._run(self.delivery.one(record))
        return record

    return call


class AsyncClient:
    """As Client, for asyncio: every method is awaited. `recorder` makes records without sending them."""

    def __init__(
        self, url: str, *, transport: httpx.AsyncBaseTransport | None = None, **options: Unpack[Options]
    ) -> None:
        self.delivery, timeout_s, self._defaults_given = _opened(url, options)
        self.recorder = Recorder(**self._defaults_given)
        self._http = httpx.AsyncClient(base_url=self.delivery.url, timeout=timeout_s, transport=transport)

    step = _sends(Recorder.step)
    feedback = _sends(Recorder.feedback)
    thumb = _sends(Recorder.thumb)
    stars = _sends(Recorder.stars)
    scores = _sends(Recorder.scores)
    edit = _sends(Recorder.edit)
    demonstration = _sends(Recorder.demonstration)
    comment = _sends(Recorder.comment)
    tags = _sends(Recorder.tags)
    choice = _sends(Recorder.choice)
    ranking = _sends(Recorder.ranking)
    step_mark = _sends(Recorder.step_mark)
    outcome = _sends(Recorder.outcome)
    dwell = _sends(Recorder.dwell)
    copy = _sends(Recorder.copy)
    follow_up = _sends(Recorder.follow_up)
    abandon = _sends(Recorder.abandon)
    click = _sends(Recorder.click)
    skip = _sends(Recorder.skip)
    correct = _sends(Recorder.correct)
    retract = _sends(Recorder.retract)

    send = _soon(Delivery.send)
    offer = _soon(Delivery.offer)
    find_step = _soon(Delivery.find_step)
    find_feedback = _soon(Delivery.find_feedback)
    feedback_in_force = _soon(Delivery.feedback_in_force)
    orphans = _soon(Delivery.orphans)
    live_policy = _soon(Delivery.live_policy)
    counts = _soon(Delivery.counts)
    health = _soon(Delivery.health)

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Batch]:
        """As `Client.batch`; the recorder's own methods are not awaited."""
        batch = Batch(**self._defaults_given)
        yield batch
        await self.send(batch.records)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                action = plan.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await (asyncio.sleep(action.seconds) if isinstance(action, Pause) else self._perform(action))

    async def _perform(self, call: Call) -> Outcome:
        try:
            return await self._http.request(call.method, call.path, **_request(call))
        except httpx.TransportError as error:
            return error


class _Request(TypedDict):
    content: bytes | None
    params: Mapping[str, str]
    headers: Mapping[str, str]


def _request(call: Call) -> _Request:
    headers = {} if call.body is None else {"Content-Type": "application/json"}
    return {"content": call.body, "params": call.params, "headers": headers}


def _opened(url: str, options: Options) -> tuple[Delivery, float, Defaults]:
    """Plans for the server, the time-out in seconds, and the recorder's defaults. Raises SettingError for a bad URL."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingError.of(
            "The server's address is not valid.", field="url", allowed="http://HOST:PORT or https://HOST", got=url
        )
    delivery = Delivery(
        url=url.rstrip("/"),
        retries=options.pop("retries", 5),
        backoff_s=options.pop("backoff_s", 0.2),
        batch_size=options.pop("batch_size", 500),
        dice=options.pop("dice", random.random),
    )
    timeout_s = options.pop("timeout_s", 10.0)
    return delivery, timeout_s, options
