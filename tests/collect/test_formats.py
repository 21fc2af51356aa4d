"""Each format of the field, recognised by itself and turned into steps and feedback (F6)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from made_files import NOW, jsonl, load, rows_of

from thumbwheel.collect.formats import formats, read
from thumbwheel.collect.formats.base import Draft, DraftStep, FileFormat, Said, pair
from thumbwheel.collect.formats.row import Row
from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import DataError, RecordError, RegistryError
from thumbwheel.records import Message
from thumbwheel.signals.views import demonstrations, labelled, preferences, process_labelled, transitions

SETTINGS = FeedbackSettings()
USER = {"role": "user", "content": "2+2="}
FOUR = {"role": "assistant", "content": "4"}
FIVE = {"role": "assistant", "content": "5"}
CALL = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 2,  "b": 2}'}}

PAIRS = {
    "hh": {"chosen": "\n\nHuman: 2+2=\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2=\n\nAssistant: 5"},
    "hh-with-prompt": {"prompt": "\n\nHuman: 2+2=\n\nAssistant:", "chosen": " 4", "rejected": " 5"},
    "preference": {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
    "preference-question": {"question": "2+2=", "chosen": "4", "rejected": "5", "id": 7},
    "preference-chat": {"prompt": [USER], "chosen": [FOUR], "rejected": [FIVE]},
    "preference-chat-message": {"prompt": [USER], "chosen": FOUR, "rejected": FIVE},
    "preference-chat-text": {"prompt": [USER], "chosen": "4", "rejected": "5"},
    "preference-chat-implicit": {"chosen": [USER, FOUR], "rejected": [USER, FIVE]},
    "preference-chat-both": {"prompt": "2+2=", "chosen": [USER, FOUR], "rejected": [USER, FIVE]},
    "preference-chat-json-text": {
        "chosen": f"[{json.dumps(USER)}, {json.dumps(FOUR)}]",
        "rejected": json.dumps([USER, FIVE]),
    },
    "preference-chat-binarised": {
        "prompt": "2+2=",
        "messages": [USER, FOUR],
        "chosen": [USER, FOUR],
        "rejected": [USER, FIVE],
        "score_chosen": 8.0,
    },
    "preference-chat-mixed": {"prompt": [USER], "chosen": "4", "rejected": [FIVE]},
    "preference-chat-sharegpt": {
        "conversations": [{"from": "human", "value": "2+2="}],
        "chosen": {"from": "gpt", "value": "4"},
        "rejected": {"from": "gpt", "value": "5"},
    },
    "openai-preference": {"input": {"messages": [USER]}, "preferred_output": [FOUR], "non_preferred_output": [FIVE]},
    "votes": {"prompt": "2+2=", "response_a": "5", "response_b": "4", "choice": "b"},
    "votes-arena": {"conversation_a": [USER, FOUR], "conversation_b": [USER, FIVE], "winner": "model_a"},
    "votes-list": {"prompt": "2+2=", "response_a": "4", "response_b": "5", "votes": [{"choice": "a"}]},
    "ratings": {
        "instruction": "2+2=",
        "completions": [
            {"response": "4", "annotations": {"truth": {"Rating": "5"}, "help": {"Rating": "N/A"}}},
            {"response": "5", "annotations": {"truth": {"Rating": "1"}}},
        ],
    },
    "ratings-overall": {
        "prompt": "2+2=",
        "completions": [{"response": "4", "overall_score": 10.0}, {"response": "5", "overall_score": 1}],
    },
}


@pytest.mark.parametrize("case", PAIRS)
def test_every_way_to_write_a_pair_gives_the_same_preference(case: str, tmp_path: Path) -> None:
    """F6: one preference, 4 over 5; and it is said how the format was recognised."""
    memory, result = load(jsonl(tmp_path / "f.jsonl", PAIRS[case]))
    name = next(name for name in sorted(formats, key=len, reverse=True) if case.startswith(name))
    assert (result.format, result.read, result.imported) == (name, 1, 1), result.line()
    assert result.line().startswith(f"detected: {name} in jsonl, because ")
    (row,) = preferences(memory.episodes(), SETTINGS).rows
    assert row.prompt == (Message(role="user", content="2+2="),)
    assert (row.chosen.content, row.rejected.content, row.p, row.origin) == ("4", "5", 1.0, "person")
    assert not any(step.sampled for step in memory.steps.values())


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"prompt": "2+2=", "completion": "4", "label": True}, {"4": 1.0}),
        ({"prompt": "2+2=", "completion": "5", "label": False}, {"5": -1.0}),
        ({"prompt": [USER], "completion": [FOUR], "label": 1}, {"4": 1.0}),
        ({"messages": [USER, FIVE], "thumbs_up": False}, {"5": -1.0}),
        ({"prompt": "2+2=", "response": "4", "label": True, "value": 0.25}, {"4": 0.25}),
        ({"prompt": "2+2=", "response": "4", "stars": 4}, {"4": 0.5}),
        ({"prompt": "2+2=", "response": "4", "scores": {"truth": 9, "form": 1}, "low": 1, "high": 9}, {"4": 0.0}),
        (
            {"prompt": "2+2=", "response": "4", "helpfulness": 4, "correctness": 4, "coherence": 4}
            | {"complexity": 0, "verbosity": 0},
            {"4": 0.2},
        ),
        ({"prompt": "2+2=", "response_a": "4", "response_b": "5", "choice": "both_bad"}, {"4": -1.0, "5": -1.0}),
    ],
)
def test_labels_and_ratings(row: dict[str, Any], values: dict[str, float], tmp_path: Path) -> None:
    """F6: unpaired labels and ratings. 4, 4, 4, 0, 0 of 0 to 4 have the mean 2.4, which is 0.2 on [-1, 1]."""
    memory, _ = load(jsonl(tmp_path / "f.jsonl", row))
    found = {item.response.content: item.value for item in labelled(memory.episodes(), SETTINGS).rows}
    assert found == pytest.approx(values)


def test_ratings_of_four_completions_make_their_pairs(tmp_path: Path) -> None:
    """F6, UltraFeedback-like: overall 9, 9, 5, 1 of 1 to 10: five pairs, the two best tie and make none."""
    completions = [{"response": f"r{n}", "model": f"m{n}", "overall_score": n} for n in (9.0, 9.01, 5.0, 1.0)]
    memory, _ = load(jsonl(tmp_path / "f.jsonl", {"instruction": "x", "completions": completions}))
    rows = preferences(memory.episodes(), SETTINGS).rows
    assert len(rows) == 5
    best = next(row for row in rows if (row.chosen.content, row.rejected.content) == ("r9.0", "r1.0"))
    assert best.margin == pytest.approx(2 * 8 / 9)
    assert {step.tags["model"] for step in memory.steps.values()} == {"m9.0", "m9.01", "m5.0", "m1.0"}


def test_stepwise_labels_keep_their_order_and_their_silence(tmp_path: Path) -> None:
    """F6: process-labelled steps; null is unknown."""
    row = {"prompt": "2+2+2=", "completions": ["2+2=4", "4+2=7", "done"], "labels": [True, False, None]}
    memory, result = load(jsonl(tmp_path / "f.jsonl", row))
    (found,) = process_labelled(memory.episodes(), SETTINGS).rows
    assert result.format == "stepwise"
    assert (found.steps, found.labels) == (("2+2=4", "4+2=7", "done"), (1, -1, None))
    assert memory.episodes()[0].steps[2].state[-1].content == "4+2=7"


def test_chat_with_tools_becomes_a_run_of_steps(tmp_path: Path) -> None:
    """F5, F6: OpenAI messages with tool calls; tool output is a result; arguments and tools stay byte for byte."""
    talk = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "4."}]},
    ]
    tools = '[{"type":"function","function":{"name":"sum"}}]'
    memory, result = load(jsonl(tmp_path / "f.jsonl", {"messages": talk, "tools": tools}))
    (episode,) = memory.episodes()
    assert result.format == "chat"
    assert [step.action.content for step in episode.steps] == ["", "It is 4."]
    assert episode.steps[0].action.tool_calls[0].arguments == '{"a": 2,  "b": 2}'
    assert episode.steps[0].result[0].tool_call_id == "c1"
    assert all(step.state[0].tools == tools for step in episode.steps)
    assert [row.response.content for row in demonstrations([episode], SETTINGS).rows] == ["", "It is 4."]


def test_an_assistant_message_of_weight_0_is_not_learnt(tmp_path: Path) -> None:
    talk = [USER, FIVE | {"weight": 0}, {"role": "user", "content": "No."}, FOUR | {"weight": 1}]
    memory, _ = load(jsonl(tmp_path / "f.jsonl", {"messages": talk}))
    (row,) = demonstrations(memory.episodes(), SETTINGS).rows
    assert ([message.content for message in row.prompt], row.response.content) == (["2+2=", "5", "No."], "4")


def test_a_talk_with_a_reward_is_a_logged_run_and_shows_nothing_to_copy(tmp_path: Path) -> None:
    memory, _ = load(jsonl(tmp_path / "f.jsonl", {"messages": [USER, FIVE, USER, FOUR], "reward": -0.5}))
    assert demonstrations(memory.episodes(), SETTINGS).rows == []
    assert [row.reward for row in transitions(memory.episodes(), SETTINGS).rows] == [None, -0.5]


def test_sharegpt_function_calls_and_observations(tmp_path: Path) -> None:
    """F6: the raw text of the arguments is kept, white space and number form included."""
    talk = [
        {"from": "human", "value": "2+2="},
        {"from": "function_call", "value": '{"name": "sum", "arguments": {"a":2.0, "b" : 1e0}}'},
        {"from": "observation", "value": '{"sum": 4}'},
        {"from": "gpt", "value": "4"},
    ]
    memory, result = load(jsonl(tmp_path / "f.jsonl", {"conversations": talk, "system": "Be brief.", "tools": "[]"}))
    first, second = memory.episodes()[0].steps
    assert result.format == "sharegpt"
    assert first.state[0] == Message(role="system", content="Be brief.")
    assert (first.action.tool_calls[0].name, first.action.tool_calls[0].arguments) == ("sum", '{"a":2.0, "b" : 1e0}')
    assert first.result[0].tool_call_id == first.action.tool_calls[0].id
    assert second.action.content == "4"


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"instruction": "Add.", "input": "2 2", "output": "4"}, ["Add.\n\n2 2"]),
        ({"instruction": "Add 2 and 2.", "input": "", "output": "4"}, ["Add 2 and 2."]),
        ({"instruction": "2+2=", "output": "4", "system": "Be brief."}, ["Be brief.", "2+2="]),
        ({"instruction": "And 2+2?", "output": "4", "history": [["1+1=", "2"]]}, ["1+1=", "2", "And 2+2?"]),
        ({"instruction": "Add.", "instances": [{"input": "2 2", "output": "4"}]}, ["Add.\n\n2 2"]),
    ],
)
def test_alpaca_rows_are_one_demonstration_each(row: dict[str, Any], prompt: list[str], tmp_path: Path) -> None:
    memory, result = load(jsonl(tmp_path / "f.jsonl", row))
    (found,) = demonstrations(memory.episodes(), SETTINGS).rows
    assert (result.format, [message.content for message in found.prompt]) == ("alpaca", prompt)
    assert found.response.content == "4"


def test_votes_keep_who_when_how_strongly_and_in_which_order(tmp_path: Path) -> None:
    """F6, F3: the file's own dates are kept; acceptability becomes a thumb on each side."""
    vote = {"annotator": "t06", "choice": "a", "strength": "slight", "shown_first": "b", "time": "2023-05-18 19:57:27"}
    vote |= {"a_acceptable": True, "b_acceptable": False, "reason": "b is wrong", "reasons": ["wrong"]}
    row = {"prompt": "2+2=", "response_a": "4", "response_b": "5", "model_a": "x", "model_b": "y"}
    memory, _ = load(jsonl(tmp_path / "f.jsonl", row | {"votes": [vote, {"annotator": "t07", "choice": "tie"}]}))
    first, second = memory.episodes()[0].steps
    choice, up, down, tie = memory.feedback.values()
    assert (choice.value, choice.shown) == ({"chosen": first.id, "strength": "slight"}, (second.id, first.id))
    assert (choice.who, choice.comment, choice.reasons) == ("t06", "b is wrong", ("wrong",))
    assert choice.at == datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)
    assert [(item.kind, item.value, item.target.step_id) for item in (up, down)] == [
        ("thumb", {"up": True}, first.id),
        ("thumb", {"up": False}, second.id),
    ]
    assert (tie.value, tie.who, first.tags["model"], second.tags["model"]) == ({"tie": True}, "t07", "x", "y")


