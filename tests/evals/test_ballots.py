"""People vote through files; only the key says who wrote what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from thumbwheel.errors import ConflictError, DataError, NotFound, RecordError
from thumbwheel.evals.ballots import read_votes, write_ballots
from thumbwheel.records import Message, Prompt


def prompts(n: int) -> list[Prompt]:
    return [(Message(role="user", content=f"question {i}"),) for i in range(n)]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def vote_for(path: Path, out: Path, wanted: str, **more: object) -> Path:
    """Somebody who votes for the side whose text begins with `wanted`."""
    filled = [{**line, "vote": "a" if str(line["a"]).startswith(wanted) else "b", **more} for line in lines(path)]
    out.write_text("".join(json.dumps(line) + "\n" for line in filled), encoding="utf-8")
    return out


def ballots(folder: Path, n: int = 10, seed: int = 0) -> tuple[Path, Path]:
    return write_ballots(folder, prompts(n), [f"new {i}" for i in range(n)], [f"old {i}" for i in range(n)], seed=seed)


def test_votes_come_back_to_the_policy_they_were_for(tmp_path: Path) -> None:
    """E2: a person who always likes the new answer gives it every vote, wherever it stood."""
    path, _ = ballots(tmp_path)
    read = read_votes(tmp_path, [vote_for(path, tmp_path / "ann.jsonl", "new")])
    assert read.votes.new_wins.tolist() == [1.0] * 10
    assert read.votes.origin == "person"
    assert (read.voters, read.unvoted) == (1, 0)


def test_the_ballots_do_not_tell(tmp_path: Path) -> None:
    """E2: no field names a policy; the order on the page is not the order of the rows; both sides hold both policies."""
    path, key = ballots(tmp_path, n=20)
    rows = lines(path)
    assert {frozenset(row) for row in rows} == {frozenset({"ballot", "prompt", "a", "b", "vote"})}
    assert sum(str(row["a"]).startswith("new") for row in rows) == 10
    assert [row["prompt"] for row in rows] != [f"question {i}" for i in range(20)]
    assert key.name not in path.read_text(encoding="utf-8")


def test_several_people_and_a_tie(tmp_path: Path) -> None:
    """E2: two votes for new and one against are 2/3; single votes are kept for the noise ceiling."""
    path, _ = ballots(tmp_path, n=1)
    files = [
        vote_for(path, tmp_path / "ann.jsonl", "new"),
        vote_for(path, tmp_path / "bo.jsonl", "new"),
        vote_for(path, tmp_path / "cy.jsonl", "old"),
    ]
    read = read_votes(tmp_path, files)
    assert read.votes.new_wins == pytest.approx([2 / 3])
    assert sorted(read.single[0]) == [0.0, 1.0, 1.0]
    assert read.voters == 3
    row = lines(path)[0]
    (tmp_path / "di.jsonl").write_text(json.dumps({"ballot": row["ballot"], "vote": " TIE "}), encoding="utf-8")
    assert read_votes(tmp_path, [tmp_path / "di.jsonl"]).votes.new_wins.tolist() == [0.5]


def test_a_ballot_without_a_vote_is_no_vote(tmp_path: Path) -> None:
    """Unknown is not zero."""
    path, _ = ballots(tmp_path, n=3)
    row = next(row for row in lines(path) if row["prompt"] == "question 1")
    (tmp_path / "ann.jsonl").write_text(json.dumps({"ballot": row["ballot"], "vote": "tie"}), encoding="utf-8")
    read = read_votes(tmp_path, [tmp_path / "ann.jsonl"])
    assert np.isnan(read.votes.new_wins).tolist() == [True, False, True]
    assert read.unvoted == 2


def test_the_file_that_went_out_may_be_filled_in_and_is_not_overwritten(tmp_path: Path) -> None:
    """X4: writing the same ballots again keeps the votes in them."""
    path, _ = ballots(tmp_path)
    vote_for(path, path, "old")
    ballots(tmp_path)
    assert read_votes(tmp_path).votes.new_wins.tolist() == [0.0] * 10


def test_copies_beside_the_ballots_are_found(tmp_path: Path) -> None:
    """E2: votes-ann.jsonl and votes-bo.jsonl count, whatever else lies there."""
    path, _ = ballots(tmp_path)
    vote_for(path, tmp_path / "votes-ann.jsonl", "new")
    vote_for(path, tmp_path / "votes-bo.jsonl", "old")
    (tmp_path / "notes.jsonl").write_text("not votes", encoding="utf-8")
    read = read_votes(tmp_path)
    assert read.voters == 2
    assert read.votes.new_wins.tolist() == [0.5] * 10


def test_the_same_answer_twice_gets_no_ballot(tmp_path: Path) -> None:
    """E2: people's time is dear."""
    path, _ = write_ballots(tmp_path, prompts(2), ["same", "new"], ["same ", "old"], seed=0)
    assert [row["prompt"] for row in lines(path)] == ["question 1"]
    read = read_votes(tmp_path, [vote_for(path, tmp_path / "ann.jsonl", "new")])
    assert read.votes.new_wins.tolist() == [0.5, 1.0]
    assert read.unvoted == 0


def test_a_conversation_is_shown_with_its_roles(tmp_path: Path) -> None:
    """Q1: the annotator reads what the policy read."""
    talk: Prompt = (
        Message(role="user", content="hi"),
        Message(role="assistant", content="hello"),
        Message(role="user", content="and?"),
    )
    path, _ = write_ballots(tmp_path, [talk], ["x"], ["y"], seed=0)
    assert lines(path)[0]["prompt"] == "[user]\nhi\n\n[assistant]\nhello\n\n[user]\nand?"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"ballot": "nobody", "vote": "a"}', "line 1: no such ballot"),
        ('{"ballot": "ID", "vote": "left"}', "line 1: bad vote"),
        ('{"ballot": "ID", "vote": 1}', "line 1: bad vote"),
        ('{"vote": "a"}', "line 1: no such ballot"),
        ("ID, a", "line 1: not JSON"),
        ("[1, 2]", "line 1: not a ballot"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: str, said: str) -> None:
    """F6: the file, the line and the reason."""
    path, _ = ballots(tmp_path)
    (tmp_path / "bad.jsonl").write_text(row.replace("ID", str(lines(path)[0]["ballot"])), encoding="utf-8")
    with pytest.raises(RecordError, match=said):
        read_votes(tmp_path, [tmp_path / "bad.jsonl"])


def test_two_unlike_votes_of_one_person_are_a_conflict(tmp_path: Path) -> None:
    """E2: alike is once; unlike is a question for that person."""
    path, _ = ballots(tmp_path, n=2)
    one = vote_for(path, tmp_path / "one.jsonl", "new", who="ann")
    again = vote_for(path, tmp_path / "again.jsonl", "new", who="ann")
    assert read_votes(tmp_path, [one, again]).voters == 1
    other = vote_for(path, tmp_path / "other.jsonl", "old", who="ann")
    with pytest.raises(ConflictError, match="'ann' has voted otherwise"):
        read_votes(tmp_path, [one, other])


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    """E2: no key, no file, no vote, another key in the way."""
    with pytest.raises(NotFound, match="no key"):
        read_votes(tmp_path)
    ballots(tmp_path)
    with pytest.raises(NotFound, match="no votes file"):
        read_votes(tmp_path, [tmp_path / "gone.jsonl"])
    with pytest.raises(DataError, match="Nobody has voted yet on the 10 ballots"):
        read_votes(tmp_path)
    with pytest.raises(ConflictError, match="key of other ballots"):
        ballots(tmp_path, seed=9)
