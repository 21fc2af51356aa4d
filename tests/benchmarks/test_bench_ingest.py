"""The write-path benchmark, small: it runs through, and its arithmetic is right."""

import json

import pytest

from benchmarks.ingest import Load, run, thumbs


def test_percentiles_by_hand():
    """1, 2, …, 101 ms: the median is 51 ms, 99 % stayed under 100 ms."""
    load = Load({1: [n / 1000 for n in range(1, 102)]}, {1: 2.0}, {1: 0.202})
    assert load.percentile_ms(1, 0.5) == pytest.approx(51)
    assert load.percentile_ms(1, 0.99) == pytest.approx(100)
    assert load.per_s(1) == pytest.approx(50.5)
    assert load.cpu_ms(1) == pytest.approx(2.0)


def test_rows_are_new_every_time():
    rows = thumbs("x", 10)
    (first, body), (second, _) = next(rows), next(rows)
    assert first != second
    assert json.loads(body)["id"] == first


@pytest.mark.timeout(120)
def test_it_runs_through_and_loses_nothing(tmp_path, monkeypatch):
    """S4: the file it writes says so."""
    monkeypatch.chdir(tmp_path)
    run(2000, tmp_path, turns=1, turn_s=0.3)
    entries = {entry["name"]: entry for entry in json.loads((tmp_path / "build/bench/ingest.json").read_text())}
    [lost] = [entry for name, entry in entries.items() if name.startswith("lost after kill -9")]
    assert (lost["value"], lost["ok"]) == (0, True)
    assert entries["events a second, 8 clients, 2000 in the file"]["value"] > 0
