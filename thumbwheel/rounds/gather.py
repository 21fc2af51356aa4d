"""First stage: from the store's episodes to training rows and held-out prompts, each frozen in a snapshot.

Prompts are split for good by their text: a prompt that is held out is held out in every round, for the reward model, the
policy and the judge alike.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar, cast

from pydantic import TypeAdapter

from thumbwheel.collect.noise import NoiseFilter
from thumbwheel.config import Settings, UpdateSettings
from thumbwheel.errors import DataError, NotFound, StoreError
from thumbwheel.formulas.preference import preference_losses
from thumbwheel.grouped import Grouped
from thumbwheel.records import Demonstration, Episode, Labelled, Preference, Prompt
from thumbwheel.rounds.stages import Outcome
from thumbwheel.signals.accounts import Accounted
from thumbwheel.signals.answers import demonstrations, labelled
from thumbwheel.signals.groups import groups
from thumbwheel.signals.pairs import preferences
from thumbwheel.signals.prompts import held_out, prompt_key, prompts, split_by_prompt
from thumbwheel.stores import snapshots
from thumbwheel.stores.base import PolicyVersion, Store

View = Literal["preferences", "labelled", "demonstrations", "groups"]
Row = Preference | Labelled | Demonstration | Grouped
R = TypeVar("R", Preference, Labelled, Demonstration, Grouped)
PROMPTS: TypeAdapter[list[Prompt]] = TypeAdapter(list[Prompt])


def view_for(update: UpdateSettings) -> View:
    """Which view of the feedback the update learns from: SFT copies, KTO takes single thumbs, the rest takes pairs or groups."""
    if update.method == "sft":
        return "demonstrations"
    if update.method == "picks":
        return "groups"
    return "preferences" if preference_losses.get(update.loss).paired else "labelled"


def learned_already(store: Store, live: PolicyVersion | None) -> set[str]:
    """Ids of the feedback that the live policy and its parents were trained on."""
    known = {version.id: version for version in store.versions()}
    seen: set[str] = set()
    while live is not None:
        update = store.update(live.update_id) if live.update_id else None
        seen.update(update.feedback_ids if update else ())
        live = known.get(live.parent) if live.parent else None
    return seen


def gather(store: Store, settings: Settings, *, folder: Path, live: PolicyVersion | None, now: datetime) -> Outcome:
    """Build the round's rows and freeze them. Raises DataError where there is too little to learn from or measure on.

    The outcome holds, for each of `train`, `reward_train` and `reward_held`, a snapshot's hash, path and number of rows;
    `prompts` to measure on; `accounts` (one line each); counts of the feedback `by_kind` and by `origins`.
    """
    known = learned_already(store, live) if settings.round.data == "new" else set()
    quiet = NoiseFilter(settings.feedback)
    episodes = list(quiet(store.episodes(with_feedback_only=True)))
    if not episodes:
        raise DataError(
            f"There is no feedback in {settings.store.url}. Import some (thumbwheel import FILE), "
            "or collect it (thumbwheel serve)."
        )
    share, seed = settings.evals.holdout_share, settings.seed
    view = view_for(settings.update)
    pairs = _fresh(preferences(episodes, settings.feedback), known)
    pairs.account.check(settings.feedback.max_dropped_share)
    accounts = {"noise": quiet.line(), "preferences": pairs.account.line()}
    train: Sequence[Row] = split_by_prompt(pairs.rows, share, seed)[0]
    if view != "preferences":
        rows = _view(view, episodes, settings, known)
        accounts[view] = rows.account.line()
        train = split_by_prompt(rows.rows, share, seed)[0]
    _enough(train, view, settings, used=len(known))
    reward_train, reward_held = split_by_prompt(pairs.rows, share, seed)
    said = [one for episode in episodes for one in episode.feedback if one.id not in known]
    by_kind = {kind: dict(Counter(f.origin for f in said if f.kind == kind)) for kind in sorted({f.kind for f in said})}
    return {
        "view": view,
        "train": _freeze(train, store, folder, now),
        "reward_train": _freeze(reward_train, store, folder, now),
        "reward_held": _freeze(reward_held, store, folder, now),
        "prompts": PROMPTS.dump_python(_held_prompts(store, settings), mode="json"),
        "accounts": accounts,
        "by_kind": by_kind,
        "origins": dict(Counter(one.origin for one in said)),
    }


def read_rows(frozen: Outcome | None) -> list[Row]:
    """The rows of a frozen snapshot, in order; none where nothing was frozen. Raises NotFound, or StoreError on damage."""
    if frozen is None:
        return []
    try:
        rows = snapshots.read(Path(frozen["path"]))
        rows.verify()  # a letter that changed on disk would be learned
    except (NotFound, StoreError) as error:
        error.add_note("Where it belongs to an unfinished round, delete gather.json in the round's folder as well.")
        raise
    return [cast(Row, row) for row in rows]


def _view(view: View, episodes: Iterable[Episode], settings: Settings, known: set[str]) -> Accounted[Row]:
    rows: Accounted[Row]
    if view == "labelled":
        found = labelled(episodes, settings.feedback)
        rows = Accounted(list(_fresh(found, known).rows), found.account)
    elif view == "groups":
        together = groups(episodes, settings.feedback)
        rows = Accounted(list(_fresh(together, known).rows), together.account)
    else:
        copied = demonstrations(episodes, settings.feedback)
        rows = Accounted(list(_fresh(copied, known).rows), copied.account)
    rows.account.check(settings.feedback.max_dropped_share)
    return rows


def _fresh(found: Accounted[R], known: set[str]) -> Accounted[R]:
    """Without the rows whose feedback was all learned from before."""
    rows = [row for row in found.rows if not row.feedback_ids or not known.issuperset(row.feedback_ids)]
    return Accounted(rows, found.account)


def _enough(rows: Sequence[Row], view: View, settings: Settings, *, used: int) -> None:
    least = settings.round.min_preferences
    if len(rows) >= least:
        return
    before = (
        f" The live policy has already learned from {used} feedbacks; set round.data=all to use those again."
        if used
        else ""
    )
    raise DataError(
        f"There are {len(rows)} {view} to train on after holding prompts out; {least} are needed.{before} "
        "Collect more feedback, or lower round.min_preferences if you know why."
    )


def _held_prompts(store: Store, settings: Settings) -> list[Prompt]:
    """Held-out prompts, at most `evals.prompts`, chosen by hash so that more data changes the choice little."""
    share, seed = settings.evals.holdout_share, settings.seed
    held = [prompt for prompt in prompts(store.episodes()) if held_out(prompt, share, seed)]
    if not held:
        raise DataError("No prompt is held out to measure on. Raise evals.holdout_share, or collect more prompts.")
    held.sort(key=lambda prompt: hashlib.sha256(f"measure {seed} {prompt_key(prompt)}".encode()).digest())
    return held[: settings.evals.prompts]


def _freeze(rows: Sequence[Row], store: Store, folder: Path, now: datetime) -> Outcome | None:
    if not rows:
        return None
    snapshot = snapshots.write(rows, folder)
    store.record_snapshot(snapshot.hash, str(snapshot.path), snapshot.feedback_ids, now=now)
    return {"hash": snapshot.hash, "path": str(snapshot.path), "n": snapshot.n}
