"""Export then import gives the same view again, in every format and container (F6)."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from made_files import load

from thumbwheel.collect.formats import formats, write
from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import DataError, StoreError
from thumbwheel.records import (
    Demonstration,
    Labelled,
    Message,
    Preference,
    ProcessLabelled,
    Record,
    ToolCall,
    Transition,
)
from thumbwheel.signals.views import demonstrations, labelled, preferences, process_labelled

SETTINGS = FeedbackSettings()
VIEWS: dict[type[Record], Any] = {
    Preference: preferences,
    Labelled: labelled,
    Demonstration: demonstrations,
    ProcessLabelled: process_labelled,
}
CONTAINERS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".csv.gz", ".parquet")
CASES = [(kind, name) for kind in VIEWS for name in formats if kind in formats.get(name).exports]


def user(text: str, **more: Any) -> Message:
    return Message(role="user", content=text, **more)


def assistant(text: str, **more: Any) -> Message:
    return Message(role="assistant", content=text, **more)


def core(record: Any) -> Any:
    """What a file carries of a row: everything but how much it weighs, which task it was and whose ids stand behind it."""
    left_out = {"weight", "noise_rate", "task_id", "feedback_ids", "chosen_token_ids", "rejected_token_ids", "margin"}
    return {key: value for key, value in record.model_dump().items() if key not in left_out}


def again(records: list[Any], path: Path, format: str, **more: Any) -> list[Any]:
    """Written, then imported without saying what it is, then viewed."""
    result = write(records, path, format=format)
    assert result.read == result.written + result.refused.total()
    memory, imported = load(path, **more)
    assert imported.rejected == 0, imported.line()
    return list(VIEWS[type(records[0])](memory.episodes(), SETTINGS).rows)


# ---------------------------------------------------------------- one plain row through everything

PLAIN: dict[type[Record], Record] = {
    Preference: Preference(
        prompt=(user("2+2="),), chosen=assistant("4"), rejected=assistant('5, "or"\n\tso;é🚀'), reasons=("wrong",)
    ),
    Labelled: Labelled(prompt=(user("2+2="),), response=assistant("4"), value=0.25, origin="simulated"),
    Demonstration: Demonstration(prompt=(user("2+2="),), response=assistant("4\r\nfour"), origin="model"),
    ProcessLabelled: ProcessLabelled(prompt=(user("2+2="),), steps=("a,b", "c"), labels=(-1, None)),
}


@pytest.mark.parametrize(
    ("case", "ending"), list(product(CASES, CONTAINERS)), ids=lambda v: v if isinstance(v, str) else v[1]
)
def test_a_row_survives_every_format_in_every_container(
    case: tuple[type[Record], str], ending: str, tmp_path: Path
) -> None:
    """F6: round trips; origin and reason tags stay."""
    kind, format = case
    (row,) = again([PLAIN[kind]], tmp_path / f"f{ending}", format)
    assert core(row) == core(PLAIN[kind])


# ---------------------------------------------------------------- talks with tools, byte for byte

TOOLS = '[{"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {"a": {}}}}}]'
OTHER_TOOLS = '[{"name":"find",  "parameters": {"q": null}}]'


def run(tools: str | None, arguments: str, name: str) -> tuple[Message, ...]:
    return (
        Message(role="system", content="Be brief.", tools=tools),
        user("2+2="),
        assistant("", tool_calls=(ToolCall(id="call-2-0", name=name, arguments=arguments),)),
        Message(role="tool", content='{"sum": 4}', tool_call_id="call-2-0"),
    )


RUNS = [
    run(TOOLS, '{"a":2.0,  "b" : 1e0, "c": null}', "sum"),
    run(OTHER_TOOLS, '{"q": "\\u00e9"}', "find"),
    run(None, "{}", "now"),
]
TALKS = [
    (kind, name)
    for kind, name in CASES
    if name in {"preference-chat", "openai-preference", "votes", "labelled", "chat", "sharegpt"}
]


@pytest.mark.parametrize(
    ("case", "ending"), list(product(TALKS, CONTAINERS)), ids=lambda v: v if isinstance(v, str) else v[1]
)
def test_tools_and_arguments_stay_byte_for_byte(case: tuple[type[Record], str], ending: str, tmp_path: Path) -> None:
    """Pitfall: two tools with different schemas; JSON equal byte for byte, no null keys, Parquet included."""
    kind, format = case
    records = [
        {
            Preference: Preference(prompt=prompt, chosen=assistant("4"), rejected=assistant("5")),
            Labelled: Labelled(prompt=prompt, response=assistant("4"), value=1.0),
            Demonstration: Demonstration(prompt=prompt, response=assistant("4")),
        }[kind]
        for prompt in RUNS
    ]
    rows = again(records, tmp_path / f"f{ending}", format)
    assert [core(row) for row in rows] == [core(record) for record in records]


def test_tools_are_written_as_a_list_where_that_is_the_same_and_as_text_where_not(tmp_path: Path) -> None:
    records = [Demonstration(prompt=prompt, response=assistant("4")) for prompt in RUNS]
    write(records, tmp_path / "f.jsonl")
    found = [json.loads(line).get("tools") for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert found == [json.loads(TOOLS), OTHER_TOOLS, None]


def test_plain_messages_in_parquet_have_role_and_content_only(tmp_path: Path) -> None:
    """No null keys for readers that are not ours."""
    write([PLAIN[Preference]], tmp_path / "f.parquet")
    (row,) = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert row["prompt"] == [{"role": "user", "content": "2+2="}]
    assert set(row) == {"prompt", "chosen", "rejected", "reasons"}


def test_earlier_answers_in_a_prompt_are_not_taken_for_demonstrations(tmp_path: Path) -> None:
    record = Demonstration(prompt=(user("a"), assistant("b"), user("c")), response=assistant("d"))
    for format in ("chat", "sharegpt"):
        assert [core(row) for row in again([record], tmp_path / f"{format}.jsonl", format)] == [core(record)]


# ---------------------------------------------------------------- anything at all

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
WORDS = TEXT.filter(str.strip)
TURNS = st.lists(WORDS, min_size=1, max_size=5)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[Message, ...]:
    """An optional system message, then turns that alternate and end with the user's."""
    turns = draw(st.lists(WORDS, min_size=1, max_size=5).filter(lambda turns: len(turns) % 2))
    system = draw(st.none() | WORDS)
    talk = [user(text) if n % 2 == 0 else assistant(text) for n, text in enumerate(turns)]
    return (Message(role="system", content=system), *talk) if system else tuple(talk)


