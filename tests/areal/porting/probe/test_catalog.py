"""What is read from the files of transformers: what importing it would say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from areal.porting.probe.catalog import installed_catalog, read_catalog


def test_the_files_say_what_importing_them_says() -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    catalog = installed_catalog()
    assert catalog.version == transformers.__version__
    assert dict(catalog.types) == dict(CONFIG_MAPPING_NAMES)
    assert dict(catalog.causal) == dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.parametrize("model_type", ["qwen3", "gpt2", "gpt-sw3", "gemma3_text", "mixtral"])
def test_fields_are_those_of_the_config_class(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields, config = installed_catalog().fields(model_type), CONFIG_MAPPING[model_type]()
    assert len(fields) > 10
    assert [name for name in fields if not hasattr(config, name)] == []
    assert fields["vocab_size"] == config.vocab_size


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installation in the form of earlier versions: one module of tables, parameters in place of fields."""
    texts = {
        "__init__.py": '__version__ = "4.1.0"\n',
        "models/auto/configuration_auto.py": (
            'CONFIG_MAPPING_NAMES: "X" = OrderedDict([("old", "OldConfig"), ("bert-like", "BertLikeConfig")])\n'
            'CONFIG_MAPPING_NAMES.update({"late": "LateConfig"})\n'
        ),
        "models/auto/modeling_auto.py": 'MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("old", ("OldLM", "B"))])\n',
        "models/old/configuration_old.py": (
            "class Base:\n    def __init__(self, size=1, **rest): pass\n"
            "class OldConfig(Base):\n    def __init__(self, depth, width=2, *, gate=False, theta=10.0**2): pass\n"
        ),
        "models/late/configuration_late.py": "class (\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_earlier_versions_are_read_too(package: Path) -> None:
    catalog = read_catalog(package)
    assert catalog is not None
    assert (catalog.version, dict(catalog.causal)) == ("4.1.0", {"old": "OldLM"})
    assert sorted(catalog.types) == ["bert-like", "late", "old"]
    assert catalog.fields("old") == {"size": 1, "depth": None, "width": 2, "gate": False, "theta": None}
    assert catalog.fields("late") == catalog.fields("nobody") == {}


def test_tables_in_an_unknown_form_are_no_catalogue(package: Path) -> None:
    (package / "models/auto/configuration_auto.py").write_text("CONFIG_MAPPING_NAMES = load()\n", encoding="utf-8")
    assert read_catalog(package) is None


def test_nothing_that_reads_the_catalogue_imports_transformers() -> None:
    for module in ("catalog", "lookup", "nearest"):
        file = Path(__file__).parents[4] / f"areal/porting/probe/{module}.py"
        found = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Import)]
        assert not {alias.name for node in found for alias in node.names} & {"torch", "transformers"}
