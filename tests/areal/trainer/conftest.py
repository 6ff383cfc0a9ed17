"""Make the runs that these tests share importable: `import runs`, `import pair_runs`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def quick_collections(monkeypatch):
    """Leave what earlier tests imported out of the full collection that a trainer begins with, which takes longer than
    a tiny run."""
    gc.freeze()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture(scope="package", autouse=True)
def unfrozen_afterwards():
    """Give everything back to the collector."""
    yield
    gc.unfreeze()