@st.composite
def records(draw: st.DrawFn, kind: type[Record]) -> Record:
    prompt = draw(prompts())
    if kind is Preference:
        sides = draw(st.tuples(WORDS, TEXT).filter(lambda pair: pair[0].strip() != pair[1].strip()))
        tie = draw(st.booleans())
        return Preference(
            prompt=prompt, chosen=assistant(sides[0]), rejected=assistant(sides[1]), p=0.5 if tie else 1, tie=tie
        )
    if kind is Labelled:
        value = draw(st.sampled_from([-1.0, 1.0]) | st.floats(-1, 1))
        return Labelled(prompt=prompt, response=assistant(draw(WORDS)), value=value)
    if kind is Demonstration:
        return Demonstration(prompt=prompt, response=assistant(draw(WORDS)))
    steps = draw(st.lists(TEXT, min_size=1, max_size=4))
    labels = draw(st.lists(st.sampled_from([-1, 0, 1, None]), min_size=len(steps), max_size=len(steps)))
    return ProcessLabelled(prompt=prompt, steps=tuple(steps), labels=tuple(labels))


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(data=st.data())
def test_whatever_is_written_comes_back_and_the_rest_is_refused_by_name(
    case: tuple[type[Record], str], ending: str, tmp_path: Path, data: st.DataObject
) -> None:
    """F6, property: what a format cannot carry is refused and counted, never changed in silence."""
    kind, format = case
    record = data.draw(records(kind))
    path = tmp_path / f"f{ending}"
    good = PLAIN[kind]
    result = write([record, good], path, format=format)
    assert result.written + result.refused.total() == 2
    if result.written == 1:
        event("refused")
        return
    memory, imported = load(path, format=format)
    assert imported.rejected == 0, imported.line()
    rows = VIEWS[kind](memory.episodes(), SETTINGS).rows
    row = rows[0]
    if record.model_dump().get("tie"):  # either order is the same tie
        assert {row.chosen, row.rejected} == {record.chosen, record.rejected}  # type: ignore[attr-defined]
        assert row.tie
    else:
        assert core(row) == core(record)


