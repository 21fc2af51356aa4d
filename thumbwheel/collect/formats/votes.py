"""Two answers and who preferred which: response_a, response_b, and votes, or one choice a row."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import (
    Draft,
    DraftFeedback,
    DraftStep,
    Export,
    FileFormat,
    Said,
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
from thumbwheel.collect.formats.row import Row, as_bool
from thumbwheel.errors import RecordError
from thumbwheel.records import Message, Preference

SIDES = (
    ("response_a", "answer_a", "completion_a", "conversation_a"),
    ("response_b", "answer_b", "completion_b", "conversation_b"),
)
CHOICE = ("choice", "winner", "preference", "preferred", "vote", "gold", "label")
_A = frozenset({"a", "1", "response_a", "model_a", "answer_a", "left"})
_B = frozenset({"b", "2", "response_b", "model_b", "answer_b", "right"})
_TIE = frozenset({"tie", "equal", "same", "both", "both good", "both_good"})
_BOTH_BAD = frozenset({"both_bad", "both bad", "bothbad", "tie (bothbad)", "tie (both bad)", "neither"})


def _recognise(row: Row) -> str | None:
    sides = [next((name for name in names if row.data.get(name) is not None), None) for names in SIDES]
    if not all(sides):
        return None
    if isinstance(row.peek("votes"), list):
        return f"{sides[0]}, {sides[1]} and votes are there"
    choice = next((name for name in CHOICE if row.data.get(name) is not None), None)
    return f"{sides[0]}, {sides[1]} and {choice} are there" if choice else None


def _parse(row: Row) -> Draft:
    state, answers = _answers(row)
    steps = tuple(
        DraftStep(state, answer, attempt=n, model=model_in(row, f"model_{side}"))
        for n, (side, answer) in enumerate(zip("ab", answers, strict=True))
    )
    votes = row.nested("votes")
    if votes is None:
        return Draft(steps, _vote(row))
    if not isinstance(votes, list) or not votes or not all(isinstance(vote, dict) for vote in votes):
        raise RecordError.of("'votes' is no list of votes.", field="votes", allowed='[{"choice": "a"}, …]', got=votes)
    return Draft(steps, tuple(item for vote in votes for item in _vote(Row(vote, tabular=row.tabular))))


def _answers(row: Row) -> tuple[tuple[Message, ...], list[Message]]:
    """The prompt and the two answers, in text or as messages."""
    talks = []
    for names in SIDES:
        value = row.nested(*names)
        if isinstance(value, str):
            value = [{"role": "assistant", "content": value}]
        elif not is_messages(value):
            raise RecordError.of(f"'{names[0]}' is neither text nor messages.", field=names[0], got=value)
        talks.append(messages(value, names[0]))
    if any(talk[-1].role != "assistant" for talk in talks):
        raise RecordError("A side does not end with an assistant message.")
    if talks[0][:-1] != talks[1][:-1]:
        raise RecordError("The two talks part before the last turn.")
    if is_messages(row.peek("prompt")):
        state = (*messages(row.nested("prompt"), "prompt"), *talks[0][:-1])
    else:
        state = talks[0][:-1] or plain_prompt(row)
    return with_tools(state, tools_text(row.first("tools"))), [talk[-1] for talk in talks]


def _vote(vote: Row) -> tuple[DraftFeedback, ...]:
    """One person's choice, and what they found acceptable, as thumbs."""
    said = said_in(vote)
    value = vote.first(*CHOICE)
    word = str(value).strip().lower()
    shown = _shown(vote)
    strength = vote.first("strength")
    extra = {"strength": strength} if strength in ("slight", "clear") else {}
    if word in _A or word in _B:
        choice = DraftFeedback("choice", extra, chosen=0 if word in _A else 1, shown=shown, said=said)
    elif word in _TIE or word in _BOTH_BAD:
        choice = DraftFeedback("choice", {"tie": True} if word in _TIE else {"both_bad": True}, shown=shown, said=said)
    else:
        raise RecordError.of("A choice is none.", field="choice", allowed="a, b, tie or both_bad", got=value)
    thumbs = [
        DraftFeedback("thumb", {"up": as_bool(vote.first(name), name)}, on=place, said=_of(said))
        for place, name in enumerate(("a_acceptable", "b_acceptable"))
        if vote.first(name) is not None
    ]
    return (choice, *thumbs)


def _of(said: Said) -> Said:
    """The same person at the same time; comment and reasons belong to the choice."""
    return Said(who=said.who, at=said.at, origin=said.origin)


def _shown(vote: Row) -> tuple[int, ...] | None:
    """The order on screen, where the file tells."""
    first = vote.first("shown_first")
    if first is None:
        return None
    if first not in ("a", "b"):
        raise RecordError.of("'shown_first' is neither side.", field="shown_first", allowed="a or b", got=first)
    return (0, 1) if first == "a" else (1, 0)


def _row(record: Preference) -> dict[str, Any]:
    prompt, tools = without_tools(record.prompt)
    return {
        "prompt": [message_json(message) for message in prompt],
        "response_a": [message_json(record.chosen)],
        "response_b": [message_json(record.rejected)],
        "choice": "tie" if record.tie else "a",
        **({} if tools is None else {"tools": tools_json(tools)}),
        **{name: value for name, value in plain_extras(record).items() if not (record.tie and name == "p")},
    }


formats.add(
    "votes",
    FileFormat(
        name="votes",
        columns="prompt, response_a, response_b and choice (a, b, tie, both_bad), "
        "or votes: [{choice, annotator, strength, time}]",
        recognise=_recognise,
        parse=_parse,
        exports={
            Preference: Export(
                {
                    "prompt": "messages",
                    "response_a": "messages",
                    "response_b": "messages",
                    "choice": "text",
                    "tools": "json",
                    **{"origin": "text", "reasons": "texts", "weight": "number", "p": "number", "margin": "number"},
                },
                _row,
            )
        },
    ),
)
