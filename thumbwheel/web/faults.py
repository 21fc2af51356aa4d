"""Every error the API answers with has one shape.

    {"error": {"what": …, "field": …, "allowed": …, "got": …, "next": …, "message": …}}

`message` is the other parts as one text. A browser that asks for a page gets the same as a small page.
"""

from __future__ import annotations

import html
import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from thumbwheel.errors import ConflictError, NotFound, RecordError, RegistryError, StoreError, ThumbwheelError

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2
_STATUS: tuple[tuple[type[ThumbwheelError], HTTPStatus], ...] = (
    (RecordError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (RegistryError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ConflictError, HTTPStatus.CONFLICT),
    (NotFound, HTTPStatus.NOT_FOUND),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}}</style>
<h1>{title}</h1><p>{message}</p><p><a href="/docs">What this server understands</a></p></html>"""


class Refused(Exception):
    """A request turned away before any record was read: too large, no JSON, of the wrong type."""

    def __init__(self, status: HTTPStatus, what: str, *, allowed: object = None, got: object = None, next: str) -> None:
        super().__init__(what)
        self.status = status
        self.error = RecordError.of(what, allowed=allowed, got=got, next=next)


def status_of(error: ThumbwheelError) -> HTTPStatus:
    """The HTTP status an error of ours is answered with."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def parts(error: ThumbwheelError) -> dict[str, Any]:
    """The inside of the error body."""
    got = error.got
    if got is not None:
        shown = got if isinstance(got, str) else json.dumps(got, default=str, ensure_ascii=False)
        got = shown if len(shown) <= 200 else shown[:197] + "..."
    return {
        "what": error.what,
        "field": error.field,
        "allowed": error.allowed,
        "got": got,
        "next": error.next,
        "message": str(error),
    }


def answer(request: Request, error: ThumbwheelError, status: HTTPStatus) -> Response:
    """The response for an error: JSON, or a page where a browser asks for one outside the API."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    if request.headers.get("accept", "").startswith("text/html") and not request.url.path.startswith("/v1/"):
        title = f"{status.value} {status.phrase}"
        page = _PAGE.format(title=html.escape(title), message=html.escape(str(error)))
        return HTMLResponse(page, status_code=status, headers=headers)
    # Escaped to ASCII, so that a lone surrogate in what was got can be shown at all.
    body = json.dumps({"error": parts(error)}, ensure_ascii=True)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Let every error of `app` leave in the one shape."""

    @app.exception_handler(ThumbwheelError)
    async def ours(request: Request, error: ThumbwheelError) -> Response:
        return answer(request, error, status_of(error))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer(request, error.error, error.status)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}: {error.detail}."
        next = f"Paths and methods are listed at {request.base_url}docs."
        response = answer(request, NotFound.of(what, next=next), HTTPStatus(error.status_code))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    async def query(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:])) or None
        got = first.get("input")
        fault = RecordError.of(
            f"The query parameter '{field}' is not valid: {first['msg']}.",
            field=field,
            got=got,
            next=f"Parameters are listed at {request.base_url}docs.",
        )
        return answer(request, fault, HTTPStatus.UNPROCESSABLE_ENTITY)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        fault = ThumbwheelError.of(
            f"The server failed on {request.method} {request.url.path} ({type(error).__name__}).",
            next="Send the request again with the same ids; if it fails again, read the server's log.",
        )
        return answer(request, fault, HTTPStatus.INTERNAL_SERVER_ERROR)
