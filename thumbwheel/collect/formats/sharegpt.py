"""Conversations of {from, value} with function calls and observations (the ShareGPT style)."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import Draft, Export, FileFormat, formats, model_in, plain_extras, said_in
from thumbwheel.collect.formats.messages import (
    is_messages,
    messages,
    spoken_calls,
    tools_text,
    with_tools,
    without_tools,
)
from thumbwheel.collect.formats.openai import talk, weights_of
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import RecordError
from thumbwheel.records import Demonstration, Message

TURNS = ("conversations", "conversation")
_FROM = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}


def _recognise(row: Row) -> str | None:
    name = next((name for name in TURNS if is_messages(row.peek(name))), None)
    return f"{name} is a list of turns" if name else None


def _parse(row: Row) -> Draft:
    written = row.nested(*TURNS)
    turns = messages(written, "conversations")
    copied = weights_of(written)
    system = row.optional_text("system", "system_prompt")
    if system:
        turns, copied = (Message(role="system", content=system), *turns), [True, *copied]
    return talk(with_tools(turns, tools_text(row.first("tools"))), copied, said_in(row), model_in(row))


def _row(record: Demonstration) -> dict[str, Any]:
    prompt, tools = without_tools(record.prompt)
    opening = {"system": prompt[0].content} if prompt[0].role == "system" and prompt[0].content else {}
    turns = [*prompt[1:], record.response] if opening else [*prompt, record.response]
    written = []
    for place, message in enumerate(turns):
        learnt = place == len(turns) - 1 or message.role != "assistant"
        written.append(_turn(message, place) | ({} if learnt else {"weight": 0}))
    return {"conversations": written, **opening, **({} if tools is None else {"tools": tools})} | plain_extras(record)


def _turn(message: Message, place: int) -> dict[str, Any]:
    if message.tool_calls:
        if message.content:
            raise RecordError("A message with both text and calls is no single turn; the format 'chat' can carry it.")
        return {"from": "function_call", "value": spoken_calls(message, place)}
    return {"from": _FROM[message.role], "value": message.content}


formats.add(
    "sharegpt",
    FileFormat(
        name="sharegpt",
        columns="conversations: [{from: human | gpt | function_call | observation, value}], system, tools",
        recognise=_recognise,
        parse=_parse,
        exports={
            Demonstration: Export(
                {"conversations": "json", "system": "text", "tools": "text", "origin": "text", "weight": "number"}, _row
            )
        },
    ),
)
