"""Personal details taken out of text on the way in, each replaced by its name: `<email>`, `<card>`, `<phone>`.

Patterns find what is written in the usual ways; they are a net, not a promise. What was sampled as token ids is dropped
with the text it spells: ids would give the detail back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from thumbwheel.config import RedactSettings
from thumbwheel.errors import SettingError, explain
from thumbwheel.records import Feedback, Message, Passage, Step

# A letter, digit or underscore below U+2E80: Chinese and Japanese run on without a space before a number or an address.
_W = r"[^\W\u2e80-\U0010ffff]"
_START = rf"(?<!{_W})(?<![.+-])"
_EMAIL = re.compile(rf"{_START}(?:{_W}|[.+-])+@(?:(?:{_W}|-)+\.)+[^\W\d_]{{2,}}(?![-])")
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?!\d|\.\d)")
_PHONE = re.compile(
    rf"{_START}(?:"
    r"\+\d{1,3}[\s.-]?(?:\(\d{1,4}\)[\s.-]?)?\d{1,4}(?:[\s./-]?\d{2,4}){2,4}"  # +49 30 1234 5678
    r"|\(\d{3}\)\s?\d{3}[\s.-]\d{4}"  # (555) 123-4567
    r"|\d{3}[.-]\d{3}[.-]\d{4}"  # 555-123-4567
    r"|1[3-9]\d{9}"  # 13812345678
    r"|0\d{2,4}[/-]\d{5,8}"  # 030/1234567
    rf")(?!{_W}|-|\.\d)"
)
_ID_FIELDS = frozenset({"chosen", "order", "passage_id"})


def luhn(digits: str) -> bool:
    """True where the digits carry a valid check digit, as every payment card number does (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(int(c) for c in reversed(digits) if c.isdigit()):
        doubled = digit * 2 if place % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


class Redactor:
    """Redacts records and counts what it took out, by name.

    Raises SettingError for a pattern that is no regular expression or matches the empty string.
    """

    def __init__(self, settings: RedactSettings | None = None) -> None:
        settings = settings or RedactSettings()
        self.counts: Counter[str] = Counter()
        builtin: Mapping[str, tuple[re.Pattern[str], Callable[[str], bool]]] = {
            "email": (_EMAIL, lambda _: True),
            "card": (_CARD, luhn),
            "phone": (_PHONE, lambda _: True),
        }
        self._rules: list[tuple[str, re.Pattern[str], Callable[[str], bool]]] = []
        self._rules += [(name, *rule) for name, rule in builtin.items() if name in settings.remove]
        self._rules += [(name, _compiled(name, text), lambda _: True) for name, text in settings.patterns.items()]

    def text(self, text: str) -> str:
        """The text with every detail replaced by its name in angle brackets."""
        for name, pattern, valid in self._rules:
            text = pattern.sub(lambda match, name=name, valid=valid: self._replace(match, name, valid), text)  # type: ignore[misc]
        return text

    def step(self, step: Step) -> Step:
        """The step with all its text redacted; sampled ids and their log-probability go where the answer changed."""
        action = self._message(step.action)
        update: dict[str, Any] = {
            "state": tuple(self._message(message) for message in step.state),
            "action": action,
            "result": tuple(self._message(message) for message in step.result),
            "passages": tuple(self._passage(passage) for passage in step.passages),
            "tags": {key: self.text(value) for key, value in step.tags.items()},
        }
        if action != step.action:
            update |= {"token_ids": None, "tokenizer": None, "behaviour_logp": None, "token_logps": None}
        return step.model_copy(update=update)

    def feedback(self, feedback: Feedback) -> Feedback:
        """The feedback with its comment and all text of its value redacted; the step and passage ids in it stay."""
        value: JsonValue = feedback.value
        if isinstance(value, dict):
            value = {key: item if key in _ID_FIELDS else self._tree(item) for key, item in value.items()}
        comment = None if feedback.comment is None else self.text(feedback.comment)
        return feedback.model_copy(update={"value": value, "comment": comment})

    def _replace(self, match: re.Match[str], name: str, valid: Callable[[str], bool]) -> str:
        if not valid(match.group()):
            return match.group()
        self.counts[name] += 1
        return f"<{name}>"

    def _message(self, message: Message) -> Message:
        calls = tuple(
            call.model_copy(update={"arguments": self._arguments(call.arguments)}) for call in message.tool_calls
        )
        tools = None if message.tools is None else self._arguments(message.tools)
        return message.model_copy(update={"content": self.text(message.content), "tool_calls": calls, "tools": tools})

    def _passage(self, passage: Passage) -> Passage:
        title = None if passage.title is None else self.text(passage.title)
        return passage.model_copy(update={"text": self.text(passage.text), "title": title})

    def _arguments(self, arguments: str) -> str:
        """A call's arguments, or tools: JSON stays JSON (a redacted number becomes text), untouched ones stay byte for byte."""
        before = self.counts.copy()
        redacted = self.text(arguments)
        if redacted == arguments or not _is_json(arguments) or _is_json(redacted):
            return redacted
        self.counts = before
        return json.dumps(self._tree(json.loads(arguments)), ensure_ascii=False)

    def _tree(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._tree(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self._tree(item) for key, item in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):
            redacted = self.text(str(value))
            return redacted if redacted != str(value) else value
        return value


def _compiled(name: str, text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise SettingError(f"The 'redact.patterns.{name}' setting is no regular expression: {error}.") from None
    if pattern.match(""):
        raise SettingError(
            explain(
                f"The 'redact.patterns.{name}' setting matches the empty string.",
                allowed="a pattern that needs a character",
                got=text,
            )
        )
    return pattern


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
