"""The locks of scripts/locks against pyproject.toml: complete, consistent, no addresses; nothing here asks an index."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import lock
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = MANIFEST["project"]["optional-dependencies"]
LOCKS = lock.variants()
CUDA = r"cuda-|nvidia-|triton$"
"""Packages of a build for GPUs."""


def direct(requirements: list[str]) -> list[Requirement]:
    """Return requirements, with those of our own extras in place of `areal[extra]`."""
    found = []
    for each in map(Requirement, requirements):
        inner = direct([text for extra in each.extras for text in EXTRAS[extra]]) if each.name == "areal" else [each]
        found += inner
    return found


def asked_for(variant: dict) -> list[Requirement]:
    texts = [text for group in variant.get("groups", ()) for text in MANIFEST["dependency-groups"][group]]
    texts += [text for extra in variant.get("extras", ()) for text in EXTRAS[extra]]
    return direct(texts + (MANIFEST["project"]["dependencies"] if "extras" in variant else []))


def versions(name: str) -> dict[str, list[str]]:
    locked = lock.pins((ROOT / f"scripts/locks/{name}.txt").read_text(encoding="utf-8"))
    return {package: [lock.PIN.fullmatch(line)["version"] for line in lines] for package, lines in locked.items()}


def test_every_lock_of_the_table_is_there_and_no_other() -> None:
    assert sorted(path.stem for path in (ROOT / "scripts/locks").iterdir()) == sorted(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_every_direct_dependency_in_a_version_that_is_allowed(name) -> None:
    locked = versions(name)
    for requirement in asked_for(LOCKS[name]):
        package = requirement.name.lower().replace("_", "-")
        assert package in locked, f"{requirement}: `python scripts/lock.py {name}`"
        assert all(requirement.specifier.contains(version) for version in locked[package]), str(requirement)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_its_packages_ask_for(name) -> None:
    """Of those that are installed here in the locked version."""
    from importlib.metadata import PackageNotFoundError, distribution

    locked, compared = versions(name), 0
    for package, pinned in locked.items():
        try:
            installed = distribution(package)
        except PackageNotFoundError:
            continue
        if installed.version not in pinned:
            continue
        for requirement in map(Requirement, installed.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                compared += 1
                needed = re.sub(r"[-_.]+", "-", requirement.name).lower()
                if re.match(CUDA, needed) and name == "cpu":
                    continue  # the build that is here is another one than the locked one
                assert needed in locked or needed == "setuptools", f"{package} needs {requirement}"
    assert compared > 50


def test_the_lock_of_training_is_that_of_the_set_up() -> None:
    locked = versions("cpu")
    pinned = lock.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    differing = {
        name: lines for name, lines in pinned.items() if name in locked and lines[0].split("==")[1] not in locked[name]
    }
    assert differing == {}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_place(name) -> None:
    text = (ROOT / f"scripts/locks/{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|file:|^-|\+cpu|\+cu\d| @ ", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split("=")[0] for line in lines] == sorted(line.split("=")[0] for line in lines)
    for smuggled in (
        "torch==2.13.0+cpu",
        "torch @ https://example.org/torch.whl",
        "--index-url https://example.org",
        "torch",
    ):
        with pytest.raises(ValueError, match="is no NAME==VERSION"):
            lock.pins(smuggled)


def test_a_build_for_cpus_has_nothing_of_cuda() -> None:
    assert [name for name in versions("cpu") if re.match(CUDA, name)] == []


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_server_is_locked_in_the_version_that_its_environment_gets(name) -> None:
    script = (ROOT / f"scripts/setup_{name}.sh").read_text(encoding="utf-8")
    (wanted,) = re.findall(rf'"{name}==([\d.]+)"', script)
    assert versions(name)[name] == [wanted]
    assert re.search(rf"(--constraint |UV_CONSTRAINT=)scripts/locks/{name}\.txt", script)


def test_conflicts_are_declared_between_what_pins_differently() -> None:
    conflicts = MANIFEST["tool"]["uv"]["conflicts"]
    named = {(kind, name) for each in conflicts for item in each for kind, name in item.items()}
    assert named <= {
        *(("extra", name) for name in EXTRAS),
        *(("group", name) for name in MANIFEST["dependency-groups"]),
    }
    assert len({tuple(versions(name)["transformers"]) for name in LOCKS}) == len(LOCKS), "else they need not be"
    assert {("extra", name) for name in EXTRAS} <= named, "a server's environment holds nothing else"


def test_what_changes_is_said_per_package() -> None:
    assert lock.changes("a==1\nb==1\n", "a==2\nc==1\n") == ["a 1 -> 2", "b 1 -> (gone)", "c (new) -> 1"]


@pytest.mark.exhaustive
@pytest.mark.network
@pytest.mark.timeout(600)
def test_uv_finds_the_same_versions_and_accepts_the_conflicts() -> None:
    command = [sys.executable, ROOT / "scripts/lock.py", "--dry-run", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["locks"] == {name: [] for name in LOCKS}
    uv = [Path(sys.executable).with_name("uv"), "lock", "--dry-run", "--no-config", "--default-index", lock.INDEX]
    done = subprocess.run(uv, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
