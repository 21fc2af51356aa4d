"""Whatever the order of arrival, and however it was cut into batches: the same episodes."""

from __future__ import annotations

import random
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.records import Feedback, Step
from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.opened import outline
from thumbwheel.testing.samples import a_step, a_thumb

STEPS = [f"s{n}" for n in range(5)]
EPISODES = ["e0", "e1", "e2"]
TASKS = ["t0", "t1"]
FEEDBACK = [f"f{n}" for n in range(6)]


@st.composite
def records(draw: st.DrawFn) -> list[Step | Feedback]:
    """Some steps (some are missing), and feedback on them, on others, and on each other."""
    found: list[Step | Feedback] = []
    for id in draw(st.lists(st.sampled_from(STEPS), unique=True)):
        fields: dict[str, Any] = {
            "index": draw(st.integers(0, 2)),
            "truncated": draw(st.sampled_from([None, True, False])),
        }
        found.append(a_step(id, episode=draw(st.sampled_from(EPISODES)), task=draw(st.sampled_from(TASKS)), **fields))
    for id in draw(st.lists(st.sampled_from(FEEDBACK), unique=True)):
        kind, name = draw(
            st.sampled_from(
                [("step", s) for s in STEPS] + [("episode", e) for e in EPISODES] + [("task", t) for t in TASKS]
            )
        )
        corrected = draw(st.sampled_from([None, *FEEDBACK]))
        retracts = corrected is not None and draw(st.booleans())
        who = draw(st.sampled_from(["ann", "bob", None]))
        found.append(a_thumb(id, **{kind: name}, supersedes=corrected, retracts=retracts, who=who))
    return found


def expected(records: list[Step | Feedback]) -> dict[str, tuple[list[str], list[str]]]:
    """Episode -> (steps, feedback in force), worked out record by record from the rules in words."""
    steps = [record for record in records if isinstance(record, Step)]
    said = [record for record in records if isinstance(record, Feedback)]
    corrected = {
        item.id for item in said for other in said if other.supersedes == item.id != other.id and other.who == item.who
    }
    in_force = [item for item in said if not item.retracts and item.id not in corrected]
    found = {}
    for episode in {step.episode_id for step in steps}:
        mine = sorted((step for step in steps if step.episode_id == episode), key=lambda step: (step.index, step.id))
        about = [
            item.id
            for item in in_force
            if item.target.step_id in {step.id for step in mine}
            or item.target.episode_id == episode
            or item.target.task_id in {step.task_id for step in mine}
        ]
        found[episode] = ([step.id for step in mine], sorted(about))
    return found


def store_in_batches(store: SqlStore, records: list[Step | Feedback], dice: random.Random) -> None:
    """Send everything in random order, in random batches, some of it twice."""
    rest = records + dice.sample(records, len(records) // 3)
    dice.shuffle(rest)
    while rest:
        size = dice.randint(1, len(rest))
        batch, rest = rest[:size], rest[size:]
        store.submit_feedback([item for item in batch if isinstance(item, Feedback)], now=NOON).result(30)
        store.submit_steps([item for item in batch if isinstance(item, Step)]).result(30)


@settings(max_examples=20, deadline=None)
@given(records(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(some: list[Step | Feedback], dice: random.Random) -> None:
    """F4."""
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        store_in_batches(store, some, dice)
        episodes = list(store.episodes())
        assert {id: (steps, feedback) for id, steps, feedback in map(outline, episodes)} == expected(some)
        arrived = list(dict.fromkeys(step.episode_id for step in store.steps()))
        assert [episode.id for episode in episodes] == arrived
        for episode in episodes:
            assert store.feedback_for(episode_id=episode.id) == list(episode.feedback)
            assert episode.terminated == (not episode.truncated)
        waiting = {item.id for item in store.orphans(now=NOON, older_than_h=-1)}
        names = {name for step in store.steps() for name in (step.id, step.episode_id, step.task_id)}
        assert waiting == {item.id for item in store.all_feedback() if not _target(item) & names}
        assert store.counts()["waiting"] == len(waiting)


def _target(item: Feedback) -> set[str | None]:
    return {item.target.step_id or item.target.episode_id or item.target.task_id}
