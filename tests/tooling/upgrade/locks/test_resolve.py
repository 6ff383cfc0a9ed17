"""Resolving with the real `uv`, from a folder of wheels made here; no network.

python -m pytest tests/tooling/upgrade/locks/test_resolve.py -q
"""

import sys
import zipfile
from dataclasses import replace

import pytest

from tooling.cli.errors import UsageError
from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.errors import OfflineError
from tooling.upgrade.locks.resolve import _clean, find_uv, lock, run_uv
from tooling.upgrade.locks.result import LockAction, VersionChange
from tooling.upgrade.manifests.bump import bump
from tooling.upgrade.manifests.requests import parse_request
from tooling.upgrade.policy.read import read_policy

WHEELS = {
    ("engine", "0.11.0"): ["tensor==2.8.0"],
    ("engine", "0.18.0"): ["tensor==2.10.0", "models<5"],
    ("engine", "0.19.0"): ["tensor==2.10.0"],
    ("tensor", "2.8.0"): [],
    ("tensor", "2.10.0"): [],
    ("models", "4.57.0"): [],
    ("models", "5.3.0"): [],
}


def harmless(proposal):
    """What an audit says that finds nothing."""
    return replace(proposal, breaking=0)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for (name, version), requires in WHEELS.items():
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
            information = f"{name}-{version}.dist-info"
            needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
            archive.writestr(f"{name}/__init__.py", "")
            archive.writestr(
                f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
            )
            archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{information}/RECORD", "")
    return folder


