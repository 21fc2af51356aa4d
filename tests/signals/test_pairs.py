"""Preferences out of choices, rankings, edits and ratings (S2, F1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import answer, episode, said

from thumbwheel.config import FeedbackSettings
from thumbwheel.errors import SettingError
from thumbwheel.records import Feedback, Message, Passage, Preference
from thumbwheel.signals.pairs import preferences

SETTINGS = FeedbackSettings()
A, B, C = answer("A", "4"), answer("B", "five", attempt=1), answer("C", "IV", attempt=2)


def pairs(*feedback: Feedback, steps: Any = (A, B, C), settings: FeedbackSettings = SETTINGS) -> list[Preference]:
    return preferences([episode(*steps, feedback=list(feedback))], settings).rows


def texts(row: Preference) -> tuple[str, str]:
    return row.chosen.content, row.rejected.content


def choice(id: str = "c", shown: tuple[str, ...] = ("A", "B"), **more: Any) -> Feedback:
    value = {key: more.pop(key) for key in ("chosen", "tie", "both_bad") if key in more}
    return said(id, "choice", value, shown=shown, **more)


def test_a_choice_prefers_the_chosen_to_each_other_one_shown() -> None:
    """S2, F1: best of three makes two pairs."""
    rows = pairs(choice(chosen="C", shown=("A", "B", "C")))
    assert [texts(row) for row in rows] == [("IV", "4"), ("IV", "five")]
    assert all((row.p, row.weight, row.tie, row.margin) == (1.0, 1.0, False, None) for row in rows)
    assert all(row.feedback_ids == ("c",) and row.origin == "person" and row.task_id == "t" for row in rows)


def test_a_tie_is_a_pair_with_p_one_half() -> None:
    """S2: ties are kept as ties, not dropped and not counted as losses."""
    result = preferences([episode(A, B, feedback=[choice(tie=True)])], SETTINGS)
    assert [(row.p, row.tie) for row in result.rows] == [(0.5, True)]
    assert result.account.ties == 1


def test_both_bad_makes_no_pair() -> None:
    result = preferences([episode(A, B, feedback=[choice(both_bad=True)])], SETTINGS)
    assert result.rows == []
    assert result.account.unscored == 1
    assert result.account.dropped.total() == 0


def test_a_ranking_gives_every_pair_it_implies() -> None:
    """F1: C first, A and B share the second place: C>A, C>B, A=B."""
    rows = pairs(said("r", "ranking", {"order": [["C"], ["A", "B"]]}, shown=("A", "B", "C")))
    assert [(texts(row), row.p) for row in rows] == [(("IV", "4"), 1.0), (("IV", "five"), 1.0), (("4", "five"), 0.5)]


def test_an_edit_is_chosen_over_the_original() -> None:
    """F1: the edited answer is chosen; the original keeps its sampled ids, the edit has none; weight 2."""
    step = answer("A", "5", token_ids=(7, 8), tokenizer="tok", passages=(Passage(id="p", text="2+2 is 4"),))
    (row,) = pairs(said("f", "edit", {"text": "4"}, step="A", reasons=("wrong",)), steps=(step,))
    assert texts(row) == ("4", "5")
    assert (row.chosen_token_ids, row.rejected_token_ids, row.tokenizer) == (None, (7, 8), "tok")
    assert (row.weight, row.reasons) == (2.0, ("wrong",))
    assert row.passages == step.passages


def test_chosen_and_rejected_the_same_after_stripping_are_refused_with_a_count() -> None:
    """Pitfall: an edit that only adds a line break is no preference."""
    result = preferences([episode(A, feedback=[said("f", "edit", {"text": " 4\n"}, step="A")])], SETTINGS)
    assert result.rows == []
    assert result.account.dropped == {"chosen and rejected are the same": 1}


def test_a_liked_retry_is_chosen_over_the_disliked_one_with_a_margin() -> None:
    """A thumb is worth +1 or -1, so the margin is 2."""
    (row,) = pairs(said("up", "thumb", {"up": True}, step="B"), said("down", "thumb", {"up": False}, step="A"))
    assert texts(row) == ("five", "4")
    assert (row.margin, row.weight) == (2.0, 1.0)
    assert set(row.feedback_ids) == {"up", "down"}


def test_stars_pair_where_they_differ_enough() -> None:
    """5 and 4 stars are +1 and +0.5: margin 0.5 makes a pair at the default 0.25, none where 0.75 is asked for."""
    stars = [said("a", "stars", {"stars": 5}, step="A"), said("b", "stars", {"stars": 4}, step="B")]
    (row,) = pairs(*stars)
    assert (texts(row), row.margin) == (("4", "five"), 0.5)
    assert pairs(*stars, settings=FeedbackSettings(min_margin=0.75)) == []


def test_ratings_in_other_episodes_of_the_same_task_and_prompt_pair_up() -> None:
    one = episode(A, feedback=[said("up", "thumb", {"up": True}, step="A")])
    other = answer("Z", "22", episode="e2")
    two = episode(other, id="e2", feedback=[said("down", "thumb", {"up": False}, step="Z")])
    assert [texts(row) for row in preferences([one, two], SETTINGS).rows] == [("4", "22")]


def test_ratings_of_answers_to_different_prompts_do_not_pair() -> None:
    other = answer("Z", "22", prompt="2*11=", index=1)
    assert (
        pairs(
            said("up", "thumb", {"up": True}, step="A"), said("d", "thumb", {"up": False}, step="Z"), steps=(A, other)
        )
        == []
    )


def test_a_lone_thumb_has_nothing_to_be_compared_with() -> None:
    account = preferences([episode(A, feedback=[said("up", "thumb", {"up": True})])], SETTINGS).account
    assert (account.read, account.kept, account.unscored) == (1, 0, 1)
    assert account.notes == {"no other answer to compare with": 1}


def test_three_votes_become_one_row_with_a_soft_label() -> None:
    """Two of three for A: p = 2/3, weight 3; every voter's feedback is named."""
    votes = [choice(f"v{i}", chosen=c, who=f"w{i}") for i, c in enumerate("ABA")]
    (row,) = pairs(*votes)
    assert texts(row) == ("4", "five")
    assert row.p == pytest.approx(2 / 3)
    assert (row.weight, row.feedback_ids) == (3.0, ("v0", "v1", "v2"))


