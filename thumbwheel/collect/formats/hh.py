"""Whole talks as text, `\n\nHuman: …\n\nAssistant: …`, in the columns chosen and rejected (Bai et al. 2022, HH-RLHF)."""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.collect.formats.base import (
    EXTRAS,
    Draft,
    DraftStep,
    Export,
    FileFormat,
    formats,
    pair,
    plain_extras,
    said_in,
)
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import RecordError
from thumbwheel.records import Message, Preference

_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLE = {"Human": "user", "Assistant": "assistant"}
_NAME = {"user": "Human", "assistant": "Assistant"}


def _recognise(row: Row) -> str | None:
    given = [row.data.get(name) for name in ("chosen", "rejected")]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < 2:
        return None
    if all(_TURN.search(f"\n\n{text}") and "\n\nAssistant:" in text for text in texts):
        return "chosen and rejected are talks of '\\n\\nHuman:' and '\\n\\nAssistant:' turns"
    prompt = row.data.get("prompt")
    if isinstance(prompt, str) and prompt.rstrip().endswith("\n\nAssistant:"):
        return "prompt is a talk that ends in '\\n\\nAssistant:'"
    return None


def _parse(row: Row) -> Draft:
    opening = row.optional_text("prompt") or ""
    sides = []
    for name in ("chosen", "rejected"):
        text = row.text(name)
        sides.append(turns(text if _TURN.search(f"\n\n{text}") or not opening else opening + text))
    chosen, rejected = sides
    if chosen[-1].role != "assistant" or rejected[-1].role != "assistant":
        raise RecordError("A talk does not end with an Assistant turn.")
    if chosen[:-1] != rejected[:-1]:
        raise RecordError("The two talks part before the last turn.")
    if len(chosen) < 2:
        raise RecordError("A talk has no Human turn before the answer.")
    prompt = tuple(chosen[:-1])
    return pair(DraftStep(prompt, chosen[-1]), DraftStep(prompt, rejected[-1], attempt=1), said_in(row))


def turns(text: str) -> list[Message]:
    """The turns of a talk; one space after each colon is taken off. Raises RecordError for text before the first turn."""
    text = text if text.startswith("\n\n") else f"\n\n{text}"
    parts = _TURN.split(text)
    if parts[0].strip() or len(parts) < 3:
        raise RecordError.of("A talk does not begin with a Human or Assistant turn.", got=text[:80])
    return [
        Message.model_validate({"role": _ROLE[name], "content": said.removeprefix(" ")})
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _row(record: Preference) -> dict[str, Any]:
    if record.tie:
        raise RecordError("A tie has no chosen side; the format 'votes' can carry it.")
    talk = "".join(_spoken(message) for message in record.prompt)
    sides = {name: talk + _spoken(side) for name, side in (("chosen", record.chosen), ("rejected", record.rejected))}
    for name, side in (("chosen", record.chosen), ("rejected", record.rejected)):
        if turns(sides[name]) != [*record.prompt, side]:
            raise RecordError("A message that holds a turn marker would be read back as two.")
    return sides | plain_extras(record)


def _spoken(message: Message) -> str:
    if message.role not in _NAME or message.tool_calls or message.tools:
        raise RecordError(f"A '{message.role}' message, or one with tools, cannot be a Human or Assistant turn.")
    return f"\n\n{_NAME[message.role]}: {message.content}"


formats.add(
    "hh",
    FileFormat(
        name="hh",
        columns="chosen, rejected: whole talks as text, '\\n\\nHuman: …\\n\\nAssistant: …', the same up to the last turn",
        recognise=_recognise,
        parse=_parse,
        exports={Preference: Export({"chosen": "text", "rejected": "text", **EXTRAS}, _row)},
    ),
)
