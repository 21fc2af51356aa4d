"""Request bodies: read within a limit, parsed once."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import Request
from pydantic_core import from_json

from thumbwheel.web.faults import Refused


async def read_json(request: Request, *, max_bytes: int) -> Any:
    """The body as JSON. Raises Refused: 415 another content type, 413 too large, 400 no JSON (NaN is not JSON).

    The content type must say JSON: pages of other sites can send anything else without the browser asking us first.
    """
    _check_type(request)
    body = await _read(request, max_bytes)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"The body is not valid JSON: {error}.",
            allowed="one JSON value in UTF-8; no NaN, no Infinity, no lone surrogate, at most 200 levels deep",
            got=body[:80].decode("utf-8", "backslashreplace"),
            next="Encode the body with a JSON library and send it again.",
        ) from None


def _check_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if content_type != "application/json" or encoding != "identity":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "The body must be plain JSON and say so.",
            allowed="the header 'Content-Type: application/json', no Content-Encoding",
            got=f"Content-Type {content_type or '(none)'}, Content-Encoding {encoding}",
            next="Set the header and send the request again.",
        )


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes, int(announced))
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes, size)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int, got: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "The body is too large.",
        allowed=f"at most {max_bytes} bytes (the 'server.max_body_bytes' setting)",
        got=f"{got} bytes or more",
        next="Send fewer records at a time, or raise the setting.",
    )
