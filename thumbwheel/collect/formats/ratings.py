"""Answers with numbers: several completions rated on several dimensions (Cui et al. 2023, UltraFeedback), or one a row."""

from __future__ import annotations

from typing import Any

from thumbwheel.collect.formats.base import (
    Draft,
    DraftFeedback,
    DraftStep,
    FileFormat,
    Said,
    formats,
    model_in,
    said_in,
)
from thumbwheel.collect.formats.preference import plain_prompt
from thumbwheel.collect.formats.row import Row, as_number
from thumbwheel.errors import RecordError
from thumbwheel.records import Message

ANSWER = ("response", "completion", "text", "output", "answer")
STARS = ("stars", "rating", "score")
ATTRIBUTES = (
    "helpfulness",
    "correctness",
    "coherence",
    "complexity",
    "verbosity",
)  # 0 to 4 (Wang et al. 2023, HelpSteer)
SCALE, ATTRIBUTE_SCALE, OVERALL_SCALE = (1.0, 5.0), (0.0, 4.0), (1.0, 10.0)
_UNRATED = frozenset({"", "n/a", "na", "none", "null"})


def _recognise(row: Row) -> str | None:
    completions = row.peek("completions")
    if isinstance(completions, list) and completions and all(_is_rated(item) for item in completions):
        return "completions is a list of answers with ratings"
    if not any(isinstance(row.data.get(name), str) for name in ANSWER):
        return None
    if isinstance(row.peek("scores"), dict):
        return "one answer a row with a dictionary of scores"
    if all(row.has(name) for name in ATTRIBUTES):
        return f"one answer a row with {', '.join(ATTRIBUTES)}"
    stars = next((name for name in STARS if row.data.get(name) is not None), None)
    return f"one answer a row with {stars}" if stars else None


def _is_rated(item: Any) -> bool:
    return isinstance(item, dict) and any(isinstance(item.get(name), str) for name in ANSWER)


def _parse(row: Row) -> Draft:
    prompt = plain_prompt(row)
    completions = row.nested("completions")
    if completions is None:
        return _one(row, prompt)
    if not isinstance(completions, list) or not completions or not all(_is_rated(item) for item in completions):
        raise RecordError.of("'completions' is no list of answers.", field="completions", got=completions)
    said = said_in(row)
    steps, feedback = [], []
    for place, item in enumerate(completions):
        answer = next(item[name] for name in ANSWER if isinstance(item.get(name), str))
        model = item.get("model")
        steps.append(DraftStep(prompt, _answer(answer), attempt=place, model=model if isinstance(model, str) else None))
        rated = _rated(item, f"completions.{place}", place, said)
        if rated is not None:
            feedback.append(rated)
    if not feedback:
        raise RecordError("No completion has a rating.", field="completions")
    return Draft(tuple(steps), tuple(feedback))


def _rated(item: dict[str, Any], where: str, place: int, said: Said) -> DraftFeedback | None:
    """The scores of one completion: its dimensions (1 to 5), else its overall score (1 to 10); None where unrated."""
    dimensions = item.get("annotations") or item.get("ratings") or item.get("scores")
    if isinstance(dimensions, dict) and dimensions:
        numbers = {name: _number(value) for name, value in dimensions.items()}
        scores = {name: as_number(value, f"{where}.{name}") for name, value in numbers.items() if not _unrated(value)}
        if scores:
            return _scores(scores, SCALE, place, said)
    overall = item.get("overall_score", item.get("overall"))
    if _unrated(overall):
        return None
    return _scores({"overall": as_number(overall, f"{where}.overall_score")}, OVERALL_SCALE, place, said)


def _number(value: Any) -> Any:
    """A rating as it stands, or inside `{"Rating": …}`."""
    return value.get("Rating", value.get("rating")) if isinstance(value, dict) else value


def _unrated(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _UNRATED)


def _one(row: Row, prompt: tuple[Message, ...]) -> Draft:
    """One answer a row: a dictionary of scores, named attributes, or stars."""
    step = DraftStep(prompt, _answer(row.text(*ANSWER)), model=model_in(row))
    said = said_in(row)
    scale = _scale(row)
    scores = row.nested("scores")
    if isinstance(scores, dict) and scores:
        numbers = {name: as_number(value, f"scores.{name}") for name, value in scores.items() if value is not None}
        return Draft((step,), (_scores(numbers, scale or SCALE, 0, said),))
    if all(row.has(name) for name in ATTRIBUTES):
        numbers = {name: as_number(row.first(name), name) for name in ATTRIBUTES}
        return Draft((step,), (_scores(numbers, scale or ATTRIBUTE_SCALE, 0, said),))
    name = next((name for name in STARS if row.first(name) is not None), None)
    if name is None:
        raise RecordError.of("The row has no rating.", field="stars", allowed="scores, stars, rating or score")
    number = as_number(row.data[name], name)
    if scale is None and number in (1.0, 2.0, 3.0, 4.0, 5.0):
        return Draft((step,), (DraftFeedback("stars", {"stars": int(number)}, on=0, said=said),))
    return Draft((step,), (_scores({"overall": number}, scale or SCALE, 0, said),))


def _scale(row: Row) -> tuple[float, float] | None:
    """The scale from the columns low and high."""
    low, high = row.first("low"), row.first("high")
    return None if low is None or high is None else (as_number(low, "low"), as_number(high, "high"))


def _scores(scores: dict[str, float], scale: tuple[float, float], place: int, said: Said) -> DraftFeedback:
    low, high = scale
    outside = next((name for name, score in scores.items() if not low <= score <= high), None)
    if outside is not None:
        raise RecordError.of(
            "A rating is outside its scale.",
            field=outside,
            allowed=f"[{low:g}, {high:g}]",
            got=scores[outside],
            next="Give the scale in the columns 'low' and 'high', or put ratings of other scales on one.",
        )
    return DraftFeedback("scores", {"scores": dict(scores), "low": low, "high": high}, on=place, said=said)


def _answer(text: str) -> Message:
    return Message(role="assistant", content=text)


formats.add(
    "ratings",
    FileFormat(
        name="ratings",
        columns="instruction (or prompt), completions: [{response, model, annotations: {dimension: {Rating: 1–5}}}]; "
        "or one response a row with scores, stars or a rating",
        recognise=_recognise,
        parse=_parse,
    ),
)
