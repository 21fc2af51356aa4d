"""How records travel to the server, and what its answers mean: requests, retries, errors. No input or output here.

A plan is a generator. It yields a `Call` and is sent the response (or the transport's error), or it yields a `Pause`; it
returns the result. `thumbwheel.client` drives plans, once with threads and once with asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from thumbwheel.errors import ConflictError, NotFound, RecordError, ThumbwheelError, Undelivered
from thumbwheel.records import Feedback, Step

T = TypeVar("T")
Record = Step | Feedback
RETRIED = frozenset({408, 425, 429, 502, 503, 504})
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Call:
    """One request. `body` is JSON."""

    method: str
    path: str
    body: bytes | None = None
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Wait so long, then go on."""

    seconds: float


Outcome = httpx.Response | httpx.TransportError | None
Plan = Generator[Call | Pause, Outcome, T]


@dataclass(frozen=True)
class Sent:
    """What became of records that were sent. All but the refused are on disk; `waiting` have no target yet."""

    stored: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()
    refused: Mapping[str, ThumbwheelError] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """Plans for one server. The n-th retry waits `backoff_s`·2ⁿ seconds, stretched by up to half by `dice` (0 to 1)."""

    url: str
    retries: int
    backoff_s: float
    batch_size: int
    dice: Callable[[], float]

    def one(self, record: Record) -> Plan[None]:
        """Store one record. Raises RecordError, ConflictError or Undelivered."""
        body = _json(record).encode()
        try:
            response = yield from self._exchange(Call("POST", f"/v1/{_plural(record)}", body))
            _raise_for(response)
        except Undelivered as error:
            error.records = (record,)
            raise

    def offer(self, records: Iterable[Record]) -> Plan[Sent]:
        """Store records in batches, steps first, and say which were refused. Raises Undelivered with those not confirmed."""
        rows = list(records)
        steps: list[Record] = [row for row in rows if isinstance(row, Step)]
        feedback: list[Record] = [row for row in rows if isinstance(row, Feedback)]
        results: list[Mapping[str, Any]] = []
        for same in (steps, feedback):
            for start in range(0, len(same), self.batch_size):
                try:
                    results += yield from self._batch(same[start : start + self.batch_size])
                except Undelivered as error:
                    error.records = tuple((steps + feedback)[len(results) :])
                    raise
        return _sent(results)

    def send(self, records: Iterable[Record]) -> Plan[Sent]:
        """As `offer`; then raises RecordError or ConflictError for the first refused, when the others are stored."""
        sent = yield from self.offer(records)
        if not sent.refused:
            return sent
        id, first = next(iter(sent.refused.items()))
        total = len(sent.refused) + len(sent.stored) + len(sent.waiting) + len(sent.duplicate)
        raise type(first)(
            f"{len(sent.refused)} of {total} records were refused, the others are stored. First, '{id}': {first}",
            field=first.field,
        )

    def find_step(self, id: str) -> Plan[Step]:
        """The step of that id. Raises NotFound."""
        return Step.model_validate((yield from self._get(f"/v1/steps/{quote(id, safe='')}")))

    def find_feedback(self, id: str) -> Plan[Feedback]:
        """The feedback of that id, in force or not. Raises NotFound."""
        return Feedback.model_validate((yield from self._get(f"/v1/feedback/{quote(id, safe='')}")))

    def feedback_in_force(
        self,
        *,
        task_id: str | None = None,
        episode_id: str | None = None,
        who: str | None = None,
        kind: str | None = None,
    ) -> Plan[list[Feedback]]:
        """What was said about a task or an episode, corrections applied: restores a rating on reload."""
        answer = yield from self._get("/v1/feedback", task_id=task_id, episode_id=episode_id, who=who, kind=kind)
        return [Feedback.model_validate(item) for item in answer["feedback"]]

    def orphans(self, *, older_than_h: float | None = None) -> Plan[list[Feedback]]:
        """Feedback whose target has not arrived after so many hours (the server's setting without it)."""
        hours = None if older_than_h is None else repr(float(older_than_h))
        answer = yield from self._get("/v1/orphans", older_than_h=hours)
        return [Feedback.model_validate(item) for item in answer["feedback"]]

    def live_policy(self) -> Plan[str | None]:
        """The id of the policy version now live; `None` before the first promotion."""
        try:
            answer = yield from self._get("/v1/policy")
        except NotFound:
            return None
        return str(answer["id"])

    def counts(self) -> Plan[dict[str, int]]:
        """Rows stored, by table, and `waiting` feedback."""
        answer = yield from self._get("/v1/counts")
        found: dict[str, int] = answer["counts"]
        return found

    def health(self) -> Plan[dict[str, Any]]:
        """What the server says of itself. Raises Undelivered where it cannot write."""
        answer: dict[str, Any] = yield from self._get("/health")
        return answer

    def _get(self, path: str, **params: str | None) -> Plan[Any]:
        given = {name: value for name, value in params.items() if value is not None}
        response = yield from self._exchange(Call("GET", path, params=given))
        _raise_for(response)
        return response.json()

    def _batch(self, rows: Sequence[Record]) -> Plan[list[Mapping[str, Any]]]:
        """One result a record, in order. A batch that is too large for the server is halved."""
        plural = _plural(rows[0])
        body = f'{{"{plural}":[{",".join(map(_json, rows))}]}}'.encode()
        response = yield from self._exchange(Call("POST", f"/v1/{plural}/batch", body))
        if response.status_code == 413 and len(rows) > 1:
            half = len(rows) // 2
            first = yield from self._batch(rows[:half])
            return first + (yield from self._batch(rows[half:]))
        answer = _answer(response)
        if "results" not in answer:
            _raise_for(response)
        results: list[Mapping[str, Any]] = answer["results"]
        return results

    def _exchange(self, call: Call) -> Plan[httpx.Response]:
        """A response that is no invitation to try again. Raises Undelivered after the last try."""
        for attempt in range(self.retries + 1):
            outcome = yield call
            if isinstance(outcome, httpx.Response) and outcome.status_code not in RETRIED:
                return outcome
            if attempt < self.retries:
                pause = self.backoff_s * 2**attempt * (1 + self.dice() / 2)
                yield Pause(min(max(pause, _retry_after(outcome)), LONGEST_PAUSE_S))
        raise self._undelivered(outcome)

    def _undelivered(self, outcome: Outcome) -> Undelivered:
        tries = f"{self.retries + 1} {'try' if self.retries == 0 else 'tries'}"
        if isinstance(outcome, httpx.Response):
            said = _answer(outcome).get("error", {}).get("message") or f"status {outcome.status_code}"
            return Undelivered(f"The server at {self.url} could not do it in {tries}: {said}")
        return Undelivered.of(
            f"The server at {self.url} did not answer in {tries}: {outcome or type(outcome).__name__}.",
            next="Check that it runs and that the address is right; then send the same records again.",
        )


