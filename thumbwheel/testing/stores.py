"""What any store must do: derive a test class from `StoreConformance` and say how to open your store.

    class TestMyStore(StoreConformance):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "data")     # the same folder again: the same data

pytest runs every test of it. Expected values are written out by hand; nothing here asks the store what to expect.
"""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from thumbwheel.errors import ConflictError, NotFound, RecordError
from thumbwheel.records import Feedback, Step
from thumbwheel.stores.base import Store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.lineage import Registry
from thumbwheel.testing.opened import Opened, outline
from thumbwheel.testing.samples import a_retraction, a_step, a_thumb


class Writes(Opened):
    """F4, S4: durable, idempotent, in order."""

    def test_it_has_every_method_of_the_protocol(self, store: Store) -> None:
        """S1."""
        assert isinstance(store, Store)

    def test_an_acknowledged_write_is_there_after_reopening(self, store: Store, tmp_path: Path) -> None:
        """S4."""
        step = a_step("s1", text='Ja, 🚀 é \U0001f468‍\U0001f469‍\U0001f467\nnew line\ttab "quoted" \\ \x7f')
        said = a_thumb("f1", comment="👍🏽 sehr gut", value={"up": True})
        assert store.add_steps([step]).inserted == ("s1",)
        store.add_feedback([said], now=NOON)
        store.close()
        again = self.make_store(tmp_path)
        assert again.step("s1") == step
        assert again.feedback("f1") == said.model_copy(update={"received_at": NOON})
        again.close()

    def test_the_future_resolves_to_the_receipt(self, store: Store) -> None:
        """S4."""
        steps = store.submit_steps([a_step("s1")])
        said = store.submit_feedback([a_thumb("f1", step="elsewhere")], now=NOON)
        assert steps.result(30).inserted == ("s1",)
        assert said.result(30).waiting == ("f1",)

    def test_a_probe_writes_and_leaves_nothing(self, store: Store) -> None:
        """S4: health is a durable write, not a guess."""
        before = store.counts()
        assert store.probe() == store.probe() != ""
        assert store.counts() == before

    def test_nothing_to_write_is_fine(self, store: Store) -> None:
        """F4."""
        assert store.add_steps([]).inserted == ()
        assert store.add_feedback([], now=NOON).inserted == ()

    def test_when_it_happened_is_kept_and_when_it_came_is_noted(self, store: Store) -> None:
        """Pitfall: imported dates overwritten."""
        long_ago = datetime(2019, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
        store.add_steps([a_step("s1", at=long_ago)])
        claimed = datetime(2001, 1, 1, tzinfo=UTC)
        store.add_feedback([a_thumb("f1", at=long_ago, received_at=claimed)], now=NOON)
        found = store.feedback("f1")
        assert found is not None
        assert (found.at, found.received_at) == (long_ago, NOON)
        assert [step.at for step in store.steps()] == [long_ago]

    def test_the_same_again_is_a_duplicate(self, store: Store) -> None:
        """F4."""
        store.add_steps([a_step("s1")])
        store.add_feedback([a_thumb("f1")], now=NOON)
        later = NOON + timedelta(days=1)
        assert store.add_steps([a_step("s1")]).duplicates == ("s1",)
        receipt = store.add_feedback([a_thumb("f1"), a_thumb("f2"), a_thumb("f2")], now=later)
        assert (receipt.inserted, receipt.duplicates) == (("f2",), ("f1", "f2"))
        kept = store.feedback("f1")
        assert kept is not None
        assert kept.received_at == NOON
        assert (store.counts()["steps"], store.counts()["feedback"]) == (1, 2)

    def test_another_payload_under_a_known_id_is_refused_and_its_neighbours_are_kept(self, store: Store) -> None:
        """F4."""
        store.add_feedback([a_thumb("f1", value={"up": True})], now=NOON)
        batch = [a_thumb("f0"), a_thumb("f1", value={"up": False}), a_thumb("f2")]
        receipt = store.submit_feedback(batch, now=NOON).result(30)
        assert receipt.inserted == ("f0", "f2")
        assert list(receipt.conflicts) == ["f1"]
        assert "f1" in receipt.conflicts["f1"]
        with pytest.raises(ConflictError, match="'f1'"):
            store.add_feedback(batch, now=NOON)
        kept = store.feedback("f1")
        assert kept is not None
        assert kept.value == {"up": True}
        with pytest.raises(ConflictError, match="'s1'"):
            store.add_steps([a_step("s1"), a_step("s1", text="Other."), a_step("s2")])
        assert [step.id for step in store.steps()] == ["s1", "s2"]

    def test_what_is_unknown_is_none(self, store: Store) -> None:
        """S1."""
        assert store.step("no") is None
        assert store.feedback("no") is None
        assert store.report("no") is None
        assert store.update("no") is None
        assert store.live() is None
        assert store.versions() == []
        assert store.learned_from("no") == []
        assert list(store.episodes()) == []

    def test_reading_goes_on_after_the_last_one_seen(self, store: Store) -> None:
        """S2."""
        names = [f"s{number}" for number in range(25)]
        random.Random(3).shuffle(names)
        store.add_steps([a_step(name) for name in names])
        store.add_feedback([a_thumb(f"f-{name}") for name in names], now=NOON)
        assert [step.id for step in store.steps()] == names
        assert [step.id for step in store.steps(after=names[9], limit=4)] == names[10:14]
        assert [item.id for item in store.all_feedback(after=f"f-{names[22]}")] == [f"f-{name}" for name in names[23:]]
        assert list(store.steps(limit=0)) == []
        assert list(store.steps(after=names[-1])) == []
        with pytest.raises(NotFound, match="nowhere"):
            list(store.steps(after="nowhere"))

    def test_the_same_payload_from_many_threads_is_one_row(self, store: Store) -> None:
        """Pitfall: a webhook replayed concurrently gave two scores."""
        gate = threading.Barrier(8)

        def send(_: int) -> tuple[int, int]:
            gate.wait()
            receipt = store.add_feedback([a_thumb("f1")], now=NOON)
            return len(receipt.inserted), len(receipt.duplicates)

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(send, range(8)))
        assert sorted(outcomes) == [(0, 1)] * 7 + [(1, 0)]
        assert store.counts()["feedback"] == 1

    def test_many_writers_and_readers_at_once_lose_nothing(self, store: Store) -> None:
        """S4."""
        done = threading.Event()

        def write(worker: int) -> None:
            for number in range(25):
                id = f"{worker}-{number}"
                store.add_feedback([a_thumb(f"f{id}", step=f"s{id}")], now=NOON)
                store.add_steps([a_step(f"s{id}", episode=f"e{id}", task=f"t{id}")])

        def watch() -> list[int]:
            seen = [0]
            while not done.is_set():
                seen.append(sum(1 for _ in store.episodes()))
            return seen

        with ThreadPoolExecutor(5) as pool:
            watching = pool.submit(watch)
            writing = [pool.submit(write, worker) for worker in range(4)]
            for one in writing:
                one.result(60)
            done.set()
            seen = watching.result(60)
        assert seen == sorted(seen)
        counts = store.counts()
        assert (counts["steps"], counts["feedback"], counts["episodes"], counts["waiting"]) == (100, 100, 100, 0)


