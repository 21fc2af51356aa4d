"""Fixtures shared by every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# One thread a worker: two workers with two spinning threads each would wait for one another on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets: `shared/data` beside the checkout, or the folder named by THUMBWHEEL_SHARED."""
    named = os.environ.get("THUMBWHEEL_SHARED")
    for base in ([Path(named)] if named else []) + [ROOT.parent / "shared"]:
        if (base / "data").is_dir():
            return base / "data"
    pytest.skip("the real data sets are absent: no shared/data beside the checkout and THUMBWHEEL_SHARED is not set")
