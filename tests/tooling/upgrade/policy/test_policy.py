"""What a repository says about its upgrades, and what is inferred where it says nothing.

python -m pytest tests/tooling/upgrade/policy -q
"""

from pathlib import Path

import pytest

from tooling.cli.errors import UsageError
from tooling.upgrade.policy.import_names import import_names
from tooling.upgrade.policy.read import read_policy

TABLE = """\
[project]
name = "app"
dependencies = ["vllm>=0.11"]

[tool.areal.upgrade]
exclude = ["examples"]

[tool.areal.upgrade.packages.vllm]
repository = "vllm-project/vllm"
scope = "variant-only"
variants = ["gpu"]
range = "raise"

[tool.areal.upgrade.packages.Megatron_Core]
imports = ["megatron.core"]

[tool.areal.upgrade.variants.gpu]
manifests = ["pyproject.toml"]
lock = "uv.lock"

[[tool.areal.upgrade.families]]
packages = ["torch", "vllm"]
why = "compiled together"

[[tool.areal.upgrade.places]]
package = "vllm"
file = "Dockerfile"
pattern = "vllm-openai:v{version}"
"""


def policy_of(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    return read_policy(tmp_path)


def test_a_table_is_read_as_it_stands(tmp_path):
    policy = policy_of(tmp_path, TABLE)
    vllm = policy.package("vllm")
    assert vllm is not None
    assert (vllm.scope, vllm.variants, vllm.range) == (
        "variant-only",
        ("gpu",),
        "raise",
    )
    assert vllm.declared
    core = policy.package("megatron-core")
    assert core is not None
    assert core.imports == ("megatron.core",)
    assert not core.declared
    assert [family.packages for family in policy.family("torch")] == [("torch", "vllm")]
    assert policy.followers[0].pattern == "vllm-openai:v{version}"
    assert policy.exclude == ("examples",)
    assert not policy.inferred


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ('range = "raise"', 'rnage = "raise"', "", "did you mean 'range'?"),
        ('range = "raise"', "range = 2", "", "'keep' or 'raise'"),
        ('range = "raise"', 'range = "third"', "", "'keep' or 'raise'"),
        ('variants = ["gpu"]', 'variants = ["gpus"]', ".packages.vllm", "did you mean 'gpu'?"),
        ('lock = "uv.lock"', 'lock = "../uv.lock"', None, "../uv.lock"),
        ('manifests = ["pyproject.toml"]', "manifests = []", ".variants.gpu", "no manifests"),
        ('manifests = ["pyproject.toml"]', "manifests = [1]", "", "a text"),
        ('packages = ["torch", "vllm"]', 'packages = ["torch"]', ".families.0", "fewer than two"),
        ("vllm-openai:v{version}", "vllm-openai:v1", ".places.0", "{version}"),
        ('exclude = ["examples"]', 'exclude = "examples"', "", "a list of texts"),
        ("[tool.areal.upgrade]", "[tool.areal.upgrade.unknown]", "", "unknown"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_table(tmp_path, old, new, where, said):
    with pytest.raises(UsageError) as refused:
        policy_of(tmp_path, TABLE.replace(old, new))
    if where is not None:
        assert refused.value.where == f"pyproject.toml: [tool.areal.upgrade{where}]"
    assert said in str(refused.value)


def test_a_damaged_file_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="is not TOML"):
        policy_of(tmp_path, "[tool\n")


def test_without_a_table_the_declared_and_imported_packages_are_watched(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/a.py").write_text("import vllm.sampling_params as s, os\n    from megatron.core import x\n")
    (tmp_path / "app/b.py").write_text("def f():\n    from vllm import LLM\n")
    text = '[project]\nname = "app"\ndependencies = ["vllm>=0.11", "megatron-core", "peft", "app[x]"]\n'
    policy = policy_of(tmp_path, text)
    assert [(each.distribution, each.imports) for each in policy.packages] == [
        ("megatron-core", ("megatron.core",)),
        ("vllm", ("vllm",)),
    ]
    assert policy.inferred


def test_twin_manifests_are_variants_and_tell_the_scopes(tmp_path):
    (tmp_path / "a.py").write_text("import torch, vllm, ray\n")
    (tmp_path / "uv.lock").write_text("version = 1\n")
    (tmp_path / "uv.vllm.lock").write_text("version = 1\n")
    (tmp_path / "pyproject.vllm.toml").write_text('[project]\ndependencies = ["torch>=2.10", "vllm==0.19.1", "ray"]\n')
    policy = policy_of(tmp_path, '[project]\nname = "app"\ndependencies = ["torch<2.11", "ray"]\n')
    assert [(each.name, each.lock) for each in policy.variants] == [("default", "uv.lock"), ("vllm", "uv.vllm.lock")]
    assert {each.distribution: (each.scope, each.variants) for each in policy.packages} == {
        "ray": ("shared", ()),
        "torch": ("divergent", ()),
        "vllm": ("variant-only", ("vllm",)),
    }


def test_an_installation_beside_the_code_says_the_import_names(tmp_path):
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    information = site / "odd_name-1.0.dist-info"
    for folder in (information, site / "surprise", site / "space/ours"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-name\nVersion: 1.0\n")
    files = ("surprise/__init__.py", "space/ours/__init__.py", "tests/x.py", "odd_name-1.0.dist-info/METADATA")
    (information / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    assert import_names("odd-name", tmp_path) == ("space.ours", "surprise")
    guessed = {"never-installed": "never_installed", "python-odd": "odd", "odd-gpu": "odd", "odd-cuda12x": "odd"}
    guessed |= {"scikit-odd": "skodd", "python-telegram-bot": "telegram"}
    assert {name: import_names(name, tmp_path) for name in guessed} == {name: (at,) for name, at in guessed.items()}


def test_another_build_is_not_watched_beside_what_it_is_a_build_of(tmp_path):
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "set_up.sh").write_text('CPU="torch-cpu==2.0"\nGPU="torch==2.0"\n')
    assert [each.distribution for each in policy_of(tmp_path, "[project]\n").packages] == ["torch"]


def test_this_repository_watches_what_the_field_moves():
    policy = read_policy(Path())
    declared = {each.distribution: each.declared for each in policy.packages}
    assert declared["vllm"]
    assert declared["torch"]
    assert declared["sglang"]
    assert declared["ray"]
    assert not declared["torchao"]
    assert {"megatron-core", "megatron-bridge", "mbridge", "peft", "ray", "torchao", "datasets"} <= set(declared)
    for each in policy.packages:
        assert each.repository.count("/") == 1
