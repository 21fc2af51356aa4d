"""Public sets of human comparisons, read into preferences. They are test data and no part of the package.

The folder is `shared/data` beside the checkout, or under the folder that THUMBWHEEL_SHARED names; each set has a README
with its source and licence.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.records import Message, Preference, Prompt

CHOICE = {"a": 1.0, "b": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class Judged:
    """One pair that people judged. `group` is what must not be on both sides of a split; `votes` are for the chosen answer."""

    preference: Preference
    group: str
    votes: tuple[float, ...] = ()
    subset: str = ""


@dataclass(frozen=True)
class HumanData:
    """A set's usable pairs, and how many were left out, by reason."""

    name: str
    rows: tuple[Judged, ...]
    left_out: dict[str, int]


def data_folder() -> Path | None:
    """The folder of all sets; None where it is not there."""
    named = os.environ.get("THUMBWHEEL_SHARED")
    beside = Path(__file__).resolve().parents[2] / "shared"
    return next((base / "data" for base in ([Path(named)] if named else [beside]) if (base / "data").is_dir()), None)


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        for line in opened:
            yield json.loads(line)


def judged(
    prompt: Prompt, a: str, b: str, p: float, *, group: str, votes: Sequence[float] = (), subset: str = ""
) -> Judged:
    """A pair with P(a is better) = p, turned so that the better answer is `chosen`."""
    turned = p < 0.5
    better, worse = (b, a) if turned else (a, b)
    preference = Preference(
        prompt=prompt,
        chosen=Message(role="assistant", content=better),
        rejected=Message(role="assistant", content=worse),
        p=1 - p if turned else p,
        tie=p == 0.5,
    )
    return Judged(preference, group, tuple(1 - vote if turned else vote for vote in votes), subset)


def read_pairs(folder: Path, name: str) -> HumanData:
    """`pandalm-3annot`, `tulu-human-eval` (the share of votes is the label), `llmbar`, `hh-harmless-test`."""
    kept: list[Judged] = []
    left_out = {"an answer is missing": 0, "both answers are the same": 0}
    for row in lines(folder / name / "pairs.jsonl.gz"):
        a, b = (
            row.get(key) for key in (("response_a", "response_b") if "response_a" in row else ("chosen", "rejected"))
        )
        if not isinstance(a, str) or not isinstance(b, str):  # a spreadsheet turned some answers into NaN or True
            left_out["an answer is missing"] += 1
            continue
        if a.strip() == b.strip():
            left_out["both answers are the same"] += 1
            continue
        turns = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
        prompt = tuple(Message(role=turn["role"], content=turn["content"]) for turn in turns)
        votes = [CHOICE[vote["choice"]] for vote in row.get("votes", ())]
        p = sum(votes) / len(votes) if votes else CHOICE[row.get("gold", "a")]
        group = json.dumps(turns, sort_keys=True)
        kept.append(judged(prompt, a, b, p, group=group, votes=votes, subset=row.get("subset", "")))
    return HumanData(name, tuple(kept), {reason: n for reason, n in left_out.items() if n})


def read_arguments(folder: Path) -> HumanData:
    """`ukp-convarg1`: which of two arguments for one side of a debate is more convincing. Label: gold; group: the debate."""
    name = "ukp-convarg1"
    texts = {(row["debate"], row["arg_id"]): row["text"] for row in lines(folder / name / "arguments.jsonl.gz")}
    kept: list[Judged] = []
    left_out = {"no gold label": 0}
    for row in lines(folder / name / "pairs.jsonl.gz"):
        if row["gold"] is None:
            left_out["no gold label"] += 1
            continue
        a, b = (texts[row["debate"], row[key]] for key in ("arg_a", "arg_b"))
        prompt = (Message(role="user", content=f"{row['debate']} {row['stance']}"),)
        votes = [CHOICE[vote["choice"]] for vote in row["votes"]]
        p = CHOICE[row["gold"]]
        kept.append(judged(prompt, a, b, p, group=row["debate"], votes=votes, subset=row["debate"]))
    return HumanData(name, tuple(kept), left_out)
