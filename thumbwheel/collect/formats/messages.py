"""Messages as other systems write them, in and out, byte for byte where JSON is carried as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from thumbwheel.errors import RecordError
from thumbwheel.records import Message, ToolCall

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


def dump(value: Any) -> str:
    """JSON text, one way for the whole package: spaces after commas and colons, characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False)


def is_messages(value: Any) -> bool:
    """True for a non-empty list of objects with a role, or with `from`."""
    return isinstance(value, list) and bool(value) and all(is_message(item) for item in value)


def is_message(value: Any) -> bool:
    """True for an object with a role, or with `from`."""
    return isinstance(value, dict) and ("role" in value or "from" in value)


def messages(value: Any, name: str) -> tuple[Message, ...]:
    """A list of messages in the OpenAI style (role, content) or the ShareGPT style (from, value). Raises RecordError."""
    if not isinstance(value, list) or not value:
        raise RecordError.of(f"The column '{name}' holds no list of messages.", field=name, got=value)
    read: list[Message] = []
    for place, item in enumerate(value):
        read.append(message(item, f"{name}.{place}", before=read))
    return tuple(read)


def message(value: Any, name: str, *, before: Sequence[Message] = ()) -> Message:
    """One message; `before` are the ones it follows (a tool's answer belongs to the last open call). Raises RecordError."""
    if not is_message(value):
        raise RecordError.of(
            "A message is not an object with a role.", field=name, allowed='{"role": …, "content": …}', got=value
        )
    said = value.get("role", value.get("from"))
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise RecordError.of("A message has an unknown role.", field=name, allowed=", ".join(_ROLES), got=said)
    if said == "function_call":
        return Message(role="assistant", tool_calls=_spoken_calls(value.get("value"), name, len(before)))
    content = _content(value.get("content", value.get("value")), name)
    calls = _calls(value, name, len(before)) if role == "assistant" else ()
    named = value.get("name")
    call_id = value.get("tool_call_id")
    if role == "tool" and call_id is None and said in ("observation", "function"):
        call_id = _open_call(before)
    return Message.model_validate(
        {"role": role, "content": content, "tool_calls": calls, "tool_call_id": call_id, "name": named or None}
    )


def tools_text(value: Any) -> str | None:
    """The tools on offer as raw JSON text: text stays as it is, anything else is dumped. None for none."""
    if value is None or value in ("", "[]", []):
        return None
    return value if isinstance(value, str) else dump(value)


def with_tools(prompt: tuple[Message, ...], tools: str | None) -> tuple[Message, ...]:
    """The prompt whose first message carries the tools."""
    return prompt if tools is None else (prompt[0].model_copy(update={"tools": tools}), *prompt[1:])


def without_tools(prompt: Sequence[Message]) -> tuple[tuple[Message, ...], str | None]:
    """The prompt and, apart from it, the tools its first message carries. Raises RecordError for tools elsewhere."""
    if any(message.tools is not None for message in prompt[1:]):
        raise RecordError("Only the first message of a prompt can carry tools into a file.")
    return (prompt[0].model_copy(update={"tools": None}), *prompt[1:]), prompt[0].tools


def tools_json(tools: str | None) -> Any:
    """Tools for a JSON column: as a value where dumping that value gives the same text again, else as the text itself."""
    if tools is None:
        return None
    try:
        value = json.loads(tools)
    except ValueError:
        return tools
    return value if dump(value) == tools and not isinstance(value, str) else tools


def message_json(message: Message) -> dict[str, Any]:
    """A message in the OpenAI style, without empty keys."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _content(value: Any, name: str) -> str:
    """Text, or a list of text parts joined; null is empty (a message that only calls tools)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [None]
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise RecordError.of("A message's content is not text.", field=name, allowed="text, or text parts", got=value)
    return "".join(texts)


def _calls(value: dict[str, Any], name: str, place: int) -> tuple[ToolCall, ...]:
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise RecordError.of("A message's tool_calls is not a list.", field=name, got=calls)
    if not calls and value.get("function_call"):
        calls = [{"function": value["function_call"]}]
    return tuple(_call(call, name, f"call-{place}-{n}") for n, call in enumerate(calls))


