"""Personal details taken out at ingestion (S4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_records import feedback, step

from thumbwheel.collect.redact import Redactor, luhn
from thumbwheel.config import RedactSettings
from thumbwheel.errors import SettingError
from thumbwheel.records import Message, Passage, ToolCall


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to ann.lee+x@mail.example.co.uk, please", "write to <email>, please"),
        ("mail:müller@example.de.", "mail:<email>."),
        ("我的邮箱是ann@example.com。", "我的邮箱是<email>。"),
        ("call +49 30 1234 5678 now", "call <phone> now"),
        ("call (555) 123-4567", "call <phone>"),
        ("call 555-123-4567.", "call <phone>."),
        ("电话13812345678，谢谢", "电话<phone>，谢谢"),
        ("030/1234567", "<phone>"),
        ("card 4111 1111 1111 1111!", "card <card>!"),
        ("card 5500-0000-0000-0004", "card <card>"),
        ("378282246310005", "<card>"),
    ],
)
def test_details_written_in_the_usual_ways_are_found(text: str, redacted: str) -> None:
    """S4. The card numbers are the networks' published test numbers."""
    assert Redactor().text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "on 2023-05-18 19:57:27 there were 1,440 minutes",
        "4111 1111 1111 1112 fails the check digit",
        "pi is 3.14159265358979323846",
        "version 1.2.3-4, IP 192.168.100.200, ISBN 978-3-16-148410-0",
        "user@localhost, a @ b, @handle",
        "7800000000 blinks in a lifetime",
        "x = 525600 * 78",
        "",
    ],
)
def test_ordinary_numbers_and_signs_stay(text: str) -> None:
    assert Redactor().text(text) == text


def test_the_check_digit_of_a_card() -> None:
    """The worked example of ISO/IEC 7812-1: 7992739871 takes check digit 3."""
    assert luhn("79927398713")
    assert not any(luhn(f"7992739871{digit}") for digit in "012456789")


def test_what_was_taken_out_is_counted() -> None:
    redactor = Redactor()
    redactor.text("a@b.de, c@d.de, +49 30 1234 5678, 4111111111111111")
    assert redactor.counts == {"email": 2, "phone": 1, "card": 1}


def test_every_text_of_a_step_is_redacted_and_its_sampled_ids_go() -> None:
    """S4: token ids would spell the address out again."""
    call = ToolCall(id="c", name="mail", arguments='{"to": "a@b.de"}')
    before = step(
        text="ask a@b.de",
        state=(Message(role="user", content="I am a@b.de"),),
        result=(Message(role="tool", content="sent to a@b.de", tool_call_id="c"),),
        passages=(Passage(id="p", text="see a@b.de", title="a@b.de"),),
        tags={"note": "a@b.de"},
        token_ids=(1, 2),
        tokenizer="tok",
        behaviour_logp=-3.0,
    )
    before = before.model_copy(update={"action": before.action.model_copy(update={"tool_calls": (call,)})})
    redactor = Redactor()
    after = redactor.step(before)
    assert "a@b.de" not in after.model_dump_json()
    assert (after.token_ids, after.tokenizer, after.behaviour_logp) == (None, None, None)
    assert redactor.counts == {"email": 7}
    assert after.id == before.id


def test_a_step_without_details_comes_back_the_same() -> None:
    before = step(token_ids=(1, 2), behaviour_logp=-3.0)
    assert Redactor().step(before) == before


@pytest.mark.parametrize(
    ("arguments", "redacted"),
    [
        ('{"card": 4111111111111111, "n":  1.50}', {"card": "<card>", "n": 1.5}),
        ('{"a": ["x@y.de", {"x@y.de": null}]}', {"a": ["<email>", {"<email>": None}]}),
    ],
)
def test_the_arguments_of_a_call_stay_json(arguments: str, redacted: Any) -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments}]}
    before = step().model_copy(update={"action": Message.model_validate(call)})
    assert json.loads(Redactor().step(before).action.tool_calls[0].arguments) == redacted


def test_arguments_without_details_stay_byte_for_byte() -> None:
    arguments = '{ "b":1.0,"a" : "\\u00e9" }'
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments}]}
    before = step().model_copy(update={"action": Message.model_validate(call)})
    assert Redactor().step(before).action.tool_calls[0].arguments == arguments


def test_feedback_is_redacted_but_for_the_ids_it_names() -> None:
    redactor = Redactor()
    edit = redactor.feedback(feedback("f", "edit", {"text": "ask a@b.de"}, comment="from c@d.de"))
    assert (edit.value, edit.comment) == ({"text": "ask <email>"}, "from <email>")
    choice = feedback("g", "choice", {"chosen": "13812345678"}, shown=("13812345678", "B"))
    assert redactor.feedback(choice) == choice


def test_patterns_of_ones_own_and_a_choice_of_the_built_in_ones() -> None:
    redactor = Redactor(RedactSettings(remove=("email",), patterns={"account": r"KTO-\d+"}))
    assert redactor.text("KTO-77 a@b.de 555-123-4567") == "<account> <email> 555-123-4567"


@pytest.mark.parametrize(("pattern", "message"), [("(", "no regular expression"), ("a*", "matches the empty string")])
def test_a_bad_pattern_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Redactor(RedactSettings(patterns={"mine": pattern}))


def test_a_long_text_takes_no_time_to_speak_of() -> None:
    """No pattern backtracks: 400 000 characters that look like the start of everything."""
    text = "a." * 100_000 + "+1" * 50_000 + "1 " * 50_000
    assert Redactor().text(text) == text
