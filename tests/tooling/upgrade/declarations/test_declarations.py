"""Every place that declares a version is found, with the span of that version.

python -m pytest tests/tooling/upgrade/declarations -q
"""

from pathlib import Path

import pytest

from tooling.upgrade.declarations.declaration import DeclarationKind, SpecifierStyle, read_requirement
from tooling.upgrade.declarations.find import find_declarations, read_declarations
from tooling.upgrade.declarations.python_projects import scan_toml

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]

[project]
name = "app"
dependencies = [
    'vllm[audio] >= 0.11, < 0.12 ; platform_system == "Linux"',  # why it is capped
    "torch",
]

[project.optional-dependencies]
gpu = ["sglang==0.5.4"]

[dependency-groups]
dev = ["pytest>=8", {include-group = "lint"}]
lint = ["ruff==0.9.0"]

[tool.uv]
override-dependencies = ["transformers==5.3.0"]
constraint-dependencies = ["peft<0.18"]

[tool.uv.sources]
mbridge = { git = "https://host/mbridge.git", rev = "310e8fb" }
verl = { git = "https://host/verl.git", tag = "v0.6.1" }

[tool.poetry.dependencies]
python = "^3.11"
datasets = "^4.0"
ray = { version = "~2.40", extras = ["default"] }
"""


@pytest.fixture
def found(tmp_path):
    def of(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        declarations = find_declarations(tmp_path).found
        for each in declarations:
            content = (tmp_path / each.path).read_bytes().decode()
            assert content[each.start : each.end] == each.specifier, each
            assert content[: each.start].count("\n") + 1 == each.line or "\\\n" in content, each
        return {each.distribution: each for each in declarations}

    return of


def test_pyproject_declares_in_all_its_tables(found):
    all_of = found("pyproject.toml", PYPROJECT)
    said = {name: (each.specifier, each.kind, each.group) for name, each in all_of.items()}
    assert said == {
        "hatchling": (">=1.25", DeclarationKind.BUILD, ""),
        "vllm": (">= 0.11, < 0.12", DeclarationKind.REQUIREMENT, ""),
        "torch": ("", DeclarationKind.REQUIREMENT, ""),
        "sglang": ("==0.5.4", DeclarationKind.REQUIREMENT, "gpu"),
        "pytest": (">=8", DeclarationKind.REQUIREMENT, "dev"),
        "ruff": ("==0.9.0", DeclarationKind.REQUIREMENT, "lint"),
        "transformers": ("==5.3.0", DeclarationKind.OVERRIDE, ""),
        "peft": ("<0.18", DeclarationKind.CONSTRAINT, ""),
        "mbridge": ("310e8fb", DeclarationKind.SOURCE, ""),
        "verl": ("0.6.1", DeclarationKind.SOURCE, ""),
        "datasets": ("^4.0", DeclarationKind.REQUIREMENT, ""),
        "ray": ("~2.40", DeclarationKind.REQUIREMENT, ""),
    }
    assert all_of["vllm"].extras == ("audio",)
    assert all_of["vllm"].marker == 'platform_system == "Linux"'
    assert all_of["mbridge"].style is SpecifierStyle.OPAQUE
    assert all_of["ray"].style is SpecifierStyle.POETRY


def test_twin_manifests_count(found):
    assert found("pyproject.vllm.toml", PYPROJECT)["vllm"].path == "pyproject.vllm.toml"


def test_requirements_with_hashes_references_and_continued_lines(found):
    text = (
        "# pins\r\n-r base.txt\r\n--index-url https://host/simple\r\nvllm==0.11.0 ; python_version >= '3.11' \\\r\n"
        "    --hash=sha256:aa \\\r\n    --hash=sha256:bb\r\ntorch>=2.9  # comment==1\r\n"
    )
    all_of = found("requirements/gpu.txt", text)
    assert all_of["vllm"].specifier == "==0.11.0"
    assert all_of["vllm"].marker == "python_version >= '3.11'"
    assert all_of["vllm"].hashed
    assert all_of["torch"].specifier == ">=2.9"
    assert sorted(all_of) == ["torch", "vllm"]


def test_constraints_ask_for_nothing(found):
    assert found("constraints.txt", "torch==2.13.0\n")["torch"].kind is DeclarationKind.CONSTRAINT


def test_setup_files_are_read_and_never_run(found):
    text = (
        "import os\nos.abort()\nBASE = ['torch>=2.9']\nextras = {'gpu': ['vllm>=0.8.5,<=0.12.0']}\n"
        "setup(name='x', install_requires=BASE + ['transformers'], extras_require=extras)\n"
    )
    all_of = found("setup.py", text)
    assert {name: each.specifier for name, each in all_of.items()} == {
        "torch": ">=2.9",
        "transformers": "",
        "vllm": ">=0.8.5,<=0.12.0",
    }


def test_setup_cfg(found):
    text = (
        "[options]\ninstall_requires =\n    torch>=2.9\n    peft\n[options.extras_require]\ngpu =\n    vllm==0.11.0\n"
    )
    all_of = found("setup.cfg", text)
    assert {name: each.specifier for name, each in all_of.items()} == {"torch": ">=2.9", "peft": "", "vllm": "==0.11.0"}
    assert all_of["vllm"].group == "gpu"


def test_dockerfiles_hold_tags_variables_and_commands(found):
    text = (
        "FROM lmsysorg/sglang:v0.5.10.post1-runtime AS base\nARG VLLM_VERSION=0.11.0\nENV TORCH_VERSION=2.9.1+cu128\n"
        "# RUN pip install peft==0.1\nRUN pip install --no-cache-dir \\\n    'trl>=0.19,<0.20' \\\n"
        "    transformers==4.57.1 && pip uninstall datasets==1\n"
    )
    said = {name: (each.specifier, each.kind) for name, each in found("docker/Dockerfile.gpu", text).items()}
    assert said == {
        "sglang": ("0.5.10.post1", DeclarationKind.IMAGE),
        "vllm": ("0.11.0", DeclarationKind.VARIABLE),
        "trl": (">=0.19,<0.20", DeclarationKind.COMMAND),
        "transformers": ("==4.57.1", DeclarationKind.COMMAND),
    }


def test_ci_files_and_scripts(found):
    workflow = (
        "jobs:\n  t:\n    container:\n      image: vllm/vllm-openai:v0.11.0\n"
        "    steps:\n      - run: uv pip install trl==1.0.0\n"
    )
    assert found(".github/workflows/ci.yml", workflow)["trl"].specifier == "==1.0.0"
    all_of = found(".ci/run", 'readonly WANT="datasets==4.0.0"\npip install "$WANT"\n')
    assert all_of["datasets"].path == ".ci/run"
    assert all_of["vllm-openai"].kind is DeclarationKind.IMAGE


def test_an_image_concerns_the_package_it_is_named_after(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM vllm/vllm-openai:v0.11.0\n")
    declarations = find_declarations(tmp_path)
    assert [each.specifier for each in declarations.of("vllm")] == ["0.11.0"]
    assert declarations.of("openai") == ()


def test_conda_environments_and_hooks(found):
    text = "dependencies:\n  - python=3.11\n  - pytorch::torch=2.9.1=py3_cuda\n  - pip:\n    - vllm==0.11.0\n"
    all_of = found("environment.yml", text)
    assert (all_of["torch"].specifier, all_of["torch"].style) == ("=2.9.1", SpecifierStyle.CONDA)
    assert (all_of["vllm"].specifier, all_of["vllm"].style) == ("==0.11.0", SpecifierStyle.PEP508)
    hooks = "repos:\n- hooks:\n  - id: mypy\n    additional_dependencies: [pydantic==2.9, 'types-PyYAML']\n"
    assert found(".pre-commit-config.yaml", hooks)["pydantic"].kind is DeclarationKind.HOOK


def test_a_damaged_file_is_a_problem_and_the_others_count(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project\n")
    (tmp_path / "setup.py").write_text("def (:\n")
    (tmp_path / "requirements-bad.txt").write_bytes(b"\xff\xfe\n")
    (tmp_path / "requirements.txt").write_text("torch==2.9\n")
    declarations = find_declarations(tmp_path)
    assert [each.distribution for each in declarations.found] == ["torch"]
    assert [problem.partition(":")[0] for problem in declarations.problems] == [
        "pyproject.toml",
        "requirements-bad.txt",
        "setup.py",
    ]


def test_manifests_of_samples_and_fixtures_are_not_the_project_s(tmp_path):
    for folder in ("tests/fixtures", "third_party/x", "docs"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "requirements.txt").write_text("torch==1.0\n")
    assert find_declarations(tmp_path).found == ()


def test_places_of_toml_strings_agree_with_the_parser():
    text = (
        'a.b = "x"\n[t."q.r"]\nk = [1, """m\n""", { z = \'w\' }]\n[[l]]\nv="1"\n[[l]]\nv="2\\n" # "no"\n'
        '[l.s]\nn=2020-01-01\nu="ü" \n'
    )
    strings = {each.path: each for each in scan_toml(text)}
    assert {path: each.value for path, each in strings.items()} == {
        ("a", "b"): "x",
        ("t", "q.r", "k", 1): "m\n",
        ("t", "q.r", "k", 2, "z"): "w",
        ("l", 0, "v"): "1",
        ("l", 1, "v"): "2\n",
        ("l", 1, "s", "u"): "ü",
    }
    assert [each.value for each in strings.values() if not each.literal] == ["2\n"]
    assert all(text[each.start : each.end] == each.value for each in strings.values() if each.literal)


def test_this_repository_s_manifest_scans_to_what_the_parser_reads():
    import tomllib

    text = Path("pyproject.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    for string in scan_toml(text):
        value = document
        for key in string.path:
            value = value[key]
        assert value == string.value


@pytest.mark.parametrize(
    ("text", "specifier"),
    [
        ("a", ""),
        ("a (>=1, <2)", ">=1, <2"),
        ("a[x, y]~=1.2", "~=1.2"),
        ("a==1.*;python_version<'3'", "==1.*"),
        ("a ===1.0+local", "===1.0+local"),
    ],
)
def test_the_specifier_of_a_requirement_is_located(text, specifier):
    parts = read_requirement(text)
    assert parts is not None
    assert text[parts.start : parts.end] == specifier == parts.specifier


@pytest.mark.parametrize("text", ["", "-e .", "a b", "==1", "a=1", "./wheel.whl"])
def test_what_is_no_requirement_is_none(text):
    assert read_requirement(text) is None


def test_another_build_follows_the_distribution_that_it_is_a_build_of():
    text = 'CPU="engine-cpu==1.0"\nGPU="engine==1.0"\nOTHER="engine-tools==0.3"\n'
    builds = {each.distribution: each.build_of for each in read_declarations("set_up.sh", text)}
    assert builds == {"engine-cpu": "engine", "engine": "", "engine-tools": ""}