class Joins(Opened):
    """F4: late, out of order, before its target, corrected."""

    def test_feedback_may_come_before_or_after_its_target(self, store: Store) -> None:
        """F4."""
        early = [a_thumb("f1", step="s2"), a_thumb("f2", episode="e1"), a_thumb("f3", task="t1")]
        assert store.add_feedback(early, now=NOON).waiting == ("f1", "f2", "f3")
        assert store.counts()["waiting"] == 3
        store.add_steps([a_step("s1", index=0)])
        assert store.counts()["waiting"] == 1
        store.add_steps([a_step("s2", index=1)])
        late = [a_thumb("f4", step="s1"), a_thumb("f5", episode="e1"), a_thumb("f6", task="t1")]
        assert store.add_feedback(late, now=NOON).waiting == ()
        assert store.counts()["waiting"] == 0
        assert [outline(it) for it in store.episodes()] == [("e1", ["s1", "s2"], ["f1", "f2", "f3", "f4", "f5", "f6"])]

    def test_the_most_specific_name_counts(self, store: Store) -> None:
        """F4. Feedback on a step that has not come waits, although its episode is there."""
        store.add_steps([a_step("s1", episode="e1", task="t1"), a_step("s2", episode="e2", task="t2")])
        both = a_thumb("f1", step="s2", episode="e1", task="t1")
        absent = a_thumb("f2", step="s9", episode="e1")
        assert store.add_feedback([both, absent], now=NOON).waiting == ("f2",)
        assert [outline(it) for it in store.episodes()] == [("e1", ["s1"], []), ("e2", ["s2"], ["f1"])]

    def test_feedback_on_a_task_is_about_each_of_its_episodes(self, store: Store) -> None:
        """F4."""
        store.add_steps([a_step("s1", episode="e1"), a_step("s2", episode="e2"), a_step("s3", episode="e3", task="t3")])
        store.add_feedback([a_thumb("f1", task="t1"), a_thumb("f2", episode="e2")], now=NOON)
        assert [outline(it)[2] for it in store.episodes()] == [["f1"], ["f1", "f2"], []]
        assert [item.id for item in store.feedback_for(task_id="t1")] == ["f1", "f2"]
        assert [item.id for item in store.feedback_for(episode_id="e1")] == ["f1"]
        assert store.feedback_for(task_id="t3") == []
        assert store.feedback_for(episode_id="nowhere") == []
        with pytest.raises(RecordError, match="task_id or an episode_id"):
            store.feedback_for()

    def test_orphans_are_those_that_waited_too_long(self, store: Store) -> None:
        """F4."""
        store.add_feedback([a_thumb("old", step="gone")], now=NOON)
        store.add_feedback([a_thumb("young", step="gone")], now=NOON + timedelta(hours=20))
        store.add_feedback([a_thumb("joined", step="s1")], now=NOON)
        store.add_steps([a_step("s1")])
        now = NOON + timedelta(hours=25)
        assert [item.id for item in store.orphans(now=now)] == ["old"]
        assert [item.id for item in store.orphans(now=now, older_than_h=4.5)] == ["old", "young"]
        assert store.orphans(now=now, older_than_h=1e30) == []
        with pytest.raises(RecordError, match="finite"):
            store.orphans(now=now, older_than_h=float("nan"))
        store.add_steps([a_step("gone", episode="e2")])
        assert store.orphans(now=now + timedelta(days=30)) == []

    def test_corrections_hold_in_whatever_order_they_arrive(self, store: Store) -> None:
        """F4. "b" corrects "a" and "c" corrects "b": the last word stands. All 24 orders."""
        for n, order in enumerate(itertools.permutations("sabc")):
            records: dict[str, Step | Feedback] = {
                "s": a_step(f"s{n}", episode=f"e{n}", task=f"t{n}"),
                "a": a_thumb(f"a{n}", step=f"s{n}"),
                "b": a_thumb(f"b{n}", step=f"s{n}", supersedes=f"a{n}", value={"up": False}),
                "c": a_thumb(f"c{n}", step=f"s{n}", supersedes=f"b{n}"),
            }
            for name in order:
                _store(store, records[name])
        assert [outline(it) for it in store.episodes()] == [(f"e{n}", [f"s{n}"], [f"c{n}"]) for n in range(24)]
        assert store.counts()["feedback"] == 72

    def test_a_retraction_leaves_nothing(self, store: Store) -> None:
        """F4. Retracting a correction doesn't bring back what it corrected. All 24 orders."""
        for n, order in enumerate(itertools.permutations("sabc")):
            records: dict[str, Step | Feedback] = {
                "s": a_step(f"s{n}", episode=f"e{n}", task=f"t{n}"),
                "a": a_thumb(f"a{n}", step=f"s{n}"),
                "b": a_thumb(f"b{n}", step=f"s{n}", supersedes=f"a{n}"),
                "c": a_retraction(f"c{n}", of=f"b{n}", step=f"s{n}"),
            }
            for name in order:
                _store(store, records[name])
        assert [outline(it) for it in store.episodes()] == [(f"e{n}", [f"s{n}"], []) for n in range(24)]
        assert list(store.episodes(with_feedback_only=True)) == []
        assert store.feedback_for(episode_id="e3") == []

    def test_nobody_corrects_what_another_person_said(self, store: Store) -> None:
        """F4. Another person's correction is plain feedback; their retraction is nothing."""
        store.add_steps([a_step("s1")])
        store.add_feedback([a_thumb("f1", who="ann")], now=NOON)
        store.add_feedback(
            [a_thumb("f2", who="bob", supersedes="f1"), a_retraction("f3", of="f1", who="eve")], now=NOON
        )
        store.add_feedback(
            [a_thumb("f4", who=None, supersedes="f1"), a_thumb("f5", who=None, supersedes="f4")], now=NOON
        )
        assert [outline(it)[2] for it in store.episodes()] == [["f1", "f2", "f5"]]

    def test_steps_come_in_order_and_the_last_one_says_how_it_ended(self, store: Store) -> None:
        """F3, S2. A regenerated reply is the same index, next attempt."""
        store.add_steps(
            [a_step("c", index=1, truncated=True, stop_reason="timeout"), a_step("b", attempt=1), a_step("a")]
        )
        store.add_steps([a_step("d", episode="e2")])
        store.add_steps(
            [a_step("f", episode="e3", terminated=True, truncated=True), a_step("g", episode="e4", terminated=False)]
        )
        first, silent, both, going = store.episodes()
        assert outline(first) == ("e1", ["a", "b", "c"], [])
        assert (first.terminated, first.truncated, first.stop_reason) == (False, True, "timeout")
        assert (silent.terminated, silent.truncated, silent.stop_reason) == (True, False, None)
        assert (both.terminated, both.truncated) == (True, True)
        assert (going.terminated, going.truncated) == (False, False)

    def test_episodes_stream_in_order_of_arrival_over_many_pages(self, store: Store) -> None:
        """S2."""
        numbers = list(range(1050))
        random.Random(5).shuffle(numbers)
        store.add_steps([a_step(f"s{n}", episode=f"e{n}", task=f"t{n}") for n in numbers])
        store.add_steps([a_step(f"r{n}", episode=f"e{n}", task=f"t{n}", index=1) for n in sorted(numbers)])
        store.add_feedback([a_thumb(f"f{n}", step=f"r{n}") for n in range(0, 1050, 7)], now=NOON)
        found = [outline(it) for it in store.episodes()]
        assert found == [(f"e{n}", [f"s{n}", f"r{n}"], [f"f{n}"] if n % 7 == 0 else []) for n in numbers]
        assert [it.id for it in store.episodes(with_feedback_only=True)] == [f"e{n}" for n in numbers if n % 7 == 0]

    def test_since_keeps_what_is_new_in_steps_or_in_feedback(self, store: Store) -> None:
        """C5: late feedback brings an old episode back."""
        hour = timedelta(hours=1)
        store.add_steps([a_step(f"s{n}", episode=f"e{n}", task=f"t{n}", at=NOON + n * hour) for n in range(4)])
        store.add_feedback([a_thumb("f0", step="s0")], now=NOON + 9 * hour)
        store.add_feedback([a_thumb("f1", step="s1")], now=NOON + hour)
        assert [it.id for it in store.episodes(since=NOON + 2 * hour)] == ["e0", "e2", "e3"]
        assert [it.id for it in store.episodes(since=NOON + 2 * hour, with_feedback_only=True)] == ["e0"]


class StoreConformance(Writes, Joins, Registry):
    """Everything a store must do."""


def _store(store: Store, record: Step | Feedback) -> None:
    if isinstance(record, Step):
        store.add_steps([record])
    else:
        store.add_feedback([record], now=NOON)