def test_a_tie_vote_counts_half_for_each() -> None:
    """One for A, one tie: p = 1.5/2."""
    (row,) = pairs(choice("v0", chosen="A"), choice("v1", tie=True))
    assert (row.p, row.tie) == (0.75, False)


def test_two_who_disagree_are_a_tie_never_decided_by_order_or_alphabet() -> None:
    """Pitfall: two raters disagree and the consensus is always 'A'."""
    for votes in ("AB", "BA"):
        (row,) = pairs(*(choice(f"v{i}", chosen=c) for i, c in enumerate(votes)))
        assert (row.p, row.tie, row.weight) == (0.5, True, 2.0)


def test_an_experts_vote_weighs_four_times_an_end_users() -> None:
    """W1 tiers: 4 against 1: p = 0.8."""
    (row,) = pairs(choice("v0", chosen="A"), choice("v1", chosen="B", role="expert"))
    assert (texts(row), row.p, row.weight) == (("five", "4"), 0.8, 5.0)


def test_simulated_votes_never_share_a_row_with_peoples() -> None:
    rows = pairs(choice("v0", chosen="A"), choice("v1", chosen="B", origin="simulated"))
    assert [(texts(row), row.origin) for row in rows] == [(("4", "five"), "person"), (("five", "4"), "simulated")]


def test_a_pair_compared_directly_takes_no_second_vote_from_ratings() -> None:
    feedback = [
        choice(chosen="A"),
        said("u", "thumb", {"up": True}, step="A"),
        said("d", "thumb", {"up": False}, step="B"),
    ]
    result = preferences([episode(A, B, feedback=feedback)], SETTINGS)
    assert [(row.weight, row.feedback_ids) for row in result.rows] == [(1.0, ("c",))]
    assert result.account.notes == {"rated alike, or compared directly": 2}


def test_implicit_signals_stay_out_unless_asked_for_and_then_stay_apart() -> None:
    """F2: a copied answer beats one left without a word, as a weak pair of its own."""
    feedback = [said("k", "copy", {"share": 1.0}, step="A"), said("l", "abandon", {}, step="B"), choice(chosen="B")]
    result = preferences([episode(A, B, feedback=feedback)], SETTINGS)
    assert [texts(row) for row in result.rows] == [("five", "4")]
    assert result.account.notes["implicit, not used"] == 2
    rows = pairs(*feedback, settings=FeedbackSettings(use_implicit=True))
    assert [(texts(row), row.weight) for row in rows] == [(("five", "4"), 1.0), (("4", "five"), 0.1)]


