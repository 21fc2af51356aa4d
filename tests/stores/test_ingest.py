"""Rows out of records."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path

import pytest

from thumbwheel.errors import RecordError
from thumbwheel.records import Step
from thumbwheel.stores.ingest import prepare_feedback, prepare_steps
from thumbwheel.stores.sql import open_store
from thumbwheel.stores.tables import micros, time_of
from thumbwheel.testing.clock import NOON
from thumbwheel.testing.samples import a_step, a_thumb


def test_a_row_carries_the_records_own_digest() -> None:
    """F4. The store's time stamp isn't part of what was said."""
    step, said = a_step("s1", text="Grüße 🚀"), a_thumb("f1", received_at=NOON)
    assert prepare_steps([step]).rows[0]["digest"] == step.digest()
    assert prepare_feedback([said], now=NOON).rows[0]["digest"] == a_thumb("f1").digest()


def test_the_record_is_canonical_json(tmp_path: Path) -> None:
    """S2: keys sorted, no spaces, characters as they are."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step("s1", text="Grüße 🚀", tags={"b": "2", "a": "1"})])
    connection = sqlite3.connect(tmp_path / "store.db")
    (text,) = connection.execute("SELECT record FROM steps").fetchone()
    connection.close()
    assert text.startswith('{"action":{"content":"Grüße 🚀","name":null,"role":"assistant"')
    assert '"tags":{"a":"1","b":"2"}' in text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_times_are_exact_to_the_microsecond() -> None:
    """F3. 1 January 2000 is 946 684 800 s after 1970 (10957 days)."""
    time = datetime.fromisoformat("2000-01-01T02:00:00.000001+02:00")
    assert micros(time) == 946_684_800_000_001
    assert time_of(946_684_800_000_001) == time
    for edge in ("0001-01-01T00:00:00.000001+00:00", "9999-12-31T23:59:59.999999+00:00"):
        assert time_of(micros(datetime.fromisoformat(edge))) == datetime.fromisoformat(edge)


def test_text_that_no_database_takes_is_refused_before_it_is_queued(tmp_path: Path) -> None:
    """Pitfall: a comment with a lone surrogate gave a 500 and lost the label. `model_construct` stands for a record that
    was never checked."""
    unchecked = a_thumb("f1").model_copy(update={"comment": "\ud800"})
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(RecordError, match=r"'f1' .*surrogate"):
            store.add_feedback([a_thumb("f0"), unchecked], now=NOON)
        assert store.counts()["feedback"] == 0


def test_a_time_without_zone_is_refused(tmp_path: Path) -> None:
    """F3."""
    noon = datetime(2026, 1, 1, 12)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step("s1")])
        for act in (
            lambda: store.add_feedback([a_thumb("f1")], now=noon),
            lambda: list(store.episodes(since=noon)),
            lambda: store.orphans(now=noon),
            lambda: store.record_snapshot("h1", "h1.arrow", [], now=noon),
        ):
            with pytest.raises(RecordError, match="time zone"):
                act()


def test_a_field_that_a_later_version_adds_makes_no_conflict(tmp_path: Path) -> None:
    """F4, S1. A row written before the field 'tags' existed: the same payload today is a duplicate, another a conflict."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_steps([a_step("s1")])
    connection = sqlite3.connect(tmp_path / "store.db")
    (text,) = connection.execute("SELECT record FROM steps").fetchone()
    old = json.loads(text)
    del old["tags"]
    connection.execute("UPDATE steps SET digest = 'of the old text', record = ?", (json.dumps(old),))
    connection.commit()
    connection.close()
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        assert store.add_steps([a_step("s1")]).duplicates == ("s1",)
        assert list(store.submit_steps([a_step("s1", text="Other.")]).result(30).conflicts) == ["s1"]
        assert store.step("s1") == Step.model_validate(old)
