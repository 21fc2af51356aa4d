"""People as judges: a blind ballot file goes out, votes come back, the key stays at home.

    write_ballots(folder, prompts, new_texts, parent_texts, seed=7)
        folder/ballots.jsonl      {"ballot": "…", "prompt": "…", "a": "…", "b": "…", "vote": null}   give this to people
        folder/ballots-key.json   which side was the new policy                                    keep this
    votes = read_votes(folder)    # the ballots file itself, filled in, and copies of it named votes-ann.jsonl, votes-bo.jsonl, …

A person fills in `vote`: "a", "b" or "tie" (or leaves null), and may add `who`. Several people may vote on one ballot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thumbwheel.errors import ConflictError, DataError, NotFound, RecordError, explain
from thumbwheel.evals.judges import Floats, Votes, check_rows, prompt_ids, same_text, sides
from thumbwheel.records import Prompt, digest_of

BALLOTS = "ballots.jsonl"
KEY = "ballots-key.json"
VOTES = "votes-*.jsonl"
_VALUES = {"a": 1.0, "b": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class PeopleVotes:
    """Votes of people. `votes` has the mean vote a ballot; `single` the votes one by one, for the noise ceiling.

    `single[i]` is the list of preferences for the new answer on row i. `voters` counts distinct `who`; `unvoted` the
    ballots that nobody voted on.
    """

    votes: Votes
    single: tuple[tuple[float, ...], ...]
    voters: int
    unvoted: int


def write_ballots(
    folder: Path, prompts: Sequence[Prompt], new: Sequence[str], parent: Sequence[str], *, seed: int
) -> tuple[Path, Path]:
    """Write the ballots (shuffled, sides by `seed`) and the key; returns both paths. Pairs of the same text get no ballot.

    Raises DataError for no prompt or unequal lengths; ConflictError where another key lies in the folder, since
    overwriting it would make its votes unreadable.
    """
    check_rows(prompts, new, parent)
    new_is_a, asked = sides(len(prompts), seed=seed), ~same_text(new, parent)
    # A ballot's id says nothing about the side: it is made of the texts in alphabetical order.
    names = [
        digest_of([i, prompt, sorted(pair)])[:16]
        for i, (prompt, pair) in enumerate(zip(prompt_ids(prompts), zip(new, parent, strict=True), strict=True))
    ]
    key = {
        "judge": "people",
        "seed": seed,
        "rows": [
            {"ballot": name, "prompt": prompt, "new_is": "a" if is_a else "b", "asked": bool(ask)}
            for name, prompt, is_a, ask in zip(names, prompt_ids(prompts), new_is_a, asked, strict=True)
        ],
    }
    ballots = [
        {
            "ballot": names[i],
            "prompt": _readable(prompts[i]),
            "a": new[i] if new_is_a[i] else parent[i],
            "b": parent[i] if new_is_a[i] else new[i],
            "vote": None,
        }
        for i in np.random.default_rng([seed, 1]).permutation(np.flatnonzero(asked))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    key_path, ballots_path = folder / KEY, folder / BALLOTS
    if key_path.exists() and json.loads(key_path.read_text(encoding="utf-8")) != key:
        raise ConflictError(
            f"'{key_path}' is the key of other ballots. Choose another folder, or remove it with its votes."
        )
    _write(key_path, json.dumps(key, indent=1))
    # Votes written into the file that went out are not overwritten by writing the same ballots again.
    if not ballots_path.exists():
        _write(ballots_path, "".join(json.dumps(ballot, ensure_ascii=False) + "\n" for ballot in ballots))
    return ballots_path, key_path


def read_votes(folder: Path, files: Iterable[Path] | None = None) -> PeopleVotes:
    """Votes from `files`, put back to new and parent by the folder's key. Default: ballots.jsonl and every votes-*.jsonl there.

    Each line needs `ballot` and `vote`; other fields are ignored, so people may return the lines they were given. A person
    (`who`; without one, the file's name) who votes twice on a ballot must vote alike. Raises NotFound for a missing key or
    file, RecordError with file and line for a bad one, ConflictError for two unlike votes, DataError where nobody voted.
    """
    key_path = folder / KEY
    if not key_path.exists():
        raise NotFound(
            f"There is no key '{key_path}'. It is written beside the ballots by write_ballots; keep the two together."
        )
    rows = json.loads(key_path.read_text(encoding="utf-8"))["rows"]
    index = {row["ballot"]: i for i, row in enumerate(rows)}
    cast: dict[tuple[str, int], float] = {}
    for path in [folder / BALLOTS, *sorted(folder.glob(VOTES))] if files is None else files:
        for where, line in _lines(path):
            vote = _vote(line, index, where)
            if vote is None:
                continue
            key = (str(line.get("who") or path.name), index[line["ballot"]])
            if cast.setdefault(key, vote) != vote:
                raise ConflictError(
                    f"{where}: '{key[0]}' has voted otherwise on the ballot '{line['ballot']}'. Keep one of the two."
                )
    new_is_a = np.array([row["new_is"] == "a" for row in rows], dtype=bool)
    asked = np.array([row["asked"] for row in rows], dtype=bool)
    single: list[list[float]] = [[] for _ in rows]
    for (_, i), vote in cast.items():
        single[i].append(vote if new_is_a[i] else 1 - vote)
    if not cast and asked.any():
        raise DataError(
            f"Nobody has voted yet on the {int(asked.sum())} ballots of '{folder}'. Fill in \"vote\": a, b or tie."
        )
    new_wins: Floats = np.array([np.mean(votes) if votes else np.nan for votes in single])
    new_wins[~asked] = 0.5
    votes = Votes("people", "person", new_wins, new_is_a, asked, tuple(row["prompt"] for row in rows))
    return PeopleVotes(
        votes,
        tuple(map(tuple, single)),
        len({who for who, _ in cast}),
        sum(not single[i] for i in np.flatnonzero(asked)),
    )


def _vote(line: dict[str, Any], index: dict[str, int], where: str) -> float | None:
    if line.get("ballot") not in index:
        raise RecordError(
            explain(
                f"{where}: no such ballot.", allowed="an id of the ballots file beside the key", got=line.get("ballot")
            ),
            field="ballot",
        )
    vote = line.get("vote")
    if vote is None:
        return None
    if not isinstance(vote, str) or vote.strip().lower() not in _VALUES:
        raise RecordError(explain(f"{where}: bad vote.", allowed='"a", "b", "tie" or null', got=vote), field="vote")
    return _VALUES[vote.strip().lower()]


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"There is no votes file '{path}'.") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"'{path}' is not UTF-8: {error}.") from None
    for number, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        where = f"{path}, line {number}"
        try:
            line = json.loads(row)
        except json.JSONDecodeError as error:
            raise RecordError(f"{where}: not JSON ({error.msg}). Each line is one ballot.") from None
        if not isinstance(line, dict):
            raise RecordError(explain(f"{where}: not a ballot.", allowed="an object with ballot and vote", got=line))
        yield where, line


def _readable(prompt: Prompt) -> str:
    """The conversation as a person reads it; a lone user's turn without its role."""
    if len(prompt) == 1:
        return prompt[0].content
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
