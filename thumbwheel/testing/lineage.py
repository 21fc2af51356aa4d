"""What any store must do for lineage, people and versions; part of `thumbwheel.testing.stores.StoreConformance`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from thumbwheel.errors import ConflictError, NotFound, RecordError
from thumbwheel.records import Figure
from thumbwheel.stores.base import Store
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.opened import Opened, a_version, outline
from thumbwheel.testing.samples import a_report, a_step, a_thumb, an_update


class Registry(Opened):
    """S3, W3: lineage, people, versions."""

    def test_from_feedback_to_models_and_from_a_person_to_what_must_be_retrained(
        self, store: Store, tmp_path: Path
    ) -> None:
        """S3. u2 started from u1's weights, so it learned from the person too; u3 did not."""
        store.add_feedback([a_thumb("f1", who="ann"), a_thumb("f2", who="bob"), a_thumb("f3", who="cy")], now=NOON)
        for hash, ids in (("h1", ["f1", "f2"]), ("h2", ["f2"]), ("h3", ["f3"])):
            store.record_snapshot(hash, str(tmp_path / f"{hash}.arrow"), ids, now=NOON)
            store.record_snapshot(hash, str(tmp_path / f"{hash}.arrow"), ids, now=NOON)
        store.record_update(an_update("u1", snapshot="h1"))
        store.record_update(an_update("u2", snapshot="h2", parent="u1"))
        store.record_update(an_update("u3", snapshot="h3", feedback_ids=("f3", "f9")))
        assert store.learned_from("f1") == ["u1"]
        assert store.learned_from("f2") == ["u1", "u2"]
        assert store.learned_from("f9") == ["u3"]
        erasure = store.erase_person("ann", now=NOON)
        assert (erasure.who, erasure.feedback, erasure.snapshots, erasure.models) == ("ann", 1, ("h1",), ("u1", "u2"))
        assert erasure.missing == (str((tmp_path / "h1.arrow").resolve()),)
        assert [item.id for item in store.all_feedback()] == ["f2", "f3"]
        assert store.learned_from("f1") == ["u1"]

    def test_erased_feedback_stays_away(self, store: Store, tmp_path: Path) -> None:
        """Pitfall: gone everywhere at the time of the 200; a replay doesn't bring it back."""
        store.add_steps([a_step("s1")])
        store.add_feedback(
            [a_thumb("f1", who="ann"), a_thumb("f2", who="ann", step="gone"), a_thumb("f3", who="bob")], now=NOON
        )
        assert store.erase_person("ann", now=NOON).feedback == 2
        assert store.feedback("f1") is None
        assert [item.id for item in store.all_feedback()] == ["f3"]
        assert [outline(it) for it in store.episodes()] == [("e1", ["s1"], ["f3"])]
        assert store.orphans(now=NOON + timedelta(days=9)) == []
        replay = store.submit_feedback([a_thumb("f1", who="ann"), a_thumb("f4", who="ann")], now=NOON).result(30)
        assert (replay.inserted, list(replay.conflicts)) == (("f4",), ["f1"])
        with pytest.raises(ConflictError, match="'f2'"):
            store.record_snapshot("h1", str(tmp_path / "h1.arrow"), ["f2", "f3"], now=NOON)
        assert store.erase_person("nobody", now=NOON).feedback == 0

    def test_updates_and_reports_come_back_and_may_be_sent_again(self, store: Store, tmp_path: Path) -> None:
        """S3."""
        update = an_update("u1", snapshot="h1", metrics={"loss": 0.693147})
        with pytest.raises(NotFound, match="h1"):
            store.record_update(update)
        store.record_snapshot("h1", str(tmp_path / "h1.arrow"), [], now=NOON)
        report = a_report("r1", figures=(Figure(name="win_rate", value=0.68, low=0.6, high=0.76, n=108),))
        for _ in range(2):
            store.record_update(update)
            store.record_report(report)
        assert store.update("u1") == update
        assert store.report("r1") == report
        with pytest.raises(ConflictError, match="'u1'"):
            store.record_update(an_update("u1", snapshot="h1", metrics={"loss": 0.5}))
        with pytest.raises(ConflictError, match="'r1'"):
            store.record_report(a_report("r1", verdict="hold"))

    def test_promotion_retires_the_one_before_and_rollback_brings_it_back(self, store: Store) -> None:
        """W3."""
        for id in ("v1", "v2", "v3"):
            store.add_version(a_version(id))
        assert store.live() is None
        for id in ("v1", "v2", "v2", "v3"):
            assert store.promote(id, now=NOON) == a_version(id, status="live")
        assert [version.status for version in store.versions()] == ["retired", "retired", "live"]
        assert store.rollback(now=NOON).id == "v2"
        assert store.live() == a_version("v2", status="live")
        assert store.rollback(now=NOON).id == "v1"
        with pytest.raises(NotFound, match="roll back"):
            store.rollback(now=NOON)
        assert [version.status for version in store.versions()] == ["live", "retired", "retired"]
        store.promote("v3", now=NOON)
        assert store.rollback(now=NOON).id == "v1"

    def test_kinds_of_versions_do_not_meet(self, store: Store) -> None:
        """W3."""
        store.add_version(a_version("p1", status="live"))
        store.add_version(a_version("r1", kind="reward", status="live"))
        store.add_version(a_version("p2", status="live", parent="p1"))
        assert [version.id for version in store.versions(kind="reward")] == ["r1"]
        assert (store.live(), store.live(kind="reward")) == (
            a_version("p2", status="live", parent="p1"),
            a_version("r1", kind="reward", status="live"),
        )
        assert store.rollback(now=NOON).id == "p1"
        with pytest.raises(NotFound):
            store.rollback(kind="reward", now=NOON)

    def test_a_version_may_be_held_and_sent_again(self, store: Store) -> None:
        """W3."""
        store.add_version(a_version("v1"))
        assert store.hold("v1", now=NOON).status == "held"
        store.add_version(a_version("v1"))
        assert [version.status for version in store.versions()] == ["held"]
        with pytest.raises(ConflictError, match="'v1'"):
            store.add_version(replace(a_version("v1"), checkpoint="elsewhere"))
        with pytest.raises(RecordError, match="candidate, live, retired, held"):
            store.add_version(a_version("v2", status="shipped"))
        store.record_report(a_report("r1"))
        assert store.promote("v1", now=NOON, report_id="r1").report_id == "r1"
        with pytest.raises(NotFound, match="'r2'"):
            store.promote("v1", now=NOON, report_id="r2")
        store.add_version(a_version("v2"))
        with pytest.raises(NotFound, match="'r2'"):
            store.promote("v2", now=NOON, report_id="r2")
        assert [version.status for version in store.versions()] == ["live", "candidate"]
        with pytest.raises(ConflictError, match="live"):
            store.hold("v1", now=NOON)
        for act in (store.promote, store.hold):
            with pytest.raises(NotFound, match="nowhere"):
                act("nowhere", now=NOON)

    def test_of_many_promotions_at_once_one_is_live(self, store: Store) -> None:
        """W3: atomic."""
        names = [f"v{number}" for number in range(6)]
        for name in names:
            store.add_version(a_version(name))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda name: store.promote(name, now=NOON), names))
        assert sorted(version.status for version in store.versions()) == ["live"] + ["retired"] * 5