@pytest.fixture
def resolve(tmp_path, wheels, tmp_path_factory, monkeypatch):
    index = tmp_path / "no-index"  # empty: uv has no variable that switches indexes off
    index.mkdir()
    environment = {
        "UV_PYTHON": sys.executable,
        "UV_FIND_LINKS": str(wheels),
        "UV_DEFAULT_INDEX": index.as_uri(),
        "UV_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "uv"),  # keeps what uv asked Python
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "repository"
    root.mkdir()

    def run(*requests, files, **options):
        for name, text in files.items():
            (root / name).write_text(text)
        declarations = find_declarations(root)
        policy = read_policy(root, declarations)
        asked = [parse_request(each) for each in requests]
        plan = bump(root, policy, declarations, asked).plan
        before = {path.name: path.read_bytes() for path in root.iterdir()}
        options.setdefault("judge", harmless)
        results = lock(root, plan, policy, declarations, asked, **options)
        assert {path.name: path.read_bytes() for path in root.iterdir()} == before
        return results, plan

    run.root = root
    return run


def manifest(*requirements, table=""):
    listed = ", ".join(f'"{each}"' for each in requirements)
    return f'[project]\nname = "demo"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [{listed}]\n{table}'


EMPTY = 'version = 1\nrequires-python = ">=3.11"\n'
PINS = """
[tool.areal.upgrade.variants.default]
manifests = ["pyproject.toml"]
lock = "constraints.txt"
"""


def test_a_lock_is_made_anew_inside_the_plan_alone(resolve):
    files = {"pyproject.toml": manifest("engine==0.11.0", "models"), "uv.lock": EMPTY}
    (first,), plan = resolve("engine==0.11.0", files=files)
    content = {change.path: change.after for change in plan.changes}["uv.lock"]
    (second,), plan = resolve("engine==0.19.0", files={**files, "uv.lock": content.decode()})
    assert first.made is second.made is LockAction.LOCKED
    assert second.changes == (VersionChange("engine", "0.11.0", "0.19.0"), VersionChange("tensor", "2.8.0", "2.10.0"))
    assert [change.path for change in plan.changes] == ["pyproject.toml", "uv.lock"]
    assert b'name = "engine"\nversion = "0.19.0"' in plan.read("uv.lock")


def test_a_conflict_is_who_requires_what_and_the_obstacle_is_proposed(resolve):
    files = {"pyproject.toml": manifest("engine>=0.11", "models>=5.0")}
    (result,), plan = resolve("engine==0.18.0", files=files)
    assert result.conflict is not None
    said = [str(cause) for cause in result.conflict.causes]
    assert "engine==0.18.0 requires models<5" in said
    assert "demo requires models>=5.0 (pyproject.toml:5)" in said
    assert result.proposal is not None
    assert (result.proposal.declaration.distribution, result.proposal.specifier) == ("models", ">=4.57.0")
    assert not result.proposal.applied
    assert not plan


def test_the_proposal_is_carried_out_only_when_asked(resolve):
    files = {"pyproject.toml": manifest("engine==0.11.0", "models>=5.0"), "uv.lock": EMPTY}
    (result,), plan = resolve("engine==0.18.0", files=files, fix=True)
    assert result.conflict is None
    assert result.proposal is not None
    assert result.proposal.applied
    assert '"engine==0.18.0", "models>=4.57.0"' in plan.read("pyproject.toml").decode()
    assert result.versions["models"] == "4.57.0"


@pytest.mark.exhaustive
def test_two_obstacles_are_not_resolved_for_anybody(resolve):
    files = {"pyproject.toml": manifest("engine>=0.11", "models>=5.0", "tensor==2.8.0")}
    (result,), plan = resolve("engine==0.18.0", files=files, fix=True)
    assert result.conflict is not None
    assert result.proposal is None
    assert not plan


def test_pins_are_checked_and_an_outdated_one_is_the_obstacle(resolve):
    files = {
        "pyproject.toml": manifest("engine>=0.11", "tensor", table=PINS),
        "constraints.txt": "engine==0.11.0\ntensor==2.8.0\n",
    }
    (result,), plan = resolve("engine==0.19.0", files=files)
    assert result.made is LockAction.CHECKED
    assert result.proposal is not None
    assert (result.proposal.declaration.where, result.proposal.specifier) == ("constraints.txt:2", "==2.10.0")
    (fixed,), plan = resolve("engine==0.19.0", files=files, fix=True)
    assert plan.read("constraints.txt") == b"engine==0.19.0\ntensor==2.10.0\n"
    assert fixed.changes == (VersionChange("engine", "0.11.0", "0.19.0"), VersionChange("tensor", "2.8.0", "2.10.0"))


def test_requirements_in_setup_py_are_checked_without_running_it(resolve):
    files = {"setup.py": "import os\nos.abort()\nsetup(install_requires=['engine>=0.11', 'models'])\n"}
    (result,), _ = resolve("engine==0.18.0", files=files)
    assert result.conflict is None
    assert result.versions == {"engine": "0.18.0", "models": "4.57.0", "tensor": "2.10.0"}


@pytest.mark.exhaustive
def test_a_variant_without_the_package_is_skipped(resolve):
    table = (
        '[project.optional-dependencies]\na = ["engine>=0.11"]\nb = ["models"]\n'
        '[tool.areal.upgrade.variants.a]\nmanifests = ["pyproject.toml"]\nextras = ["a"]\n'
        '[tool.areal.upgrade.variants.b]\nmanifests = ["pyproject.toml"]\nextras = ["b"]\n'
    )
    results, _ = resolve("engine==0.18.0", files={"pyproject.toml": manifest(table=table)})
    assert [(each.variant, each.made) for each in results] == [("a", LockAction.CHECKED), ("b", LockAction.SKIPPED)]
    assert "models" not in results[0].versions or results[0].versions["models"] == "4.57.0"


def test_an_unknown_version_is_named(resolve):
    (result,), _ = resolve("engine==9.9.9", files={"pyproject.toml": manifest("engine>=0.11")})
    assert result.conflict is not None
    assert result.conflict.missing == ("engine==9.9.9",)


def test_a_lock_of_another_tool_is_left_to_it(resolve):
    files = {"pyproject.toml": manifest("engine>=0.11"), "poetry.lock": "", "uv.toml": ""}
    (result,), plan = resolve("engine==0.18.0", files=files)
    assert result.made is LockAction.SKIPPED
    assert "another tool" in result.notes[0]
    assert not plan


def test_without_uv_the_way_out_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        find_uv()
    assert "--no-lock" in refused.value.fix


def test_offline_with_an_empty_cache_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "c"))
    (tmp_path / "pyproject.toml").write_text(manifest("surely-not-cached"))
    with pytest.raises(OfflineError):
        run_uv(["lock"], tmp_path, offline=True)


