"""The store on SQLite does what any store must do."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.stores.sql import SqlStore, open_store
from thumbwheel.testing.stores import StoreConformance


class TestSqlite(StoreConformance):
    """S1."""

    def make_store(self, tmp_path: Path) -> SqlStore:
        return open_store(f"sqlite:///{tmp_path}/store.db")
