"""From outside data to a checked model, with errors that say what, allowed, got and next.

`read` is the way in for whatever a stranger sent: it raises RecordError, never pydantic's own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from thumbwheel.errors import RecordError, did_you_mean

M = TypeVar("M", bound=BaseModel)

_SAID = {"tuple_type": "it should be a list", "model_type": "it should be an object"}
_NEXT = {
    "id": "Make the id yourself (a UUID will do) and send the same one on every retry: sent twice, stored once.",
    "at": "Give the time with its zone, such as 2026-01-31T12:00:00Z.",
}


def read(model: type[M], data: object, *, noun: str | None = None) -> M:
    """`data` as a `model`. Raises RecordError naming the first bad field; `noun` is what messages call the whole."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise record_error(error, model, noun=noun or model.__name__.lower()) from None


def record_error(
    error: ValidationError, model: type[BaseModel], *, noun: str, prefix: Sequence[str] = ()
) -> RecordError:
    """A RecordError for the first thing wrong; the others are named. `prefix` is where the model stands in its record."""
    details = error.errors(include_url=False, include_context=False)
    fields = [".".join([*prefix, *map(str, _place(item, model))]) for item in details]
    first, field = details[0], fields[0]
    others = [name for name in dict.fromkeys(fields) if name != field]
    place = _place(first, model)
    return RecordError.of(
        _what(first, field, noun) + (f"; also wrong: {', '.join(others)}." if others else "."),
        field=field or None,
        allowed=_allowed(model, place[:-1] if first["type"] == "extra_forbidden" else place),
        got=None if first["type"] == "missing" else first["input"],
        next=_next(first, field, model),
    )


def _place(item: ErrorDetails, model: type[BaseModel]) -> tuple[int | str, ...]:
    """Where in the data it stands: pydantic's location without the branch names it adds below a field of free form."""
    loc = item["loc"]
    known = next((n for n in range(len(loc), 0, -1) if _at(model, loc[:n]) is not None), 0)
    return loc[: known + 1] if item["type"] == "extra_forbidden" else loc[:known]


def _what(item: ErrorDetails, field: str, noun: str) -> str:
    if item["type"] == "missing":
        return f"The {noun} has no '{field}'"
    if item["type"] == "extra_forbidden":
        return f"The {noun} has an unknown field '{field}'"
    said = _SAID.get(item["type"]) or item["msg"].removeprefix("Value error, ").rstrip(".").replace("Tuple", "List")
    return f"The {noun}'s '{field}' is not valid: {said}" if field else f"The {noun} is not valid: {said}"


def _next(item: ErrorDetails, field: str, model: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        hint = did_you_mean(str(item["loc"][-1]), _properties(model, item["loc"][:-1])).strip()
        return hint or "Leave the field out, or correct its name."
    return _NEXT.get(field, "Correct the field and try again.")


@lru_cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _at(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The JSON schema at a place inside the model, and its definitions; None where the place has none."""
    root = _schema(model)
    defs: dict[str, Any] = root.get("$defs", {})
    node: dict[str, Any] = root
    for part in loc:
        node = _resolved(node, defs)
        inner = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        inner = inner if inner is not None else node.get("additionalProperties")
        if not isinstance(inner, dict):
            return None
        node = inner
    return node, defs


def _resolved(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The node itself; what a `$ref` points to; of "X or null", X."""
    if "$ref" in node:
        found: dict[str, Any] = defs.get(node["$ref"].rpartition("/")[2], {})
        return found
    some = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    return _resolved(some[0], defs) if len(some) == 1 else node


def _properties(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    place = _at(model, loc)
    return list(_resolved(*place).get("properties", {})) if place else []


def _allowed(model: type[BaseModel], loc: Sequence[int | str]) -> str | None:
    place = _at(model, loc)
    return _words(*place) if place else None


def _words(node: dict[str, Any], defs: dict[str, Any]) -> str | None:
    """What a JSON schema allows, in words."""
    nullable = any(choice.get("type") == "null" for choice in node.get("anyOf", ()))
    node = _resolved(node, defs)
    text = _plain_words(node, defs)
    return f"{text}, or null" if text and nullable else text


def _plain_words(node: dict[str, Any], defs: dict[str, Any]) -> str | None:
    if "enum" in node or "const" in node:
        choices: list[JsonValue] = node.get("enum", [node.get("const")])
        return "one of " + ", ".join(map(repr, choices))
    match node.get("type"):
        case "string" if node.get("format") == "date-time":
            return "a time with its zone, such as 2026-01-31T12:00:00Z"
        case "string":
            return f"a string{_bounds(node, 'minLength', 'maxLength', ' characters')}"
        case "integer":
            return f"a whole number{_bounds(node, 'minimum', 'maximum')}"
        case "number":
            return f"a number{_bounds(node, 'minimum', 'maximum')}"
        case "boolean":
            return "true or false"
        case "array":
            items = _words(node.get("items", {}), defs)
            count = _bounds(node, "minItems", "maxItems")
            return f"a list{count}" + (f", each {items}" if items else "")
        case "object" if node.get("properties"):
            return "an object with " + ", ".join(node["properties"])
        case "object":
            return "an object"
    return None


def _bounds(node: dict[str, Any], low: str, high: str, unit: str = "") -> str:
    if low in node and high in node:
        return f" of {node[low]} to {node[high]}{unit}"
    if low in node:
        return f" of at least {node[low]}{unit}"
    return f" of at most {node[high]}{unit}" if high in node else ""