@pytest.mark.parametrize(
    ("feedback", "reason"),
    [
        (choice(chosen="A", shown=("A", "Z")), "names a step that has not arrived"),
        (choice(chosen="A", shown=("A",)), "value not valid for its kind"),
        (choice(chosen="C"), "value not valid for its kind"),
        (choice(chosen="A", shown=("A", "A")), "chosen and rejected are the same"),
        (said("x", "thumb", {"up": "maybe"}, step="A"), "value not valid for its kind"),
        (said("x", "thums", {"up": True}, step="A"), "unknown kind 'thums'"),
        (said("x", "edit", {"text": "4"}), "edit names no step"),
    ],
)
def test_what_cannot_be_used_is_dropped_with_its_reason(feedback: Feedback, reason: str) -> None:
    result = preferences([episode(A, B, C, feedback=[feedback])], SETTINGS)
    assert result.rows == []
    assert result.account.dropped == {reason: 1}


def test_answers_to_different_prompts_shown_side_by_side_are_refused() -> None:
    other = answer("Z", "22", prompt="2*11=", index=1)
    result = preferences([episode(A, other, feedback=[choice(chosen="A", shown=("A", "Z"))])], SETTINGS)
    assert result.account.dropped == {"answers to different prompts": 1}


def test_sampled_ids_of_two_tokenizers_are_not_mixed() -> None:
    one = answer("A", "4", token_ids=(1,), tokenizer="x")
    other = answer("B", "5", attempt=1, token_ids=(2,), tokenizer="y")
    (row,) = pairs(choice(chosen="A"), steps=(one, other))
    assert (row.chosen_token_ids, row.rejected_token_ids, row.tokenizer) == ((1,), None, "x")


def test_the_same_feedback_in_two_episodes_counts_once() -> None:
    feedback = choice(chosen="A")
    (row,) = preferences([episode(A, B, feedback=[feedback]), episode(C, id="e2", feedback=[feedback])], SETTINGS).rows
    assert row.weight == 1.0


def test_answers_that_differ_in_their_tool_calls_only_are_two_answers() -> None:
    calls = [
        Message.model_validate(
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "sum", "arguments": f'{{"a": {n}}}'}]}
        )
        for n in (1, 2)
    ]
    steps = tuple(step.model_copy(update={"action": call}) for step, call in zip((A, B), calls, strict=True))
    (row,) = pairs(choice(chosen="B"), steps=steps)
    assert row.chosen.tool_calls[0].arguments == '{"a": 2}'


@pytest.mark.parametrize(
    "settings", [{"weights": {"thumb": -1.0}}, {"noise_rates": {"thumb": 0.5}}, {"role_weights": {"expert": -1.0}}]
)
def test_weights_and_noise_rates_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="out of range"):
        preferences([], FeedbackSettings(**settings))


def test_a_kind_of_weight_0_is_set_aside() -> None:
    result = preferences([episode(A, B, feedback=[choice(chosen="A")])], FeedbackSettings(weights={"choice": 0.0}))
    assert (result.rows, result.account.notes) == ([], {"weight 0": 1})


@given(
    st.lists(
        st.tuples(st.sampled_from(["A", "B", "tie"]), st.sampled_from(["end_user", "practitioner", "expert"])),
        min_size=1,
    )
)
def test_merged_votes_weigh_what_the_single_ones_do(votes: list[tuple[str, str]]) -> None:
    """weight * p for each side is the sum of its votes' weights, half of the ties' included."""
    tiers = {"end_user": 1.0, "practitioner": 2.0, "expert": 4.0}
    feedback = [
        choice(f"v{i}", role=role, **({"tie": True} if vote == "tie" else {"chosen": vote}))
        for i, (vote, role) in enumerate(votes)
    ]
    (row,) = pairs(*feedback)
    for_a = sum(tiers[role] * {"A": 1.0, "B": 0.0, "tie": 0.5}[vote] for vote, role in votes)
    total = sum(tiers[role] for _, role in votes)
    p_of_a = row.p if row.chosen.content == "4" else 1 - row.p
    assert row.weight == pytest.approx(total)
    assert row.weight * p_of_a == pytest.approx(for_a)
    assert row.p >= 0.5


@given(
    st.lists(
        st.sampled_from(
            [
                choice(chosen="A"),
                choice(tie=True),
                choice(both_bad=True),
                choice(chosen="Z"),
                said("c", "thumb", {"up": True}, step="A"),
                said("c", "thumb", {"up": False}, step="B"),
                said("c", "comment", {"text": "hm"}),
                said("c", "dwell", {"dwell_s": 3}, step="A"),
                said("c", "edit", {"text": "4"}, step="A"),
                said("c", "ranking", {"order": [["B"], ["A"]]}),
            ]
        )
    )
)
def test_the_account_always_adds_up(feedback: list[Feedback]) -> None:
    numbered = [item.model_copy(update={"id": f"f{i}"}) for i, item in enumerate(feedback)]
    account = preferences([episode(A, B, feedback=numbered)], SETTINGS).account
    assert account.read == len(feedback) == account.kept + account.dropped.total() + account.unscored