def test_credentials_are_never_repeated():
    assert _clean("error at https://me:secret@host/simple\x1b[0m") == "error at https://host/simple"


SCRIPT = """\
VENV=.venv-servers
CPU="engine-cpu==0.11.0"
GPU="engine==0.11.0"
# uv pip install --python "$VENV/bin/python" models==1
case "$1" in cpu) want=$CPU ;; gpu) want=$GPU ;; esac
[ -x "$VENV/bin/python" ] || uv venv -q "$VENV"
uv pip install -q --python "$VENV/bin/python" "$want"
"""


@pytest.mark.exhaustive
def test_an_environment_of_a_script_resolves_on_its_own_and_once_for_each_install(resolve, wheels):
    """engine 0.18.0 needs models below 5, which the project needs: that is no conflict."""
    pyproject = manifest("models>=5")
    results, plan = resolve("engine==0.18.0", files={"pyproject.toml": pyproject, "servers.sh": SCRIPT})
    project, gpu_less, gpu = results
    assert (project.variant, project.made) == ("default", LockAction.SKIPPED)
    assert (gpu_less.label, gpu_less.where) == ("environment servers (engine-cpu==0.18.0)", "servers.sh:2")
    assert gpu_less.conflict.missing == ("engine-cpu",), "there is no such build"
    assert gpu_less.proposal is None
    assert (gpu.installs, gpu.conflict) == (("engine==0.18.0",), None)
    assert gpu.versions == {"engine": "0.18.0", "models": "4.57.0", "tensor": "2.10.0"}
    assert VersionChange("tensor", "2.8.0", "2.10.0") in gpu.changes
    text = plan.read("servers.sh").decode()
    assert text == SCRIPT.replace("0.11.0", "0.18.0")


@pytest.mark.exhaustive
def test_constraints_and_overrides_of_an_install_hold_for_it(resolve):
    text = SCRIPT.replace("engine-cpu", "engine").replace('"$want"', '-c limits.txt "$want" models')
    files = {"pyproject.toml": manifest(), "servers.sh": text, "constraints.txt": "models==5.3.0\n"}
    files |= {"limits.txt": "models==5.3.0\n"}
    (_, refused) = resolve("engine==0.18.0", files=files)[0]
    assert "engine==0.18.0 requires models<5" in [str(each) for each in refused.conflict.causes]
    files["servers.sh"] = text.replace("-c limits.txt", "--overrides limits.txt")
    (_, resolved) = resolve("engine==0.18.0", files=files)[0]
    assert resolved.versions["models"] == "5.3.0"


@pytest.mark.exhaustive
def test_a_local_build_that_no_index_has_is_told_and_the_rest_is_resolved(resolve, wheels):
    with zipfile.ZipFile(wheels / "served-1.0-py3-none-any.whl", "w") as archive:
        needs = "Requires-Dist: tensor==2.10.0+cpu\n"
        archive.writestr("served-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: served\nVersion: 1.0\n{needs}")
        archive.writestr("served-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("served-1.0.dist-info/RECORD", "")
    text = SCRIPT.replace("engine-cpu==0.11.0", "served==0.9").replace("engine==0.11.0", "served==0.9")
    (_, result) = resolve("served==1.0", files={"pyproject.toml": manifest(), "servers.sh": text})[0]
    assert result.conflict is None
    assert result.versions == {"served": "1.0", "tensor": "2.10.0"}
    assert "no index configured here has tensor 2.10.0+cpu" in result.notes[0]


POETRY = """
[tool.poetry.dependencies]
python = "^3.11"
engine = "0.11.0"
models = [{version = "4.57.0", python = "<3.0"}, {version = "5.3.0", python = ">=3.0"}]
tensor = "^2.0 || ^3.0"
"""


def test_a_manifest_of_poetry_is_resolved_with_its_markers_and_notes_on_its_alternatives(resolve):
    (result,), _ = resolve("engine==0.19.0", files={"pyproject.toml": POETRY})
    assert result.conflict is None
    assert result.versions == {"engine": "0.19.0", "models": "5.3.0", "tensor": "2.10.0"}
    assert [note.partition(" cannot be")[0] for note in result.notes] == ['pyproject.toml:6: tensor = "^2.0 || ^3.0"']
