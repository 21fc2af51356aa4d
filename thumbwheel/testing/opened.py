"""How the conformance suites get their store, and how they look at what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thumbwheel.records import Episode
from thumbwheel.stores.base import PolicyVersion, Store
from thumbwheel.testing.clock import NOON


def outline(episode: Episode) -> tuple[str, list[str], list[str]]:
    """(episode id, step ids, feedback ids): what a join decides."""
    return episode.id, [step.id for step in episode.steps], [item.id for item in episode.feedback]


def a_version(id: str, *, parent: str | None = None, status: str = "candidate", kind: str = "policy") -> PolicyVersion:
    """A version without update and report."""
    return PolicyVersion(
        id=id,
        kind=kind,
        parent=parent,
        checkpoint=f"models/{id}",
        status=status,
        update_id=None,
        report_id=None,
        at=NOON,
    )


class Opened:
    """How the suite gets its store."""

    def make_store(self, tmp_path: Path) -> Store:
        """Open the store that lives in `tmp_path`; called again with the same folder, open the same data."""
        raise NotImplementedError("derive from StoreConformance and open your store here")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A new, empty store."""
        opened = self.make_store(tmp_path)
        yield opened
        opened.close()