def test_where_the_order_on_screen_is_unknown_neither_side_is_favoured(tmp_path: Path) -> None:
    """200 pairs: the chosen answer stands first in about half (within five standard deviations, 35)."""
    rows = [{"prompt": f"{n}+2=", "chosen": f"{n + 2}", "rejected": "?"} for n in range(200)]
    memory, _ = load(jsonl(tmp_path / "f.jsonl", *rows))
    first = sum(item.shown[0] == item.value["chosen"] for item in memory.feedback.values())  # type: ignore[index,call-overload]
    assert abs(first - 100) < 35


@pytest.mark.parametrize(
    ("column", "value", "at"),
    [
        ("time", "2023-05-18 19:57:27", datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("created_at", "2023-05-18T21:57:27+02:00", datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("timestamp", "2023-05-18T19:57:27Z", datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("timestamp", 1684439847, datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("timestamp", "1684439847", datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("timestamp", 1684439847000, datetime(2023, 5, 18, 19, 57, 27, tzinfo=UTC)),
        ("date", "2023-05-18", datetime(2023, 5, 18, tzinfo=UTC)),
        ("nothing", "2023-05-18", NOW),
    ],
)
def test_a_files_own_dates_are_kept(column: str, value: Any, at: datetime, tmp_path: Path) -> None:
    """Pitfall: imported dates overwritten."""
    memory, _ = load(jsonl(tmp_path / "f.jsonl", PAIRS["preference"] | {column: value}))
    (feedback,) = memory.feedback.values()
    assert feedback.at == at
    assert {step.at for step in memory.steps.values()} == {at}


def test_steps_say_where_they_came_from(tmp_path: Path) -> None:
    memory, _ = load(jsonl(tmp_path / "f.jsonl", "", PAIRS["preference"]))
    (step, _other) = memory.steps.values()
    assert step.tags == {"source": "f.jsonl", "line": "2", "format": "preference"}
    assert (step.policy_version, step.surface, step.terminated) == (None, "import", True)


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    row = PAIRS["preference"] | {"score_chosen": 3, "annotator": "t1", "source": None}
    _, result = load(jsonl(tmp_path / "f.jsonl", row))
    assert result.unused == {"score_chosen": 1}
    assert "columns not used: score_chosen" in result.line()


def test_whose_feedback_it_is_can_be_told_and_a_file_can_tell_itself(tmp_path: Path) -> None:
    """'simulated' stays visible through import."""
    other = {"prompt": "x", "chosen": "y", "rejected": "z", "origin": "simulated"}
    memory, _ = load(jsonl(tmp_path / "f.jsonl", PAIRS["preference"], other), origin="model", role="expert")
    assert [(item.origin, item.role) for item in memory.feedback.values()] == [
        ("model", "expert"),
        ("simulated", "expert"),
    ]


BAD = [
    ({"prompt": "2+2=", "chosen": "4"}, "The column 'rejected' is missing or null"),
    ({"prompt": "2+2=", "chosen": "4", "rejected": None}, "The column 'rejected' is missing or null"),
    ({"prompt": "2+2=", "chosen": 4, "rejected": "5"}, "The column 'chosen' is not text"),
    ({"prompt": " \n", "chosen": "4", "rejected": "5"}, "The prompt is empty"),
    ({"prompt": "2+2=", "chosen": "4\n", "rejected": " 4"}, "Chosen and rejected are the same"),
    ({"prompt": "2+2=", "chosen": "a\x00b", "rejected": "5"}, "U+0000"),
    ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "annotator": "x" * 300}, "who"),
    ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "timestamp": 1.7e18}, "The column 'timestamp' is no time"),
    ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "time": "soon"}, "The column 'time' is no time"),
    ({"prompt": "2+2=", "chosen": "4", "rejected": "5", "reasons": ["x" * 300]}, "reasons"),
    ('{"prompt": "2+2=", "chosen": "\\ud800", "rejected": "5"}', "surrogate"),
    ('{"prompt": "2+2=", "chosen": "4", "rejected": NaN}', "NaN is not JSON"),
    ('{"prompt": "2+2=", "chosen": "4", "rejected": "5"', "The row is not JSON"),
    ("[1, 2]", "The row is no JSON object but a list"),
    ("null", "The row is no JSON object but null"),
]


