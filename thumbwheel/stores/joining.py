"""Steps and feedback joined to episodes, whatever order they arrived in; and what is in force.

Joined: feedback belongs to the episode of the step it names; else to the episode it names; else to every episode of the
task it names. The most specific name counts alone.

In force: a feedback is out of force once another feedback of the same person (`who`; both unknown counts as the same,
since they must know the id) names it in `supersedes`, even if that one is itself superseded or retracted later: a person's
last word on it stands, and a retraction leaves nothing. A retraction is never in force itself. What names another person's
feedback corrects nothing: it is plain feedback (or, if it only retracts, nothing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, exists, select

from thumbwheel.records import Episode, Feedback, Step
from thumbwheel.stores.ingest import in_parts
from thumbwheel.stores.tables import feedback as feedback_table
from thumbwheel.stores.tables import micros, time_of
from thumbwheel.stores.tables import steps as steps_table

PAGE = 200  # rows, or episodes, read at a time

_later = feedback_table.alias("later")
IN_FORCE = feedback_table.c.retracts.is_(False) & ~exists().where(
    _later.c.supersedes == feedback_table.c.id,
    _later.c.id != feedback_table.c.id,
    _later.c.who.is_not_distinct_from(feedback_table.c.who),
)


def step_of(row: Any) -> Step:
    """The step of a table row."""
    return Step.model_validate_json(row.record)


def feedback_of(row: Any) -> Feedback:
    """The feedback of a table row, with the store's time stamp."""
    said = Feedback.model_validate_json(row.record)
    return said.model_copy(update={"received_at": time_of(row.received_us)})


def pages(
    read: Callable[[Select[Any]], Sequence[Any]],
    query: Select[Any],
    seq: Any,
    *,
    after: int,
    limit: int | None,
) -> Iterator[Sequence[Any]]:
    """Rows of `query` in order of `seq` above `after`, a page at a time; no page holds a connection after it is read."""
    left = limit
    while left is None or left > 0:
        wanted = PAGE if left is None else min(PAGE, left)
        rows = read(query.where(seq > after).order_by(seq).limit(wanted))
        if rows:
            yield rows
        if len(rows) < wanted:
            return
        after = rows[-1].seq
        left = None if left is None else left - len(rows)


def feedback_in_force(connection: Connection, keys: Iterable[str]) -> dict[str, list[Feedback]]:
    """Feedback in force by target key, for the keys given."""
    found: defaultdict[str, list[Feedback]] = defaultdict(list)
    columns = (feedback_table.c.target_key, feedback_table.c.record, feedback_table.c.received_us)
    for part in in_parts(keys):
        for row in connection.execute(select(*columns).where(feedback_table.c.target_key.in_(part), IN_FORCE)):
            found[row.target_key].append(feedback_of(row))
    return found


def join(
    connection: Connection,
    episode_ids: Sequence[str],
    *,
    with_feedback_only: bool = False,
    since: datetime | None = None,
) -> list[Episode]:
    """The episodes of those ids, in that order; left out: what the filters do not want.

    `since` keeps episodes with a step that happened, or feedback in force that was received, then or later.
    """
    names: defaultdict[str, list[Any]] = defaultdict(list)
    columns = (steps_table.c.id, steps_table.c.episode_id, steps_table.c.task_id, steps_table.c.at_us)
    for part in in_parts(episode_ids):
        for row in connection.execute(select(*columns).where(steps_table.c.episode_id.in_(part))):
            names[row.episode_id].append(row)
    keys = {id: _keys(id, rows) for id, rows in names.items()}
    said = feedback_in_force(connection, dict.fromkeys(key for some in keys.values() for key in some))
    feedback = {id: [item for key in keys[id] for item in said.get(key, ())] for id in names}
    wanted = [
        id
        for id in episode_ids
        if id in names
        and (feedback[id] or not with_feedback_only)
        and (since is None or _touched(names[id], feedback[id], since))
    ]
    steps = _steps(connection, wanted)
    return [Episode.of(steps[id], feedback[id]) for id in wanted]


def keys_of_task(connection: Connection, task_id: str) -> dict[str, None]:
    """Target keys whose feedback is joined to the task: the task, its episodes, their steps."""
    ids = connection.scalars(select(steps_table.c.episode_id).where(steps_table.c.task_id == task_id).distinct())
    keys = {f"task:{task_id}": None}
    for part in in_parts(list(ids)):
        rows = connection.execute(
            select(steps_table.c.id, steps_table.c.episode_id).where(steps_table.c.episode_id.in_(part))
        )
        for row in rows:
            keys |= {f"episode:{row.episode_id}": None, f"step:{row.id}": None}
    return keys


def keys_of_episode(connection: Connection, episode_id: str) -> dict[str, None]:
    """Target keys whose feedback is joined to the episode: itself, its steps, its task."""
    columns = (steps_table.c.id, steps_table.c.task_id)
    rows = connection.execute(select(*columns).where(steps_table.c.episode_id == episode_id)).all()
    return _keys(episode_id, rows)


def _keys(episode_id: str, rows: Sequence[Any]) -> dict[str, None]:
    keys = {f"episode:{episode_id}": None}
    for row in rows:
        keys |= {f"step:{row.id}": None, f"task:{row.task_id}": None}
    return keys


def _touched(rows: Sequence[Any], feedback: Sequence[Feedback], since: datetime) -> bool:
    return any(row.at_us >= micros(since) for row in rows) or any(
        item.received_at is not None and item.received_at >= since for item in feedback
    )


def _steps(connection: Connection, episode_ids: Sequence[str]) -> dict[str, list[Step]]:
    steps: defaultdict[str, list[Step]] = defaultdict(list)
    columns = (steps_table.c.episode_id, steps_table.c.record)
    for part in in_parts(episode_ids):
        for row in connection.execute(select(*columns).where(steps_table.c.episode_id.in_(part))):
            steps[row.episode_id].append(step_of(row))
    return steps
