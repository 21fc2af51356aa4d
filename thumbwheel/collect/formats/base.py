"""What a file format is, and how a row becomes steps and feedback with ids made of its content.

A format is one file: a `FileFormat` added to `formats`. It recognises a row by its columns, parses it into a `Draft`, and
may write views back. Ids come from the content alone, so the same row twice, in whatever file, container or format, is
the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import JsonValue, ValidationError

from thumbwheel.collect.formats.row import Row, as_time
from thumbwheel.errors import RecordError
from thumbwheel.feedback import check
from thumbwheel.records import Feedback, Message, Origin, Record, Role, Step, Target, digest_of
from thumbwheel.registry import Registry
from thumbwheel.validation import record_error

Column = Literal["text", "texts", "json", "bool", "number", "labels", "messages"]

WHO = ("annotator", "annotator_id", "rater", "worker", "worker_id", "who")
WHEN = ("at", "occurred_at", "time", "timestamp", "created_at", "created", "submitted_at", "date", "tstamp")
WORDS = ("comment", "reason", "rationale", "explanation")
MODEL = ("model", "model_name", "generator")


@dataclass(frozen=True)
class DraftStep:
    """A step before it has an id. Steps of one row are attempts at one prompt, or the turns of one talk (`index`)."""

    state: tuple[Message, ...]
    action: Message
    index: int = 0
    attempt: int = 0
    result: tuple[Message, ...] = ()
    model: str | None = None


@dataclass(frozen=True)
class Said:
    """Who said something, when, and in which words: what every format may carry beside its verdict."""

    who: str | None = None
    at: datetime | None = None
    comment: str | None = None
    reasons: tuple[str, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True)
class DraftFeedback:
    """A feedback before it has an id; steps are named by their place in the draft.

    `on` is the step it is about, None the whole row. A choice gives its `chosen` as a place, or None with tie or both_bad
    in `value`. `shown` is the display order; None where the file does not tell: then the order is set by the ids, which
    favours neither side.
    """

    kind: str
    value: dict[str, JsonValue] = field(default_factory=dict)
    on: int | None = None
    chosen: int | None = None
    shown: tuple[int, ...] | None = ()
    said: Said = Said()


@dataclass(frozen=True)
class Draft:
    """One row's content, of which its ids are made."""

    steps: tuple[DraftStep, ...]
    feedback: tuple[DraftFeedback, ...]


@dataclass(frozen=True)
class Export:
    """How a view is written in a format: the columns in order, and the row of a record (RecordError: cannot carry it)."""

    columns: Mapping[str, Column]
    row: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class FileFormat:
    """One format. `columns` says in words what it looks like; `recognise` gives the reason why a row is of it, or None."""

    name: str
    columns: str
    recognise: Callable[[Row], str | None]
    parse: Callable[[Row], Draft]
    exports: Mapping[type[Record], Export] = field(default_factory=dict)


formats: Registry[FileFormat] = Registry("file format")


@dataclass(frozen=True)
class Source:
    """Where rows come from and who is taken to speak in them. `now` stands in for a row that has no date."""

    file: str
    format: str
    now: datetime
    origin: Origin = "person"
    role: Role = "end_user"


@dataclass(frozen=True)
class Made:
    """The records of one row. `id` is made of its content."""

    id: str
    steps: tuple[Step, ...]
    feedback: tuple[Feedback, ...]


def said_in(row: Row) -> Said:
    """Annotator, date, comment, reason tags and origin out of the usual columns. Raises RecordError for a bad date."""
    who = row.first(*WHO)
    reasons = row.nested("reasons", "reason_tags")
    words = row.first(*WORDS)
    return Said(
        who=str(who) if isinstance(who, str | int) else None,
        at=time_in(row),
        comment=words if isinstance(words, str) and words.strip() else None,
        reasons=tuple(dict.fromkeys(map(str, reasons))) if isinstance(reasons, list) else (),
        origin=row.first("origin") if row.data.get("origin") in get_args(Origin) else None,
    )


def time_in(row: Row) -> datetime | None:
    """The row's own date out of the usual columns. Raises RecordError where it is no date."""
    name = next((name for name in WHEN if row.first(name) is not None), None)
    return as_time(row.data[name], name) if name else None


