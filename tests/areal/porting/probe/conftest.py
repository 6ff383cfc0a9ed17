"""Shared by tests of the oracle: the architectures that no library knows, and the development settings."""

import json
from pathlib import Path

import pytest

NOVEL = Path(__file__).parents[1] / "novel"
DEVELOPMENT_SETTINGS = Path(__file__).parents[5] / "shared" / "data" / "dev_models.json"


@pytest.fixture
def novel():
    """Folder of a novel architecture by its name."""
    return lambda name: NOVEL / name


@pytest.fixture(scope="session")
def development_models():
    """[{"model_type", "tiny_kwargs"}] of the development set."""
    if not DEVELOPMENT_SETTINGS.is_file():
        pytest.skip("the development set is not beside this checkout")
    return json.loads(DEVELOPMENT_SETTINGS.read_text(encoding="utf-8"))["models"]