# ---------------------------------------------------------------- what is refused

CALLED = assistant("", tool_calls=(ToolCall(id="x", name="f", arguments="not json"),))


@pytest.mark.parametrize(
    ("record", "format", "reason"),
    [
        (PLAIN[Preference].model_copy(update={"tie": True, "p": 0.5}), "hh", "A tie has no chosen side"),
        (PLAIN[Preference].model_copy(update={"tie": True, "p": 0.5}), "openai-preference", "A tie has no chosen side"),
        (PLAIN[Preference].model_copy(update={"prompt": (user("a\n\nHuman: b"),)}), "hh", "turn marker"),
        (PLAIN[Preference].model_copy(update={"prompt": RUNS[0]}), "hh", "cannot be a Human or Assistant turn"),
        (PLAIN[Preference].model_copy(update={"prompt": RUNS[0]}), "preference", "no plain text"),
        (PLAIN[Preference].model_copy(update={"rejected": assistant(" 4 ")}), "preference", "are the same"),
        (PLAIN[Labelled].model_copy(update={"value": 0.0}), "labelled", "neither liked nor disliked"),
        (PLAIN[Demonstration].model_copy(update={"response": CALLED}), "alpaca", "no plain text"),
        (PLAIN[Demonstration].model_copy(update={"response": CALLED}), "sharegpt", "no JSON object"),
        (PLAIN[ProcessLabelled].model_copy(update={"labels": (None, None)}), "stepwise", "No step has a label"),
    ],
)
def test_what_a_format_cannot_carry_is_refused_with_its_reason(
    record: Record, format: str, reason: str, tmp_path: Path
) -> None:
    good = PLAIN[type(record)]
    result = write([record, good], tmp_path / "f.jsonl", format=format)
    assert (result.read, result.written) == (2, 1)
    assert reason in result.line()


def test_soft_labels_and_weights_are_written_beside_the_pair(tmp_path: Path) -> None:
    record = PLAIN[Preference].model_copy(update={"p": 0.75, "weight": 4.0, "margin": 1.5})
    write([record], tmp_path / "f.jsonl", format="preference")
    row = json.loads((tmp_path / "f.jsonl").read_text())
    assert (row["p"], row["weight"], row["margin"]) == (0.75, 4.0, 1.5)


def test_any_view_can_be_written_as_the_records_themselves(tmp_path: Path) -> None:
    row = Transition(
        state=(user("a"),),
        action=assistant("b"),
        reward=None,
        next_state=None,
        terminated=True,
        truncated=False,
        episode_id="e",
        index=0,
    )
    write([row], tmp_path / "f.jsonl", format="records")
    assert Transition.model_validate(json.loads((tmp_path / "f.jsonl").read_text())["record"]) == row


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("f.xml", None, "names no container"),
        ("f.parquet.gz", None, "compressed already"),
        ("f.jsonl", "alpaca", "cannot carry rows of the kind Preference.*hh, openai-preference, preference"),
        ("f.jsonl", "ratings", "cannot carry rows"),
        ("f.jsonl", "nothing", "cannot carry rows"),
    ],
)
def test_what_does_not_go_together_is_an_error(name: str, format: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        write([PLAIN[Preference]], tmp_path / name, format=format)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_or_none_that_can_be_written_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row to write"):
        write([], tmp_path / "f.jsonl")
    with pytest.raises(DataError, match="No row could be written"):
        write([PLAIN[Labelled].model_copy(update={"value": 0.0})], tmp_path / "f.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_midway_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    write([PLAIN[Preference]], path)
    before = path.read_bytes()

    def failing() -> Any:
        yield PLAIN[Preference]
        raise RuntimeError("the view failed")

    with pytest.raises(RuntimeError, match="the view failed"):
        write(failing(), path)
    assert [item.name for item in tmp_path.iterdir()] == ["f.jsonl"]
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        write([PLAIN[Preference]], tmp_path / "nowhere" / "f.jsonl")


def test_the_same_rows_give_the_same_gzip_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write([PLAIN[Preference]], tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).startswith(b'{"prompt"')
