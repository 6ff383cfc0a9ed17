"""Templates and the little that tests of the gateway share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Helper modules beside the tests; pytest's importlib mode leaves the path alone.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def model():
    """A tiny model with random weights."""
    from tiny_engine import make_model

    return make_model()