@pytest.mark.parametrize(("row", "reason"), BAD, ids=lambda value: None)
def test_a_bad_row_is_rejected_with_its_line_and_the_good_ones_are_kept(row: Any, reason: str, tmp_path: Path) -> None:
    """F6: every bad row with its line number and reason; chosen = rejected after stripping is refused with a count."""
    good, rejects = rows_of(
        jsonl(tmp_path / "f.jsonl", PAIRS["preference"], "", row, {"prompt": "a", "chosen": "b", "rejected": "c"})
    )
    assert len(good) == 2
    assert [reject.line for reject in rejects] == [3]
    assert reason in rejects[0].detail


BAD_OF_A_FORMAT = {
    "hh": [
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: x\n\nAssistant: c"},
            "part before the last turn",
        ),
        ({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: a"}, "does not end with an Assistant turn"),
        ({"chosen": "\n\nAssistant: b", "rejected": "\n\nAssistant: c"}, "no Human turn"),
        ({"chosen": "a\n\nAssistant: b", "rejected": "a\n\nAssistant: c"}, "does not begin with"),
    ],
    "preference-chat": [
        (
            {"chosen": [USER, FOUR], "rejected": [FOUR | {"role": "user"}, FIVE]},
            "prompts before chosen and rejected differ",
        ),
        ({"chosen": [FOUR], "rejected": [FIVE]}, "There is no prompt"),
        ({"prompt": [USER], "chosen": [USER, USER], "rejected": [FIVE]}, "does not end with an assistant message"),
        ({"prompt": [USER], "chosen": [FOUR, USER, FOUR], "rejected": [FIVE]}, "more than one message"),
        ({"prompt": [USER], "chosen": [], "rejected": [FIVE]}, "no list of messages"),
        ({"prompt": [{"role": "wizard", "content": "x"}], "chosen": [FOUR], "rejected": [FIVE]}, "unknown role"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "chosen": [FOUR], "rejected": [FIVE]},
            "content is not text",
        ),
        (
            {"prompt": [USER], "chosen": [{"role": "assistant", "tool_calls": [{}]}], "rejected": [FIVE]},
            "no function name",
        ),
    ],
    "labelled": [
        ({"prompt": "a", "completion": "b", "label": "maybe"}, "not true or false"),
        ({"prompt": "a", "completion": "b", "label": None}, "label is missing"),
        ({"prompt": "a", "completion": " ", "label": True}, "answer is empty"),
        ({"prompt": "a", "completion": "b", "label": True, "value": -0.5}, "contradicts the label"),
        ({"messages": [FOUR], "label": True}, "no prompt before the answer"),
        ({"messages": [USER], "label": True}, "no single assistant message"),
    ],
    "ratings": [
        ({"prompt": "a", "response": "b", "scores": {"x": 9}}, "outside its scale"),
        ({"prompt": "a", "response": "b", "scores": {"x": "good"}}, "not a finite number"),
        ({"prompt": "a", "response": "b"}, "no rating"),
        (
            {"prompt": "a", "completions": [{"response": "b", "annotations": {"x": {"Rating": "N/A"}}}]},
            "No completion has a rating",
        ),
        ({"prompt": "a", "completions": [{"text": None}]}, "no list of answers"),
    ],
    "stepwise": [
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True]}, "not one label a step"),
        ({"prompt": "a", "completions": ["b"], "labels": [7]}, "A label is none"),
        ({"prompt": "a", "completions": ["b"], "labels": [None]}, "No step has a label"),
        ({"prompt": "a", "completions": [1], "labels": [True]}, "no list of texts"),
    ],
    "openai-preference": [
        (
            {"input": {"messages": []}, "preferred_output": [FOUR], "non_preferred_output": [FIVE]},
            "no list of messages",
        ),
        (
            {"input": {"messages": [USER]}, "preferred_output": [USER], "non_preferred_output": [FIVE]},
            "not one assistant message",
        ),
        ({"input": "x", "preferred_output": [FOUR], "non_preferred_output": [FIVE]}, "no object with messages"),
    ],
    "chat": [
        ({"messages": [USER]}, "no assistant message to learn from"),
        ({"messages": [FOUR]}, "no assistant message to learn from"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "empty"),
        ({"messages": "hello"}, "no list of messages"),
        ({"messages": [USER, FOUR], "reward": 7}, "reward is out of range"),
    ],
    "alpaca": [
        ({"instruction": "a", "output": None}, "'output' is missing"),
        ({"instruction": "a", "instances": []}, "exactly one"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "'history' is no list"),
    ],
    "sharegpt": [
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "sum(2)"}]},
            "not JSON with a name",
        ),
        ({"conversations": [{"from": "nobody", "value": "a"}]}, "unknown role"),
        ({"conversations": [{"from": "human", "value": 7}, {"from": "gpt", "value": "b"}]}, "content is not text"),
    ],
    "votes": [
        ({"prompt": "a", "response_a": "b", "response_b": "c", "choice": "left-ish"}, "A choice is none"),
        ({"prompt": "a", "response_a": True, "response_b": "c", "choice": "a"}, "neither text nor messages"),
        ({"prompt": "a", "response_a": "b", "response_b": "c", "votes": []}, "no list of votes"),
        ({"prompt": "a", "response_a": "b", "response_b": "c", "choice": "a", "shown_first": "c"}, "neither side"),
        (
            {"prompt": "a", "response_a": "b", "response_b": "c", "votes": [{"choice": "a", "a_acceptable": "so so"}]},
            "not true or false",
        ),
    ],
}


