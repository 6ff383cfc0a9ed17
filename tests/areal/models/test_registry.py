"""Which families there are, and what is said of one whose tests have not passed."""

import json
import logging
from pathlib import Path

import pytest

from areal.api import ModelError
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


def test_a_scaffold_is_neither_loaded_nor_trained(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(registry.SCAFFOLDS, "qwen4", "areal.models.qwen4:SCAFFOLD")
    with pytest.raises(ModelError, match="areal-new update model qwen4 --from FOLDER --trust-source"):
        registry.get_spec("qwen4")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen4"}), encoding="utf-8")
    run = tmp_path / "run.yaml"
    run.write_text(
        f"kind: sft\nmodel: {{path: {tmp_path}}}\ntrain_dataset: {{name: arithmetic_sft}}\n", encoding="utf-8"
    )
    assert main(["train", str(run), f"output_dir={tmp_path / 'out'}"]) == 2
    assert "'qwen4' is a scaffold" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_several_models_becomes_no_reward_model(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(registry.WRAPPERS, "gemma3", "areal.models.gemma3.wrapper:WRAPPER")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}), encoding="utf-8")
    run = tmp_path / "run.yaml"
    run.write_text(
        f"kind: reward_model\nmodel: {{path: {tmp_path}}}\ntrain_dataset: {{name: hhrlhf_preference}}\n",
        encoding="utf-8",
    )
    assert main(["train", str(run), f"output_dir={tmp_path / 'out'}"]) == 2
    assert "no layout of reward models" in capsys.readouterr().err
