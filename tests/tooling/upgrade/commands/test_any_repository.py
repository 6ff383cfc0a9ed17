"""The command as somebody else installs it, in repositories that have never heard of this project: each way to declare
dependencies, one after the other, with no setting of ours and no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
WHEELS = ROOT / "skills/upgrade-deps/fixtures/shop/wheels"
CLIENT = """from engine import LLM
from engine.utils import Counter


def serve(prompts):
    counter = Counter()
    counter.step()
    return LLM("m").generate(prompts, n=2)
"""
HASH = "--hash=sha256:" + "0" * 64
PROJECT = """[project]
name = "client"
version = "0"
requires-python = ">=3.11"
"""
REPOSITORIES = {
    "uv": {
        "pyproject.toml": PROJECT + 'dependencies = ["engine==1.0"]  # kept\n\n[tool.uv]\npackage = false\n',
        "client.py": CLIENT,
    },
    "poetry": {
        "pyproject.toml": '[tool.poetry]\nname = "client"\nversion = "0"\n\n[tool.poetry.dependencies]\n'
        'python = "^3.11"\n\n[tool.poetry.group.dev.dependencies]\nengine = "1.0"  # kept\n',
        "client.py": CLIENT,
    },
    "pdm": {
        "pyproject.toml": PROJECT
        + 'dependencies = ["engine~=1.0.0"]\n\n[tool.pdm.dev-dependencies]\ntest = ["engine==1.0"]\n',
        "client.py": CLIENT,
    },
    "requirements": {
        "requirements.in": "engine==1.0  # the server\n",
        "requirements.txt": f"# made by pip-compile\nengine==1.0 \\\n    {HASH}\n    # via -r requirements.in\n",
        "requirements-dev.txt": "-r requirements.txt\n-c constraints.txt\ntensor\n",
        "constraints.txt": "engine==1.0\n",
        "client.py": CLIENT,
    },
    "conda": {
        "environment.yml": "name: client\nchannels:\n  - conda-forge\ndependencies:\n  - python=3.11\n  - numpy=2.0\n"
        "  - pip:\n      - engine==1.0  # from the index\n",
        "client.py": CLIENT,
    },
    "setuptools": {
        "setup.cfg": "[metadata]\nname = client\n\n[options]\ninstall_requires =\n    engine==1.0\n    tensor>=1.0\n",
        "setup.py": 'from setuptools import setup\n\nsetup(extras_require={"serve": ["engine==1.0"]})\n',
        "client.py": CLIENT,
    },
    "monorepo": {
        "services/one/pyproject.toml": PROJECT + 'dependencies = ["engine==1.0"]\n',
        "services/one/one/client.py": CLIENT,
        "services/two/pyproject.toml": PROJECT.replace("client", "two") + 'dependencies = ["engine>=1.0,<2"]\n',
        "services/two/two.py": "from engine import LLM\n\nLLM('m').generate('x')\n",
        "tools/requirements.txt": "engine==1.5\n",
        "Dockerfile": "FROM python:3.11\nRUN pip install engine==1.0\n",
    },
}
"""Files of each repository. Nothing in them is for this program."""


def git(root, *words):
    subprocess.run(["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


@pytest.fixture
def command(tmp_path):
    """Runs the installed script outside of our tree, with the wheels as its only index."""
    program = Path(sys.executable).parent / "areal-upgrade-deps"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "PYTHON"))}
    (tmp_path / "no-index").mkdir()
    environment |= {"UV_FIND_LINKS": str(WHEELS), "UV_DEFAULT_INDEX": (tmp_path / "no-index").as_uri()}
    environment |= {"UV_NO_INDEX": "1", "UV_PYTHON": sys.executable, "UV_NO_CONFIG": "1"}
    environment |= {"HOME": str(tmp_path / "home"), "UV_CACHE_DIR": str(tmp_path / "uv"), "NO_COLOR": "1"}

    def run(root, *words, codes=(0,)):
        done = subprocess.run(
            [str(program), *words, "--repo", str(root), "--cache", str(tmp_path / "cache")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in codes, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def repository(root, name):
    for path, text in REPOSITORIES[name].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "-q", "--template=", str(root)], check=True)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    return root


EDITED = {
    "conda": ["environment.yml"],
    "monorepo": ["services/two/pyproject.toml", "tools/requirements.txt"],
    "pdm": ["pyproject.toml"],
    "poetry": ["pyproject.toml"],
    "requirements": ["constraints.txt", "requirements.in"],
    "setuptools": ["setup.cfg", "setup.py"],
    "uv": ["pyproject.toml"],
}
NAMED = {
    "monorepo": ["Dockerfile:2", "services/one/pyproject.toml:5"],
    "requirements": ["requirements.txt:2"],
}
"""What a person has to look at: pins of another version, and files that another tool makes."""


def changed(root):
    """Files that git sees as changed or new, and the lines that were added."""
    status = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "-uall"], capture_output=True, text=True, check=True
    ).stdout
    diff = subprocess.run(["git", "-C", str(root), "diff", "-U0"], capture_output=True, text=True, check=True).stdout
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return sorted(line[3:] for line in status.splitlines()), added


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(REPOSITORIES))
def test_a_repository_that_has_never_heard_of_us(name, command, tmp_path) -> None:
    root = repository(tmp_path / name, name)
    impact = json.loads(command(root, "impact", "engine==2.0", "--json", codes=(10,)))
    assert {each["kind"] for each in impact["findings"]} == {"moved", "param-renamed"}
    planned = json.loads(command(root, "engine==2.0", "--dry-run", "--json", codes=(10,)))
    assert changed(root) == ([], [])
    done = json.loads(command(root, "engine==2.0", "--fix", "--no-summary", "--json"))
    assert [each["path"] for each in planned["declarations"]] == [each["path"] for each in done["declarations"]]
    (client,) = [path for path in REPOSITORIES[name] if path.endswith("client.py")]
    files, added = changed(root)
    assert files == sorted([*EDITED[name], client])
    assert all(any(word in line for word in ("2.0", "<3", "engine.counting", "count=2")) for line in added)
    assert [":".join(each.split(":")[:2]) for each in done["warnings"]] == NAMED.get(name, [])
    if name in ("poetry", "uv"):
        assert "  # kept" in (root / "pyproject.toml").read_text()
    again = json.loads(command(root, "engine==2.0", "--no-summary", "--json"))
    assert again["plan"] == []


@pytest.mark.exhaustive
def test_requirements_that_contradict_each_other_end_with_9_and_change_nothing(command, tmp_path) -> None:
    root = repository(tmp_path / "poetry", "poetry")
    manifest = root / "pyproject.toml"
    manifest.write_text(manifest.read_text() + 'tensor = "^1.0"\n')
    git(root, "commit", "-qam", "tensor")
    done = json.loads(command(root, "engine==2.0", "--json", codes=(9,)))
    assert "engine==2.0 requires tensor>=2,<3; this repository requires engine==2.0" in done["error"]
    assert "tensor>=1.0,<2" in done["error"]
    assert changed(root) == ([], [])


@pytest.mark.exhaustive
def test_the_newest_versions_as_a_table_for_a_pull_request(command, tmp_path) -> None:
    root = repository(tmp_path / "uv", "uv")
    head, line, row = command(root, "latest", "--markdown", codes=(10,)).splitlines()
    assert head == "| package | now | newest | clean up to | first that does not | why |"
    assert line == "| --- | --- | --- | --- | --- | --- |"
    assert row.startswith("| engine | 1.0 | 3.0 | 1.5 | 2.0 | client.py:2 engine.utils.Counter moved")


@pytest.mark.exhaustive
def test_a_downgrade_is_said_to_be_one_before_anything_else_and_what_it_costs(command, tmp_path) -> None:
    root = repository(tmp_path / "uv", "uv")
    manifest = root / "pyproject.toml"
    manifest.write_text(manifest.read_text().replace("1.0", "2.0"))
    (root / "client.py").write_text("from engine.counting import Counter\n\nCounter().step()\n")
    git(root, "commit", "-qam", "newer")
    text = command(root, "engine==1.0", "--dry-run", codes=(10,))
    assert text.splitlines()[0] == "engine 2.0 -> 1.0 is a downgrade"
    assert "engine 2.0 -> 1.0: 2 breaking" in text
    assert "1: breaking moved: engine.counting.Counter moved: it is `engine.utils.Counter` now" in text