@pytest.mark.parametrize(
    ("format", "row", "reason"),
    [(name, row, reason) for name, cases in BAD_OF_A_FORMAT.items() for row, reason in cases],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_format_says_what_is_wrong_with_a_row(
    format: str, row: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    good, (reject,) = rows_of(jsonl(tmp_path / "f.jsonl", row), format=format)
    assert good == []
    assert reason in reject.detail


def test_an_unknown_format_lists_the_known_ones_and_the_columns_seen(tmp_path: Path) -> None:
    """F6: an undetectable file is an error that helps."""
    with pytest.raises(DataError, match=r"(?s)columns bar, foo.*votes: .*hh: "):
        rows_of(jsonl(tmp_path / "f.jsonl", {"foo": 1, "bar": 2}))


def test_a_format_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"no file format 'prefrence'. Did you mean 'preference'"):
        rows_of(jsonl(tmp_path / "f.jsonl", PAIRS["preference"]), format="prefrence")


def test_some_bad_rows_at_the_top_do_not_hide_the_format(tmp_path: Path) -> None:
    good, rejects = rows_of(jsonl(tmp_path / "f.jsonl", "oops", {"foo": 1}, *[PAIRS["preference"]] * 3))
    assert (len(good), [reject.line for reject in rejects]) == (3, [1, 2])


def test_a_format_of_ones_own_by_module_and_name(tmp_path: Path) -> None:
    good, rejects = rows_of(
        jsonl(tmp_path / "f.jsonl", {"q": "2+2=", "good": "4", "poor": "5"}), format=f"{__name__}:MINE"
    )
    assert ([step.action.content for step in good[0].steps], rejects) == (["4", "5"], [])
    with pytest.raises(RegistryError, match="is no FileFormat but dict"):
        rows_of(tmp_path / "f.jsonl", format=f"{__name__}:PAIRS")


def _mine(row: Row) -> Draft:
    state = (Message(role="user", content=row.text("q")),)
    sides = [Message(role="assistant", content=row.text(name)) for name in ("good", "poor")]
    return pair(DraftStep(state, sides[0]), DraftStep(state, sides[1], attempt=1), Said())


MINE = FileFormat("mine", "q, good, poor", lambda row: None, _mine)


def test_a_time_without_a_zone_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(RecordError, match="time zone"),
        read(jsonl(tmp_path / "f.jsonl", USER), now=datetime(2026, 1, 1)),
    ):
        pass
