"""Instruction, input, output (Taori et al. 2023, Alpaca); also with an earlier history, or as Self-Instruct instances."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import Draft, Export, FileFormat, formats, model_in, plain_extras, said_in
from thumbwheel.collect.formats.openai import talk
from thumbwheel.collect.formats.preference import plain_answer, plain_prompt, plain_prompt_row
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import RecordError
from thumbwheel.records import Demonstration, Message


def _recognise(row: Row) -> str | None:
    if not isinstance(row.data.get("instruction"), str):
        return None
    if isinstance(row.data.get("output"), str):
        return "instruction and output are text"
    return "instruction is text and instances a list" if isinstance(row.peek("instances"), list) else None


def _parse(row: Row) -> Draft:
    instances = row.nested("instances")
    if instances is not None:
        row = _instance(row, instances)
    asked = plain_prompt(row)
    system, last = asked[:-1], asked[-1]
    answer = Message(role="assistant", content=row.text("output"))
    earlier = _history(row)
    turns = (*system, *earlier, last, answer)
    copied = [place == len(turns) - 1 for place in range(len(turns))]
    return talk(turns, copied, said_in(row), model_in(row))


def _instance(row: Row, instances: Any) -> Row:
    """The row with the columns of its only instance."""
    if not isinstance(instances, list) or len(instances) != 1 or not isinstance(instances[0], dict):
        raise RecordError.of("'instances' does not hold exactly one {input, output}.", field="instances", got=instances)
    merged = Row({**row.data, **instances[0]}, tabular=row.tabular)
    merged.used = row.used
    return merged


def _history(row: Row) -> list[Message]:
    """Earlier turns: a list of [instruction, answer]."""
    history = row.nested("history") or []
    pairs = isinstance(history, list) and all(isinstance(turn, list) and len(turn) == 2 for turn in history)
    if not pairs or not all(isinstance(text, str) for turn in history for text in turn):
        raise RecordError.of("'history' is no list of [question, answer].", field="history", got=history)
    roles: tuple[Any, Any] = ("user", "assistant")
    return [Message(role=role, content=text) for turn in history for role, text in zip(roles, turn, strict=True)]


def _row(record: Demonstration) -> dict[str, Any]:
    asked = plain_prompt_row(record.prompt)
    system = {"system": asked["system"]} if "system" in asked else {}
    answer = plain_answer(record.response)
    return {**system, "instruction": asked["prompt"], "input": "", "output": answer} | plain_extras(record)


formats.add(
    "alpaca",
    FileFormat(
        name="alpaca",
        columns="instruction, input, output: plain text; system, history",
        recognise=_recognise,
        parse=_parse,
        exports={
            Demonstration: Export(
                {
                    "system": "text",
                    "instruction": "text",
                    "input": "text",
                    "output": "text",
                    "origin": "text",
                    "weight": "number",
                },
                _row,
            )
        },
    ),
)
