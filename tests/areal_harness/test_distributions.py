"""The wheel and the source distribution: what is in them, and that each installs in every Python we claim."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CLAIMED = [name.rpartition(" ")[2] for name in MANIFEST["project"]["classifiers"] if ":: Python :: 3." in name]
INCLUDED = MANIFEST["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
UV = Path(sys.executable).with_name("uv")


def find_python(version: str) -> Path | None:
    """Find an interpreter on the path, or among those of pyenv, whose programs on the path may refuse to run."""
    on_path = shutil.which(f"python{version}")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    candidates = [*([on_path] if on_path else []), *sorted(home.glob(f".pyenv/versions/{version}.*/bin/python"))]
    runs = (
        each for each in candidates if subprocess.run([each, "-V"], capture_output=True, check=False).returncode == 0
    )
    return next(map(Path, runs), None)


def test_the_build_server_tries_the_pythons_that_we_claim() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/package.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["install"]["strategy"]["matrix"]["python"] == CLAIMED
    assert MANIFEST["project"]["requires-python"] == f">={CLAIMED[0]}"


@pytest.mark.exhaustive
def test_the_source_distribution_has_what_git_knows_and_nothing_else(source_file) -> None:
    with tarfile.open(source_file) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    known = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    wanted = {name for name in known if any(f"/{name}/".startswith(f"{each}/") for each in INCLUDED)}
    # .gitignore comes along with hatchling, which obeys it when a wheel is built from the source distribution.
    assert found == wanted | {"pyproject.toml", "PKG-INFO", "README.md", "LICENSE", ".gitignore"}
    assert {"scripts/locks/cpu.txt", "tests/conftest.py", "docs/learn/first-run.md"} <= found


@pytest.mark.exhaustive
def test_a_wheel_of_the_source_distribution_is_the_wheel_of_the_tree(wheel_file, wheel_of_source) -> None:
    contents = []
    for path in (wheel_file, wheel_of_source):
        with zipfile.ZipFile(path) as archive:
            contents.append({each.filename: each.CRC for each in archive.infolist() if "RECORD" not in each.filename})
    assert contents[0] == contents[1]


@pytest.mark.exhaustive
@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", CLAIMED)
@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_it_installs_in_an_empty_environment_of_every_python(kind, python, tmp_path, wheel_file, source_file) -> None:
    """The base, as `pip install areal` gives it: without torch."""
    interpreter = find_python(python)
    if interpreter is None:
        pytest.skip(f"there is no Python {python} here")
    subprocess.run([UV, "venv", "-q", "--python", interpreter, tmp_path / "env"], check=True)

    def play(*words: object) -> str:
        environment = os.environ | {"PATH": f"{tmp_path / 'env/bin'}:{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [str(word) for word in words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    play(UV, "pip", "install", "-q", "--python", "env/bin/python", wheel_file if kind == "wheel" else source_file)
    assert re.search(rf"python\s+{re.escape(python)}", play("areal", "version"), re.IGNORECASE)
    play("areal-review", "explain", "unbounded-wait")
    play("areal", "init", "--package", "digits")
    assert "proven" in play("areal-new", "reward", "my-score")