def _plural(record: Record) -> str:
    return "steps" if isinstance(record, Step) else "feedback"


def _json(record: Record) -> str:
    return record.model_dump_json(exclude_defaults=True)


def _answer(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a response; empty where a stranger (a proxy, another server) answered."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _retry_after(outcome: Outcome) -> float:
    said = outcome.headers.get("retry-after", "") if isinstance(outcome, httpx.Response) else ""
    return float(said) if said.isdigit() else 0.0


def _raise_for(response: httpx.Response) -> None:
    if not response.is_success:
        raise _error(response.status_code, _answer(response).get("error"), str(response.request.url))


def _error(status: int, parts: Mapping[str, Any] | None, url: str) -> ThumbwheelError:
    """Our error for the server's: the same parts, the same message."""
    kind: type[ThumbwheelError] = {404: NotFound, 409: ConflictError}.get(status, RecordError)
    if status >= 500:
        kind = Undelivered
    if parts is None:
        return kind.of(
            f"{url} answered with status {status} and no Thumbwheel error.",
            next="Check that the address is a Thumbwheel server's.",
        )
    error = kind(str(parts.get("message")), field=parts.get("field"))
    error.what, error.allowed = str(parts.get("what")), parts.get("allowed")
    error.got, error.next = parts.get("got"), parts.get("next")
    return error


def _sent(results: Sequence[Mapping[str, Any]]) -> Sent:
    by_status: dict[str, list[str]] = {}
    refused: dict[str, ThumbwheelError] = {}
    for result in results:
        if "error" in result:
            refused[str(result["id"])] = _error(409 if result["status"] == "conflict" else 422, result["error"], "")
        else:
            by_status.setdefault(result["status"], []).append(result["id"])
    named = {status: tuple(by_status.get(status, ())) for status in ("stored", "waiting", "duplicate")}
    return Sent(**named, refused=refused)
