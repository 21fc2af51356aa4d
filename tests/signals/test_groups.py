"""P5: a person's pick or ranking of a group becomes rewards; who said nothing of an answer gives it no reward, never 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_episodes import answer, episode, said, user
from pydantic import ValidationError

from thumbwheel.collect.formats import write
from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import RecordError
from thumbwheel.feedback import check
from thumbwheel.grouped import Grouped, GroupedAnswer, Sampling
from thumbwheel.records import Feedback, Step
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.groups import groups
from thumbwheel.signals.views import views
from thumbwheel.stores import snapshots

SETTINGS = FeedbackSettings()
ABCD = tuple(answer(id, f"answer {id}", attempt=n) for n, id in enumerate("abcd"))


def picks(id: str, chosen: str, shown: str = "abcd", **more: Any) -> Feedback:
    return said(id, "choice", {"chosen": chosen}, shown=tuple(shown), **more)


def ranks(id: str, *places: str, **more: Any) -> Feedback:
    return said(id, "ranking", {"order": [list(place) for place in places]}, **more)


def found(*feedback: Feedback, steps: tuple[Step, ...] = ABCD) -> Accounted[Grouped]:
    return groups([episode(*steps, feedback=list(feedback))], SETTINGS)


def rewards(row: Grouped) -> dict[str, float | None]:
    return {one.step_id: one.reward for one in row.answers}


def test_a_pick_is_one_and_the_others_shown_are_zero() -> None:
    """P5: the third of four -> (0, 0, 1, 0); in the order they were shown."""
    (row,) = found(picks("f", "c", shown="dcba")).rows
    assert rewards(row) == {"d": 0.0, "c": 1.0, "b": 0.0, "a": 0.0}
    assert list(rewards(row)) == ["d", "c", "b", "a"]
    assert (row.votes, row.weight, row.task_id, row.feedback_ids) == (1, 1.0, "t", ("f",))
    assert row.prompt == (user("2+2="),)


def test_a_ranking_is_the_share_of_the_others_that_were_beaten() -> None:
    """P5: a over c over b -> (1, 0, .5); b and c tied below a -> (1, .25, .25)."""
    (row,) = found(ranks("f", "a", "c", "b")).rows
    assert rewards(row) == {"a": 1.0, "c": 0.5, "b": 0.0}
    (row,) = found(ranks("f", "a", "bc")).rows
    assert rewards(row) == {"a": 1.0, "b": 0.25, "c": 0.25}


def test_shown_and_not_ranked_is_unknown_never_zero() -> None:
    """P5, "unknown is not zero"."""
    (row,) = found(ranks("f", "b", "a", shown=tuple("abcd"))).rows
    assert rewards(row) == {"a": 0.0, "b": 1.0, "c": None, "d": None}


def test_several_votes_are_averaged_by_weight() -> None:
    """P5: an expert (weight 4) picks a, an end user (1) picks b: .8 and .2; of c only the expert says something."""
    (row,) = found(picks("f1", "a", "abc", role="expert"), picks("f2", "b", "ab")).rows
    assert rewards(row) == {"a": pytest.approx(0.8), "b": pytest.approx(0.2), "c": 0.0}
    assert (row.votes, row.weight, row.feedback_ids) == (2, 5.0, ("f1", "f2"))


@pytest.mark.parametrize(("value", "reason"), [
    ({"tie": True}, "a tie: no answer has a reward"),
    ({"both_bad": True}, "all shown are bad: labelled, not rewarded"),
])  # fmt: skip
def test_a_tie_and_all_bad_are_counted_and_give_no_reward(value: dict[str, bool], reason: str) -> None:
    result = found(said("f1", "choice", value, shown=("a", "b")))
    assert result.rows == []
    assert (result.account.read, result.account.kept, result.account.unscored) == (1, 0, 1)
    assert result.account.notes == {reason: 1}
    beside = found(said("f1", "choice", value, shown=("a", "b")), picks("f2", "a", "ab"))
    assert rewards(beside.rows[0]) == {"a": 1.0, "b": 0.0}  # the tie took nothing off the mean
    assert beside.rows[0].feedback_ids == ("f2",)


def test_a_ranking_of_equals_is_kept_and_counted_as_a_tie() -> None:
    result = found(ranks("f", "abc"))
    assert set(rewards(result.rows[0]).values()) == {0.5}
    assert result.account.ties == 1


@pytest.mark.parametrize(("feedback", "steps", "reason"), [
    (picks("f", "a", "ax"), ABCD, "names a step that has not arrived"),
    (picks("f", "a", "aa"), ABCD, "a group of one answer"),
    (picks("f", "a", "ab"), (ABCD[0], answer("b", "4", prompt="3+1=")), "answers to different prompts"),
    (picks("f", "z", "ab"), ABCD, "value not valid for its kind"),
    (ranks("f", "a", "z", shown=("a", "b")), ABCD, "value not valid for its kind"),
])  # fmt: skip
def test_what_cannot_be_compared_is_dropped_with_the_reason(
    feedback: Feedback, steps: tuple[Step, ...], reason: str
) -> None:
    """P5: a pick of an answer that was not shown, a group of one, an unknown step, another prompt."""
    result = found(feedback, steps=steps)
    assert result.rows == []
    assert result.account.dropped == {reason: 1}


def test_a_pick_of_what_was_not_shown_is_refused_where_it_comes_in() -> None:
    with pytest.raises(RecordError, match="was not shown"):
        check(picks("f", "z", "ab"))


def test_equal_answers_share_their_reward() -> None:
    """Two answers of one text: which of them was clicked is no difference between them."""
    twins = (answer("a", "four"), answer("b", " four ", attempt=1), answer("c", "five", attempt=2))
    (row,) = found(picks("f", "a", "abc"), steps=twins).rows
    assert rewards(row) == {"a": 0.5, "b": 0.5, "c": 0.0}


def test_origins_stay_apart_and_other_kinds_are_another_views_business() -> None:
    result = found(picks("f1", "a"), picks("f2", "b", origin="simulated"), said("f3", "thumb", {"up": True}, step="a"))
    assert [row.origin for row in result.rows] == ["person", "simulated"]
    assert (result.account.read, result.account.kept, result.account.unscored) == (3, 2, 1)
    assert result.account.notes == {"compares no answers": 1}


def test_the_record_of_the_sampling_is_carried() -> None:
    """P5: ids, log-probabilities, tokenizer and sampling as the step recorded them; a tag that is no number says nothing."""
    tags = {"temperature": "0.7", "top_p": "1.0", "top_k": "0", "template": "t1"}
    first = answer(
        "a", "x", token_ids=(1, 2), token_logps=(-1.0, -0.5), behaviour_logp=-1.5, tokenizer="tok", truncated=True,
        policy_version="v3", tags=tags,
    )  # fmt: skip
    second = answer("b", "y", attempt=1, tags={**tags, "top_k": "many"})
    (row,) = found(picks("f", "a", "ab"), steps=(first, second)).rows
    assert row.answers[0] == GroupedAnswer(
        step_id="a", response=first.action, reward=1.0, ended=False, token_ids=(1, 2), token_logps=(-1.0, -0.5),
        behaviour_logp=-1.5, tokenizer="tok", policy_version="v3",
        sampling=Sampling(temperature=0.7, top_p=1.0, top_k=0, template="t1"),
    )  # fmt: skip
    assert row.answers[0].sampling is not None
    assert row.answers[0].sampling.whole
    assert row.answers[1].sampling is None


@pytest.mark.parametrize("change", [{"top_p": 0.9}, {"top_k": 40}, {"temperature": 0.0}])
def test_a_part_of_the_distribution_is_not_the_whole(change: dict[str, float]) -> None:
    whole = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "template": "t"}
    assert not Sampling.model_validate({**whole, **change}).whole


def test_one_log_probability_a_token() -> None:
    with pytest.raises(ValidationError, match="2 token_ids and 1 token_logps"):
        answer("a", "x", token_ids=(1, 2), token_logps=(-1.0,))
    with pytest.raises(ValidationError, match="stands in the group twice"):
        Grouped(prompt=(user("q"),), answers=(one := GroupedAnswer(step_id="a", response=user("x")), one))


def test_a_step_without_token_logps_has_the_digest_it_always_had() -> None:
    """S2: a field that came later is not in the JSON of those who lack it, so a replay is still a duplicate."""
    assert "token_logps" not in ABCD[0].model_dump(mode="json")


def test_the_view_is_exported_and_frozen(tmp_path: Path) -> None:
    """S3: by name among the views; written as the record itself, and frozen in a snapshot with its lineage."""
    rows = views.get("groups")([episode(*ABCD, feedback=[picks("f", "c")])], SETTINGS).rows
    written = write(rows, tmp_path / "picks.jsonl")
    assert (written.format, written.written) == ("records", 1)
    frozen = snapshots.write(rows, tmp_path)
    assert (frozen.kind, frozen.feedback_ids) == ("grouped", ("f",))
    assert list(snapshots.read(frozen.path)) == rows