def _call(value: Any, name: str, id: str) -> ToolCall:
    function = value.get("function", value) if isinstance(value, dict) else None
    called = function.get("name") if isinstance(function, dict) else None
    if not isinstance(called, str) or not called:
        raise RecordError.of("A tool call has no function name.", field=name, got=value)
    arguments = function.get("arguments", "{}") if isinstance(function, dict) else "{}"
    text = arguments if isinstance(arguments, str) else dump(arguments)
    return ToolCall(id=value.get("id") or id, name=called, arguments=text)


def _open_call(before: Sequence[Message]) -> str | None:
    """The id of the earliest call of the last calling message that has no answer yet."""
    answered = {message.tool_call_id for message in before if message.role == "tool"}
    last = next((message for message in reversed(before) if message.tool_calls), None)
    return next((call.id for call in last.tool_calls if call.id not in answered), None) if last else None


# ---------------------------------------------------------------- calls written as text


def _spoken_calls(value: Any, name: str, place: int) -> tuple[ToolCall, ...]:
    """Calls out of text such as `{"name": "f", "arguments": {…}}`, or a list of them; arguments stay byte for byte."""
    if not isinstance(value, str):
        raise RecordError.of("A function_call is not JSON text.", field=name, got=value)
    try:
        spans = _elements(value) if value.lstrip().startswith("[") else [value]
        members = [_members(span) for span in spans]
        calls = [
            ToolCall(
                id=json.loads(member["id"]) if "id" in member else f"call-{place}-{n}",
                name=json.loads(member["name"]),
                arguments=_spoken_arguments(member.get("arguments", "{}")),
            )
            for n, member in enumerate(members)
        ]
    except (ValueError, KeyError, RecursionError):
        raise RecordError.of(
            "A function_call is not JSON with a name.", field=name, allowed='{"name": …, "arguments": {…}}', got=value
        ) from None
    return tuple(calls)


def spoken_calls(message: Message, place: int) -> str:
    """The calls of a message as text that `_spoken_calls` reads back the same; an id is written where it is needed."""
    texts = []
    for n, call in enumerate(message.tool_calls):
        if not _is_object(call.arguments):
            raise RecordError("A call whose arguments are no JSON object cannot be written as a function_call.")
        id = "" if call.id == f"call-{place}-{n}" else f'"id": {dump(call.id)}, '
        texts.append(f'{{{id}"name": {dump(call.name)}, "arguments": {call.arguments}}}')
    return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"


def _spoken_arguments(raw: str) -> str:
    """Arguments as they stand; where they stand as a JSON string, what the string says."""
    return str(json.loads(raw)) if raw.startswith('"') else raw


def _is_object(text: str) -> bool:
    """True for the text of a JSON object without outer white space."""
    try:
        return text == text.strip() and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


_decoder = json.JSONDecoder()
_SPACE = " \t\n\r"


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _elements(text: str) -> list[str]:
    """The raw text of each element of a JSON array. Raises ValueError."""
    return [raw for _, raw in _pieces(text, "[", "]")]


def _members(text: str) -> dict[str, str]:
    """The raw text of each member of a JSON object, by key. Raises ValueError."""
    return dict(_pieces(text, "{", "}"))


def _pieces(text: str, opening: str, closing: str) -> list[tuple[str, str]]:
    at = _skip(text, 0)
    if text[at : at + 1] != opening:
        raise ValueError(f"expected {opening}")
    at = _skip(text, at + 1)
    found: list[tuple[str, str]] = []
    while text[at : at + 1] != closing:
        key = ""
        if opening == "{":
            key, at = _decoder.raw_decode(text, at)
            at = _skip(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                raise ValueError("expected a key and a colon")
            at = _skip(text, at + 1)
        start = at
        _, at = _decoder.raw_decode(text, at)
        found.append((key, text[start:at]))
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise ValueError(f"expected a comma or {closing}")
    if _skip(text, at + 1) != len(text):
        raise ValueError("text after the end")
    return found