def model_in(row: Row, *names: str) -> str | None:
    """The model that wrote an answer, where a column says so."""
    model = row.first(*(names or MODEL))
    return model if isinstance(model, str) else None


def make(draft: Draft, source: Source, line: int) -> Made:
    """Steps and feedback with ids. Raises RecordError where something in them is not valid."""
    try:
        return _make(draft, source, line)
    except ValidationError as error:
        raise record_error(error, Step if error.title == "Step" else Feedback, noun="row") from None


def _make(draft: Draft, source: Source, line: int) -> Made:
    id = digest_of([[_plain(step) for step in draft.steps], [_said(item, source) for item in draft.feedback]])[:32]
    episode = f"import-{id}"
    task = "import-task-" + digest_of([message.model_dump(mode="json") for message in draft.steps[0].state])[:32]
    at = min((item.said.at for item in draft.feedback if item.said.at), default=source.now)
    last = max(step.index for step in draft.steps)
    steps = tuple(
        Step(
            id=f"{episode}-{place}",
            episode_id=episode,
            task_id=task,
            index=step.index,
            attempt=step.attempt,
            state=step.state,
            action=step.action,
            result=step.result,
            sampled=False,
            at=at,
            surface="import",
            terminated=True if step.index == last else None,
            tags={
                "source": source.file,
                "line": str(line),
                "format": source.format,
                **({"model": step.model} if step.model else {}),
            },
        )
        for place, step in enumerate(draft.steps)
    )
    feedback = tuple(
        check(_feedback(item, f"{episode}-f{place}", steps, source, at)) for place, item in enumerate(draft.feedback)
    )
    return Made(id, steps, feedback)


def _feedback(item: DraftFeedback, id: str, steps: Sequence[Step], source: Source, at: datetime) -> Feedback:
    value = dict(item.value)
    if item.chosen is not None:
        value["chosen"] = steps[item.chosen].id
    if item.shown is None:
        shown = sorted((step.id for step in steps), key=lambda step: digest_of([id, step]))
    else:
        shown = [steps[place].id for place in item.shown]
    step_id = steps[item.on].id if item.on is not None else None
    return Feedback(
        id=id,
        target=Target(task_id=steps[0].task_id, episode_id=steps[0].episode_id, step_id=step_id),
        kind=item.kind,
        value=value,
        reasons=item.said.reasons,
        comment=item.said.comment,
        who=item.said.who,
        role=source.role,
        origin=item.said.origin or source.origin,
        at=item.said.at or at,
        shown=tuple(shown),
        surface="import",
    )


def _plain(step: DraftStep) -> list[Any]:
    """What of a step its id is made of."""
    return [
        [message.model_dump(mode="json") for message in step.state],
        step.action.model_dump(mode="json"),
        [message.model_dump(mode="json") for message in step.result],
        step.index,
        step.attempt,
        step.model,
    ]


def _said(item: DraftFeedback, source: Source) -> list[Any]:
    said = item.said
    shown = None if item.shown is None else list(item.shown)
    at = said.at.isoformat() if said.at else None
    who = [said.who, at, said.comment, list(said.reasons), said.origin or source.origin, source.role]
    return [item.kind, item.value, item.on, item.chosen, shown, who]


def pair(better: DraftStep, worse: DraftStep, said: Said) -> Draft:
    """A draft of two answers of which the first was chosen; how they stood on screen is unknown.

    An empty answer may be the better one: people do prefer silence. Raises RecordError where the two are the same.
    """
    if (better.action.content.strip(), better.action.tool_calls) == (
        worse.action.content.strip(),
        worse.action.tool_calls,
    ):
        raise RecordError("Chosen and rejected are the same.")
    return Draft((better, worse), (DraftFeedback("choice", chosen=0, shown=None, said=said),))


def plain_extras(record: Any) -> dict[str, Any]:
    """Further columns of an exported row, where they are not what a reader would assume: origin, reasons, weight, p, margin."""
    assumed = {"origin": "person", "reasons": (), "weight": 1.0, "p": 1.0, "margin": None}
    found = {name: getattr(record, name, default) for name, default in assumed.items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in found.items()
        if value != assumed[name]
    }


EXTRAS: Mapping[str, Column] = {
    "origin": "text",
    "reasons": "texts",
    "weight": "number",
    "p": "number",
    "margin": "number",
}
