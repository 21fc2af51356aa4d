"""A worked answer in steps with a label on each: prompt, completions, labels (Lightman et al. 2023; Wang et al. 2024)."""

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
from thumbwheel.collect.formats.preference import plain_prompt
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import RecordError
from thumbwheel.records import Message, ProcessLabelled

STEPS = ("completions", "steps")


def _recognise(row: Row) -> str | None:
    steps = next((name for name in STEPS if _texts(row.peek(name))), None)
    labels = row.peek("labels")
    return f"{steps} is a list of texts and labels a list as long" if steps and isinstance(labels, list) else None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _parse(row: Row) -> Draft:
    texts, labels = row.listed(*STEPS), row.listed("labels")
    if not _texts(texts):
        raise RecordError.of("The steps are no list of texts.", field="completions", got=texts)
    if len(texts) != len(labels):
        raise RecordError.of(
            "There is not one label a step.", field="labels", allowed=f"{len(texts)} labels", got=len(labels)
        )
    marks = [_mark(label) for label in labels]
    if all(mark is None for mark in marks):
        raise RecordError("No step has a label.", field="labels")
    prompt = messages(row.nested("prompt"), "prompt") if is_messages(row.peek("prompt")) else plain_prompt(row)
    prompt = with_tools(prompt, tools_text(row.first("tools")))
    said, model = said_in(row), model_in(row)
    answers = [Message(role="assistant", content=text) for text in texts]
    steps = tuple(DraftStep((*prompt, *answers[:n]), answers[n], index=n, model=model) for n in range(len(answers)))
    feedback = tuple(
        DraftFeedback("step_mark", {"mark": mark}, on=n, said=said) for n, mark in enumerate(marks) if mark is not None
    )
    return Draft(steps, feedback)


def _mark(label: Any) -> int | None:
    """-1, 0, +1 or None: false is -1; of numbers, 0 is neutral."""
    if label is None or isinstance(label, bool):
        return None if label is None else 1 if label else -1
    if label in (-1, 0, 1):
        return int(label)
    raise RecordError.of("A label is none.", field="labels", allowed="true, false, -1, 0, 1 or null", got=label)


def _row(record: ProcessLabelled) -> dict[str, Any]:
    if all(label is None for label in record.labels):
        raise RecordError("No step has a label.")
    prompt, tools = without_tools(record.prompt)
    plain = [message.role for message in prompt] == ["user"] and prompt[0].content.strip() and not prompt[0].name
    return {
        "prompt": prompt[0].content if plain else [message_json(message) for message in prompt],
        "completions": list(record.steps),
        "labels": list(record.labels),
        **({} if tools is None else {"tools": tools_json(tools)}),
        **plain_extras(record),
    }


formats.add(
    "stepwise",
    FileFormat(
        name="stepwise",
        columns="prompt, completions (or steps): a list of texts, labels: a list of true, false, -1, 0, 1 or null",
        recognise=_recognise,
        parse=_parse,
        exports={
            ProcessLabelled: Export(
                {"prompt": "json", "completions": "texts", "labels": "labels", "tools": "json", "origin": "text"}, _row
            )
        },
    ),
)
