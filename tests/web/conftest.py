"""A real server over a real SQLite file, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from thumbwheel.config import Settings
from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running


class StandingClock:
    """Tells the time it was set to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 2, 1, 9, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One server for the tests of a module that do not mind each other's rows."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('shared')}/t.db")
    with running(create_app(store, Settings(), clock=StandingClock())) as url, httpx.Client(base_url=url) as client:
        yield client
    store.close()


@pytest.fixture
def url(store: SqlStore, clock: StandingClock) -> Iterator[str]:
    with running(create_app(store, Settings(), clock=clock)) as url:
        yield url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url) as client:
        yield client
