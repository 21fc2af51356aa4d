"""One answer and whether it was liked: prompt, completion, label; or messages and a label (Ethayarajh et al. 2024, KTO)."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import (
    Draft,
    DraftFeedback,
    DraftStep,
    Export,
    FileFormat,
    formats,
    model_in,
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
from thumbwheel.collect.formats.preference import PROMPT, TALK, plain_prompt
from thumbwheel.collect.formats.row import Row, as_bool, as_number
from thumbwheel.errors import RecordError
from thumbwheel.records import Labelled, Message

COMPLETION = ("completion", "response", "output", "answer")
LABEL = ("label", "thumbs_up", "thumb", "liked", "kto_tag")


def _label(row: Row) -> str | None:
    return next((name for name in LABEL if row.data.get(name) is not None), None)


def _recognise(row: Row) -> str | None:
    label = _label(row)
    answer = next((name for name in COMPLETION if row.data.get(name) is not None), None)
    if label is None or isinstance(row.peek(label), list | dict):
        return None
    talk = next((name for name in TALK if is_messages(row.peek(name))), None)
    asked = next((name for name in PROMPT if row.data.get(name) is not None), None)
    if answer and (talk or asked):
        return f"{talk or asked}, {answer} and {label} are there: one answer and whether it was liked"
    return f"{talk} and {label} are there: one talk and whether its answer was liked" if talk else None


def _parse(row: Row) -> Draft:
    label = _label(row)
    if label is None:
        raise RecordError.of("The label is missing or null.", field="label", allowed=" or ".join(LABEL))
    state, action = _talk(row)
    if not action.content.strip() and not action.tool_calls:
        raise RecordError("The answer is empty.", field="completion")
    liked = as_bool(row.first(label), label)
    value = row.first("value", "reward")
    step = DraftStep(state, action, model=model_in(row))
    if value is None:
        return Draft((step,), (DraftFeedback("thumb", {"up": liked}, on=0, said=said_in(row)),))
    reward = as_number(value, "value")
    if not -1 <= reward <= 1 or (reward > 0) is not liked:
        raise RecordError.of(
            "The value contradicts the label, or is out of range.", field="value", allowed="[-1, 1]", got=reward
        )
    return Draft((step,), (DraftFeedback("outcome", {"reward": reward}, on=0, said=said_in(row)),))


def _talk(row: Row) -> tuple[tuple[Message, ...], Message]:
    """The prompt and the answer."""
    answer = row.nested(*COMPLETION)
    talk = next((name for name in TALK if is_messages(row.peek(name))), None)
    state = messages(row.nested(talk), talk) if talk else plain_prompt(row)
    if isinstance(answer, str):
        said: tuple[Message, ...] = (Message(role="assistant", content=answer),)
    elif answer is not None:
        said = messages(answer, "completion")
    else:
        state, said = state[:-1], state[-1:]
    if len(said) != 1 or said[0].role != "assistant":
        raise RecordError("There is no single assistant message at the end.")
    if not state:
        raise RecordError("There is no prompt before the answer.")
    return with_tools(state, tools_text(row.first("tools"))), said[0]


def _row(record: Labelled) -> dict[str, Any]:
    if record.value == 0:
        raise RecordError("A neutral label is neither liked nor disliked.")
    prompt, tools = without_tools(record.prompt)
    return {
        "prompt": [message_json(message) for message in prompt],
        "completion": [message_json(record.response)],
        "label": record.value > 0,
        **({} if abs(record.value) == 1 else {"value": record.value}),
        **({} if tools is None else {"tools": tools_json(tools)}),
        **plain_extras(record),
    }


formats.add(
    "labelled",
    FileFormat(
        name="labelled",
        columns="prompt, completion (or response, output), label (or thumbs_up): text or messages; value in [-1, 1]",
        recognise=_recognise,
        parse=_parse,
        exports={
            Labelled: Export(
                {
                    "prompt": "messages",
                    "completion": "messages",
                    "label": "bool",
                    "value": "number",
                    "tools": "json",
                    "origin": "text",
                    "reasons": "texts",
                    "weight": "number",
                },
                _row,
            )
        },
    ),
)
