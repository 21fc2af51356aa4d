"""What the API says about itself: request schemas, examples (each one is accepted by the server), error shapes."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from thumbwheel.feedback import kinds
from thumbwheel.records import Feedback, Step

DESCRIPTION = """Steps (what an agent did) and feedback (what people said about it) in; states out.

- **2xx means on disk.** After it, killing the server loses nothing. Everything else stored nothing that it does not name.
- **The client makes the ids.** Send the same record again after any doubt: sent twice, stored once. The same id with
  another payload is a 409.
- **Order does not matter.** Feedback may arrive before its step; it waits and is joined by step, episode or task id.
- **Nothing is overwritten.** A correction is a new feedback with `supersedes`; `retracts: true` takes one back.
"""
AT = "2026-01-31T12:00:00Z"
STEP: dict[str, Any] = {
    "id": "step-1",
    "episode_id": "episode-1",
    "task_id": "task-1",
    "state": [{"role": "user", "content": "How do I undo my last commit?"}],
    "action": {"role": "assistant", "content": "Run `git reset --soft HEAD~1`; your changes stay staged."},
    "policy_version": "policy-7",
    "surface": "chat",
    "at": AT,
}
VALUES: dict[str, Any] = {
    "thumb": {"up": True},
    "stars": {"stars": 4},
    "scores": {"scores": {"fluency": 4.5, "truth": 3}, "low": 0, "high": 5},
    "edit": {"text": "Run `git reset --soft HEAD~1`."},
    "demonstration": {},
    "comment": {"text": "Right, but too long."},
    "choice": {"chosen": "step-1", "strength": "clear"},
    "ranking": {"order": [["step-1"], ["step-2", "step-3"]]},
    "tags": {"tags": ["tone_stiff"]},
    "step_mark": {"mark": -1},
    "outcome": {"success": True},
    "dwell": {"dwell_s": 12.5},
    "copy": {"share": 1.0},
    "follow_up": {"rephrased": True},
    "abandon": {},
    "click": {"passage_id": "d7", "position": 2},
    "skip": {"passage_id": "d1", "position": 1},
}


class ErrorParts(BaseModel):
    """What is wrong, in parts and as one text."""

    what: str
    field: str | None = Field(description="dotted name of the bad field")
    allowed: str | None
    got: str | None
    next: str | None = Field(description="what to do now")
    message: str = Field(description="all of it as one text")


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorParts


class Stored(BaseModel):
    """One record is on disk."""

    id: str
    status: Literal["stored", "waiting", "duplicate"] = Field(
        description="'waiting': stored, and its target has not arrived yet"
    )


class RecordResult(BaseModel):
    """What became of one record of a batch."""

    id: str | None
    status: Literal["stored", "waiting", "duplicate", "conflict", "invalid"]
    error: ErrorParts | None = None


class BatchResult(BaseModel):
    """Counts, and one result for every record in the order sent."""

    stored: int
    waiting: int
    duplicate: int
    conflict: int
    invalid: int
    results: list[RecordResult]


_REASONS = {
    400: "The body is no valid JSON.",
    404: "There is none.",
    409: "The same id came before with another payload; the first one is kept.",
    413: "The body is too large.",
    415: "The body does not say that it is JSON.",
    422: "A field is not valid.",
    503: "The store cannot write now; nothing was confirmed. Wait `Retry-After` seconds and send the same again.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that can answer with these errors."""
    return {status: {"model": ErrorBody, "description": _REASONS[status]} for status in statuses}


def feedback_example(kind: str) -> dict[str, Any]:
    """A feedback of that kind that the server accepts."""
    example: dict[str, Any] = {
        "id": f"{kind}-1",
        "target": {"task_id": "task-1", "episode_id": "episode-1", "step_id": "step-1"},
        "kind": kind,
        "value": VALUES[kind],
        "who": "u-93f1",
        "at": AT,
    }
    return example | ({"shown": ["step-1", "step-2", "step-3"]} if kind in ("choice", "ranking") else {})


def intake_docs(noun: str, plural: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments for the routes that take one record, and many."""
    examples = {"a chat reply": STEP} if noun == "step" else {kind: feedback_example(kind) for kind in VALUES}
    ref = {"$ref": f"#/components/schemas/{'Step' if noun == 'step' else 'Feedback'}"}
    one = {
        "tags": [plural],
        "operation_id": f"add_{noun}",
        "summary": f"Store one {noun}",
        "description": _one_description(noun),
        "openapi_extra": _body(ref, examples),
        "status_code": 201,
        "responses": {
            201: {"model": Stored, "description": "On disk. `waiting` where its target has not arrived yet."},
            200: {"model": Stored, "description": "It was there already, just the same."},
            **errors(400, 409, 413, 415, 422, 503),
        },
    }
    rows = {
        "type": "object",
        "required": [plural],
        "properties": {plural: {"type": "array", "minItems": 1, "items": ref}},
    }
    many = {
        "tags": [plural],
        "operation_id": f"add_{noun}_batch",
        "summary": f"Store many {plural}",
        "description": "Good records are kept whatever the others are. Read `results` unless the answer is 200.",
        "openapi_extra": _body(rows, {"a batch": {plural: list(examples.values())[:3]}}),
        "responses": {
            200: {"model": BatchResult, "description": "Every record is on disk."},
            207: {"model": BatchResult, "description": "Some are on disk; `results` says which."},
            **errors(400, 413, 415, 503),
            409: {"model": BatchResult, "description": "None was stored: every id is taken by another payload."},
            422: {
                "description": "None was stored: the body is no batch (error), or every record is refused (`results`).",
                "content": {"application/json": {"schema": {"anyOf": [_ref(BatchResult), _ref(ErrorBody)]}}},
            },
        },
    }
    return one, many


def _one_description(noun: str) -> str:
    if noun == "step":
        return (
            "A chat reply is an episode of one step. An agent's run is one episode with `index` 0, 1, 2, …; "
            "a regenerated reply has the same `index` and the next `attempt`."
        )
    table = "\n".join(
        f"| `{name}` | {(kinds.get(name).__doc__ or '').splitlines()[0]} | `{VALUES[name]}` |" for name in VALUES
    )
    return (
        f"`kind` says what the person did, `value` holds it:\n\n| kind | what | value |\n| --- | --- | --- |\n{table}"
    )


def _body(schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    named = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "examples": named}}}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def describe(app: FastAPI) -> None:
    """Give `app` an OpenAPI document that also holds the schemas of request bodies and of every kind's value."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            values = [kinds.get(name) for name in kinds]
            models: list[type[BaseModel]] = [Step, Feedback, ErrorBody, BatchResult, *values]
            _, schemas = models_json_schema(
                [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
            )
            known = found.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in schemas["$defs"].items():
                known.setdefault(name, schema)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
