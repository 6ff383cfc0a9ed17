"""What `pip install areal` puts into somebody else's environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import areal_harness
from areal.cli.extras import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPTS = MANIFEST["project"]["scripts"]


def test_every_program_of_the_harness_is_started_by_name():
    named = {target.partition(":")[2] for target in SCRIPTS.values() if target.startswith("areal_harness:")}
    assert sorted(areal_harness.PROGRAMS) == sorted(named)
    assert list(areal_harness.PROGRAMS) == sorted(areal_harness.PROGRAMS)
    with pytest.raises(AttributeError, match="nothing"):
        _ = areal_harness.nothing


@pytest.mark.parametrize("target", areal_harness.PROGRAMS.values())
def test_what_a_program_runs_exists(target):
    module, _, function = target.partition(":")
    assert callable(getattr(import_module(module), function))


def test_the_extra_that_an_error_names_brings_the_package():
    extras = MANIFEST["project"]["optional-dependencies"]
    distributions = {"PIL": "pillow"}
    for package, extra in PACKAGES.items():
        names = [re.split(r"[\[>=;]", requirement)[0] for requirement in extras[extra]]
        assert distributions.get(package, package.replace("_", "-")) in names


@pytest.fixture(scope="module")
def wheel(wheel_file, tmp_path_factory):
    """The wheel, unpacked."""
    content = tmp_path_factory.mktemp("unpacked") / "content"
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(content)
    return content


def started(wheel: Path, *words: str) -> str:
    """What a program prints where the wheel is all there is of this repository."""
    code = (
        f"import sys; sys.path = [entry for entry in sys.path if entry != {str(ROOT)!r}]; sys.path.insert(0, "
        f"{str(wheel)!r}); sys.argv[0] = {words[0]!r}\n{words[1]}"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words[2:]],
        cwd=wheel.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.exhaustive
def test_a_wheel_claims_only_our_names_and_works_without_the_repository(wheel):
    top = sorted(entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info"))
    assert top == ["areal", "areal_harness"]

    (metadata,) = wheel.glob("*.dist-info")
    entry_points = (metadata / "entry_points.txt").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^(\S+) = ", entry_points, flags=re.M)) == sorted(SCRIPTS)

    packaged = [path.relative_to(ROOT) for path in (ROOT / "areal").rglob("*") if path.is_file()]
    packaged = [path for path in packaged if "__pycache__" not in path.parts]
    assert [path for path in packaged if not (wheel / path).is_file()] == []
    kinds = sorted(path.name for path in (ROOT / "templates").iterdir() if path.is_dir())
    library = wheel / "areal_harness" / "lib" / "tooling"
    assert sorted(path.name for path in (library / "_templates").iterdir() if path.is_dir()) == kinds

    where = "import areal_harness; areal_harness.add_to_path(); import tooling; print(tooling.__file__)"
    assert started(wheel, "python", where).strip() == str(library / "__init__.py")
    run = "import areal_harness; sys.exit(areal_harness.new())"
    listed = json.loads(started(wheel, "areal-new", run, "kinds", "--json"))
    assert sorted(kind["name"] for kind in listed["kinds"]) == kinds
    assert "gsm8k" in started(wheel, "areal", "from areal.cli.main import main; sys.exit(main())", "list", "rewards")


@pytest.mark.exhaustive
def test_nothing_but_its_own_programs_sees_the_harness(wheel):
    # A folder without code may be there, left by the editable installation.
    spec = "importlib.util.find_spec('tooling')"
    seen = f"import importlib.util, areal, areal_harness; print(getattr({spec}, 'loader', None))"
    assert started(wheel, "python", seen).strip() == "None"
