"""Joining in either order, corrections and retractions (F4)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_records import AT, feedback, step

from thumbwheel.collect.join import in_force, join
from thumbwheel.errors import ConflictError
from thumbwheel.records import Feedback
from thumbwheel.stores.sql import open_store


def ids(items: list[Feedback]) -> list[str]:
    return [item.id for item in items]


def test_a_correction_takes_the_place_of_what_it_names() -> None:
    """F4: whatever came first."""
    first, second = feedback("f1"), feedback("f2", value={"up": False}, supersedes="f1")
    assert ids(in_force([first, second])) == ids(in_force([second, first])) == ["f2"]


def test_a_retraction_leaves_nothing() -> None:
    chain = [feedback("f1"), feedback("f2", supersedes="f1"), feedback("r", retracts=True, supersedes="f2")]
    assert in_force(chain) == in_force(chain[::-1]) == []


def test_nobody_corrects_another_persons_feedback() -> None:
    mine, theirs = feedback("f1", who="ann"), feedback("f2", who="bob", supersedes="f1")
    assert ids(in_force([mine, theirs])) == ["f1", "f2"]


def test_a_feedback_that_names_itself_stands() -> None:
    assert ids(in_force([feedback("f1", supersedes="f1")])) == ["f1"]


def test_the_same_feedback_twice_counts_once_and_another_under_its_id_is_refused() -> None:
    """F4: idempotent by key."""
    assert ids(in_force([feedback("f"), feedback("f")])) == ["f"]
    with pytest.raises(ConflictError, match="'f' came twice"):
        in_force([feedback("f"), feedback("f", value={"up": False})])


@pytest.mark.parametrize("names", [{"step_id": "A"}, {"episode_id": "e"}, {"task_id": "t"}])
def test_feedback_finds_its_episode_by_step_episode_or_task(names: dict[str, str]) -> None:
    joined = join([step()], [feedback("f", **names)])
    assert ids(list(joined.episodes[0].feedback)) == ["f"]
    assert joined.waiting == []


@pytest.mark.parametrize(
    "names", [{"step_id": "Z"}, {"episode_id": "z"}, {"task_id": "z"}, {"step_id": "Z", "task_id": "t"}]
)
def test_feedback_whose_target_has_not_arrived_waits(names: dict[str, str]) -> None:
    """F4: the most specific name counts alone."""
    joined = join([step()], [feedback("f", **names)])
    assert (ids(joined.waiting), joined.episodes[0].feedback) == (["f"], ())


def test_feedback_on_a_task_belongs_to_each_of_its_episodes() -> None:
    joined = join([step("A"), step("B", episode="e2")], [feedback("f", task_id="t")])
    assert [ids(list(episode.feedback)) for episode in joined.episodes] == [["f"], ["f"]]


def test_steps_stand_in_order_of_index_and_attempt() -> None:
    steps = [step("C", index=1), step("B", attempt=1), step("A", attempt=0)]
    (episode,) = join(steps, []).episodes
    assert [s.id for s in episode.steps] == ["A", "B", "C"]


STEPS = [
    step("A"),
    step("B", index=1, minute=1),
    step("C", episode="e2", minute=2),
    step("D", episode="e3", task="t3", truncated=True),
]
FEEDBACK = [
    feedback("f1", step_id="A", minute=5),
    feedback("f2", step_id="A", supersedes="f1", value={"up": False}, minute=4),
    feedback("f3", episode_id="e2", minute=3, who="ann"),
    feedback("f4", episode_id="e2", retracts=True, supersedes="f3", who="ann", minute=9),
    feedback("f5", task_id="t", minute=1),
    feedback("f6", step_id="nowhere"),
    feedback("f7", step_id="D", supersedes="f3", who="bob"),
]


@given(st.permutations(STEPS), st.permutations(FEEDBACK))
def test_the_order_of_arrival_changes_nothing(steps: list, said: list) -> None:
    """F4, property: every order gives the same episodes."""
    joined = join(steps, said)
    by_id = {episode.id: episode for episode in joined.episodes}
    assert {id: ids(list(episode.feedback)) for id, episode in by_id.items()} == {
        "e": ["f5", "f2"],
        "e2": ["f5"],
        "e3": ["f7"],
    }
    assert ids(joined.waiting) == ["f6"]
    assert (by_id["e3"].terminated, by_id["e3"].truncated) == (False, True)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.permutations([*STEPS, *FEEDBACK]))
def test_the_store_joins_alike(tmp_path: Path, arrivals: list) -> None:
    """F4: the pure rules and the database's agree, record by record in any order."""
    store = open_store(f"sqlite:///{tmp_path / str(hash(tuple(r.id for r in arrivals)))}.db")
    try:
        for record in arrivals:
            if isinstance(record, Feedback):
                store.add_feedback([record], now=AT + timedelta(days=1))
            else:
                store.add_steps([record])
        stored = {
            episode.id: (
                ids(list(episode.feedback)),
                [s.id for s in episode.steps],
                episode.terminated,
                episode.truncated,
            )
            for episode in store.episodes()
        }
    finally:
        store.close()
    joined = join(
        [r for r in arrivals if not isinstance(r, Feedback)], [r for r in arrivals if isinstance(r, Feedback)]
    )
    assert stored == {
        e.id: (ids(list(e.feedback)), [s.id for s in e.steps], e.terminated, e.truncated) for e in joined.episodes
    }
