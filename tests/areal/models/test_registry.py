"""Which families there are, and what is said of one whose tests have not passed."""

import json
import logging
from pathlib import Path

import pytest

from areal.cli.main import main
from areal.models import registry

RECEIPTS = Path(__file__).resolve().parents[3] / ".areal/receipts/model"


@pytest.fixture
def unproven(monkeypatch):
    """qwen2, as an interrupted `areal-new model qwen2` leaves it."""
    monkeypatch.setattr(registry, "UNPROVEN", ("qwen2",))
    registry._warn_unproven.cache_clear()
    yield
    registry._warn_unproven.cache_clear()


def test_an_unproven_family_is_loaded_with_one_warning(unproven, caplog):
    with caplog.at_level(logging.WARNING, logger="areal"):
        assert registry.get_spec("qwen2").name == "qwen2"
        registry.get_spec("qwen2")
        registry.get_spec("qwen3")
    (record,) = caplog.records
    assert "qwen2 is not proven" in record.getMessage()
    assert "`areal-new prove model qwen2`" in record.getMessage()


def test_an_unproven_family_is_listed_as_that(unproven, capsys):
    assert main(["list", "models"]) == 0
    assert "not proven, their tests have not passed: qwen2" in capsys.readouterr().out
    assert main(["list", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unproven"] == ["qwen2"]


def test_the_committed_receipts_and_the_registry_agree_on_what_is_proven():
    receipts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECEIPTS.glob("*.json"))]
    assert receipts
    waiting = {entry["key"] for each in receipts if each["proof"]["state"] != "proven" for entry in each["unproven"]}
    assert waiting == set(registry.UNPROVEN)
    assert set(registry.UNPROVEN) <= set(registry.MODELS)
    assert [entry["key"] for each in receipts for entry in each["unproven"]] == sorted(registry.MODELS)
