"""OpenAI's two files: pairs of outputs for preference tuning, and chat messages for supervised tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thumbwheel.collect.formats.base import (
    EXTRAS,
    Draft,
    DraftFeedback,
    DraftStep,
    Export,
    FileFormat,
    Said,
    formats,
    model_in,
    pair,
    plain_extras,
    said_in,
)
from thumbwheel.collect.formats.messages import (
    is_messages,
    message_json,
    messages,
    tools_json,
    tools_text,
    with_tools,
    without_tools,
)
from thumbwheel.collect.formats.row import Row, as_bool, as_number
from thumbwheel.errors import RecordError
from thumbwheel.records import Demonstration, Message, Preference

OUTPUTS = ("preferred_output", "non_preferred_output")


def talk(said_turns: Sequence[Message], copied: Sequence[bool], said: Said, model: str | None = None) -> Draft:
    """A talk as a run of steps: each assistant message with `copied` true is one, and a demonstration of it.

    What follows a step up to the next message that is not a tool's is its result. Raises RecordError where there is none.
    """
    steps: list[DraftStep] = []
    for place, turn in enumerate(said_turns):
        if turn.role != "assistant" or not copied[place] or place == 0:
            continue
        if not turn.content.strip() and not turn.tool_calls:
            raise RecordError("An assistant message is empty.", field=f"messages.{place}")
        after = place + 1
        while after < len(said_turns) and said_turns[after].role == "tool":
            after += 1
        state, result = tuple(said_turns[:place]), tuple(said_turns[place + 1 : after])
        steps.append(DraftStep(state, turn, index=len(steps), result=result, model=model))
    if not steps:
        raise RecordError("There is no assistant message to learn from after a prompt.")
    feedback = tuple(DraftFeedback("demonstration", on=place, said=said) for place in range(len(steps)))
    return Draft(tuple(steps), feedback)


def weights_of(value: Any) -> list[bool]:
    """For each message as written: False where it says `"weight": 0`, which keeps it from being learnt."""
    return [not (isinstance(item, dict) and item.get("weight") == 0) for item in value]


def talk_json(record: Demonstration) -> list[dict[str, Any]]:
    """Prompt and response as one list of messages; assistant messages of the prompt weigh 0. Tools are not in it."""
    prompt, _ = without_tools(record.prompt)
    earlier = [message_json(message) | ({"weight": 0} if message.role == "assistant" else {}) for message in prompt]
    return [*earlier, message_json(record.response)]


def _recognise_pair(row: Row) -> str | None:
    given = row.peek("input")
    if isinstance(given, dict) and is_messages(given.get("messages")) and all(row.has(name) for name in OUTPUTS):
        return "input.messages, preferred_output and non_preferred_output are there"
    return None


def _parse_pair(row: Row) -> Draft:
    given = row.nested("input")
    if not isinstance(given, dict):
        raise RecordError.of("'input' is no object with messages.", field="input", got=given)
    prompt = with_tools(messages(given.get("messages"), "input.messages"), tools_text(given.get("tools")))
    sides = [messages(row.nested(name), name) for name in OUTPUTS]
    for name, side in zip(OUTPUTS, sides, strict=True):
        if len(side) != 1 or side[0].role != "assistant":
            raise RecordError.of(f"'{name}' is not one assistant message.", field=name)
    chosen, rejected = (side[0] for side in sides)
    return pair(DraftStep(prompt, chosen), DraftStep(prompt, rejected, attempt=1), said_in(row))


def _pair_row(record: Preference) -> dict[str, Any]:
    if record.tie:
        raise RecordError("A tie has no chosen side; the format 'votes' can carry it.")
    prompt, tools = without_tools(record.prompt)
    given: dict[str, Any] = {"messages": [message_json(message) for message in prompt]}
    if tools is not None:
        given["tools"] = tools_json(tools)
    return {
        "input": given,
        "preferred_output": [message_json(record.chosen)],
        "non_preferred_output": [message_json(record.rejected)],
        **plain_extras(record),
    }


def _recognise_chat(row: Row) -> str | None:
    talk = row.peek("messages")
    if is_messages(talk) and any(item.get("role") == "assistant" for item in talk):
        return "messages is a talk with assistant messages"
    return None


def _parse_chat(row: Row) -> Draft:
    written = row.nested("messages")
    turns = messages(written, "messages")
    tools = tools_text(row.first("tools", "functions"))
    draft = talk(with_tools(turns, tools), weights_of(written), said_in(row), model_in(row))
    outcome = _outcome(row)
    return draft if outcome is None else Draft(draft.steps, (DraftFeedback("outcome", outcome, said=said_in(row)),))


def _outcome(row: Row) -> dict[str, Any] | None:
    """How the whole talk ended, from the columns reward (in [-1, 1]) or success: such a talk is logged, not shown."""
    reward, success = row.first("reward"), row.first("success")
    if reward is not None:
        number = as_number(reward, "reward")
        if not -1 <= number <= 1:
            raise RecordError.of("The reward is out of range.", field="reward", allowed="[-1, 1]", got=number)
        return {"reward": number}
    return None if success is None else {"success": as_bool(success, "success")}


def _chat_row(record: Demonstration) -> dict[str, Any]:
    tools = without_tools(record.prompt)[1]
    return {
        "messages": talk_json(record),
        **({} if tools is None else {"tools": tools_json(tools)}),
        **plain_extras(record),
    }


formats.add(
    "openai-preference",
    FileFormat(
        name="openai-preference",
        columns="input: {messages, tools}, preferred_output: [message], non_preferred_output: [message]",
        recognise=_recognise_pair,
        parse=_parse_pair,
        exports={
            Preference: Export(
                {"input": "json", "preferred_output": "messages", "non_preferred_output": "messages", **EXTRAS},
                _pair_row,
            )
        },
    ),
)
formats.add(
    "chat",
    FileFormat(
        name="chat",
        columns='messages: [{role, content, tool_calls}], tools; an assistant message with "weight": 0 is not learnt; '
        "reward or success: a logged run in place of a demonstration",
        recognise=_recognise_chat,
        parse=_parse_chat,
        exports={
            Demonstration: Export(
                {"messages": "json", "tools": "json", "origin": "text", "weight": "number"}, _chat_row
            )
        },
    ),
)
