"""Chosen and rejected answers to a prompt: as plain text, or as lists of messages."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import (
    EXTRAS,
    Draft,
    DraftStep,
    Export,
    FileFormat,
    formats,
    model_in,
    pair,
    plain_extras,
    said_in,
)
from thumbwheel.collect.formats.messages import (
    is_message,
    is_messages,
    message,
    message_json,
    messages,
    tools_json,
    tools_text,
    with_tools,
    without_tools,
)
from thumbwheel.collect.formats.row import Row, missing
from thumbwheel.errors import RecordError
from thumbwheel.records import Message, Preference

PROMPT = ("prompt", "question", "instruction", "query")
TALK = ("prompt", "messages", "conversations", "conversation")
CHOSEN = ("chosen", "chosen_response", "response_chosen")
REJECTED = ("rejected", "rejected_response", "response_rejected")


def plain_prompt(row: Row) -> tuple[Message, ...]:
    """The prompt of a row in plain text: an optional system column, then prompt (or question, instruction with input).

    Raises RecordError where it is missing or has no visible character.
    """
    text = row.text(*PROMPT)
    extra = row.optional_text("input")
    text = f"{text}\n\n{extra}" if extra and extra.strip() else text
    if not text.strip():
        raise RecordError("The prompt is empty.", field="prompt")
    system = row.optional_text("system", "system_prompt")
    user = Message(role="user", content=text)
    return (Message(role="system", content=system), user) if system else (user,)


def plain_prompt_row(prompt: tuple[Message, ...]) -> dict[str, Any]:
    """The columns prompt and, where there is one, system. Raises RecordError for a prompt of more turns, or with tools."""
    roles = [message.role for message in prompt]
    if roles not in (["user"], ["system", "user"]) or any(m.tools or m.name for m in prompt):
        raise RecordError(
            "A prompt of several turns, or with tools, is no plain text; a conversational format can carry it."
        )
    if not prompt[-1].content.strip() or (len(prompt) == 2 and not prompt[0].content):
        raise RecordError("A prompt without visible text is no plain prompt.")
    return {"prompt": prompt[-1].content, **({"system": prompt[0].content} if len(prompt) == 2 else {})}


def plain_answer(answer: Message) -> str:
    """The text of an answer. Raises RecordError for one with tool calls."""
    if answer.tool_calls or answer.role != "assistant" or answer.name:
        raise RecordError("An answer with tool calls is no plain text; a conversational format can carry it.")
    return answer.content


def _side(row: Row, names: tuple[str, ...]) -> Any:
    return next((row.peek(name) for name in names if row.data.get(name) is not None), None)


def _recognise_plain(row: Row) -> str | None:
    sides = [_side(row, CHOSEN), _side(row, REJECTED)]
    prompts = [name for name in PROMPT if isinstance(row.data.get(name), str) and not is_messages(row.peek(name))]
    if prompts and all(isinstance(side, str) for side in sides):
        return f"{prompts[0]}, chosen and rejected are plain text"
    return None


def _parse_plain(row: Row) -> Draft:
    prompt = plain_prompt(row)
    chosen, rejected = (Message(role="assistant", content=row.text(*names)) for names in (CHOSEN, REJECTED))
    return pair(DraftStep(prompt, chosen), DraftStep(prompt, rejected, attempt=1), said_in(row))


def _plain_row(record: Preference) -> dict[str, Any]:
    if record.tie:
        raise RecordError("A tie has no chosen side; the format 'votes' can carry it.")
    sides = {"chosen": plain_answer(record.chosen), "rejected": plain_answer(record.rejected)}
    return plain_prompt_row(record.prompt) | sides | plain_extras(record)


def _talk(row: Row) -> str | None:
    """The column that holds the prompt as messages. Where both sides are whole talks, only 'prompt' itself can be it.

    (UltraFeedback's binarised file repeats the chosen talk in 'messages'.)
    """
    sides = [_side(row, names) for names in (CHOSEN, REJECTED)]
    whole = all(isinstance(side, list) and len(side) > 1 for side in sides)
    return next((name for name in (TALK[:1] if whole else TALK) if is_messages(row.peek(name))), None)


def _recognise_chat(row: Row) -> str | None:
    sides = [_side(row, CHOSEN), _side(row, REJECTED)]
    talk = _talk(row)
    if all(is_messages(side) or is_message(side) for side in sides):
        return f"chosen and rejected are messages{f', {talk} too' if talk else ', which begin with the prompt'}"
    if talk and all(isinstance(side, str) or is_messages(side) or is_message(side) for side in sides):
        return f"{talk} is a list of messages, chosen and rejected are text or messages"
    return None


def _parse_chat(row: Row) -> Draft:
    talk = _talk(row)
    prompt = messages(row.nested(talk), talk) if talk else None
    chosen, rejected = (_answer(row, names, prompt) for names in (CHOSEN, REJECTED))
    if chosen[0] != rejected[0]:
        raise RecordError("The prompts before chosen and rejected differ.")
    system = row.optional_text("system", "system_prompt")
    state = (Message(role="system", content=system), *chosen[0]) if system else chosen[0]
    state = with_tools(state, tools_text(row.first("tools")))
    steps = [
        DraftStep(state, side[1], attempt=n, model=model_in(row, f"{name}_model", f"model_{name}"))
        for n, (side, name) in enumerate(((chosen, "chosen"), (rejected, "rejected")))
    ]
    return pair(steps[0], steps[1], said_in(row))


def _answer(
    row: Row, names: tuple[str, ...], prompt: tuple[Message, ...] | None
) -> tuple[tuple[Message, ...], Message]:
    """The prompt and the answer of one side. Raises RecordError where there is no prompt, or more than one answer."""
    value = row.nested(*names)
    if value is None:
        raise missing(*names)
    if isinstance(value, str):
        said: tuple[Message, ...] = (Message(role="assistant", content=value),)
    else:
        said = messages(value, names[0]) if isinstance(value, list) else (message(value, names[0]),)
    if prompt is not None and said[: len(prompt)] == prompt:
        said = said[len(prompt) :]
    before = (*prompt, *said[:-1]) if prompt is not None else said[:-1]
    if not said or said[-1].role != "assistant":
        raise RecordError.of(f"'{names[0]}' does not end with an assistant message.", field=names[0])
    if prompt is not None and len(said) > 1:
        raise RecordError.of(f"'{names[0]}' holds more than one message after the prompt.", field=names[0])
    if not before:
        raise RecordError.of("There is no prompt before the answer.", field="prompt")
    return tuple(before), said[-1]


def _chat_row(record: Preference) -> dict[str, Any]:
    if record.tie:
        raise RecordError("A tie has no chosen side; the format 'votes' can carry it.")
    prompt, tools = without_tools(record.prompt)
    return {
        "prompt": [message_json(message) for message in prompt],
        "chosen": [message_json(record.chosen)],
        "rejected": [message_json(record.rejected)],
        **({} if tools is None else {"tools": tools_json(tools)}),
        **plain_extras(record),
    }


formats.add(
    "preference",
    FileFormat(
        name="preference",
        columns="prompt (or question, instruction), chosen, rejected: plain text; system",
        recognise=_recognise_plain,
        parse=_parse_plain,
        exports={
            Preference: Export(
                {"system": "text", "prompt": "text", "chosen": "text", "rejected": "text", **EXTRAS}, _plain_row
            )
        },
    ),
)
formats.add(
    "preference-chat",
    FileFormat(
        name="preference-chat",
        columns="prompt, chosen, rejected: lists of messages (role and content); or chosen and rejected with the prompt in both",
        recognise=_recognise_chat,
        parse=_parse_chat,
        exports={
            Preference: Export(
                {"prompt": "messages", "chosen": "messages", "rejected": "messages", "tools": "json", **EXTRAS},
                _chat_row,
            )
        },
    ),
)
