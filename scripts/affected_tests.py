"""Print the test folders that a change can affect, from the import graph; `.ci/run` runs their exhaustive tests.

    python scripts/affected_tests.py                # against AREAL_BASE, else against HEAD^; "tests" means all of them
    python scripts/affected_tests.py --base main --json

A folder is affected by its own files, by every module that its files or the package it mirrors import, directly or not,
and by data beside those modules. What no rule knows (pyproject.toml, conftest.py, scripts) affects everything.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
EVERYTHING = "tests"
NO_TESTS = (
    ".agents/",
    ".areal/",
    ".claude/",
    ".codex/",
    ".dockerignore",
    ".github/",
    ".opencode/",
    ".pre-commit-config.yaml",
    "CITATION.cff",
    "Dockerfile",
    "LICENSE",
    "agents/",
    "benchmarks/",
    "docs/",
    "tests/cpu_budget.toml",
)
"""Of these, and of pages beside them, the ordinary tests and gates see all that can be wrong."""
ALSO = {
    ".pre-commit-hooks.yaml": ("tests/test_published_hooks.py",),
    "templates/": ("tests/templates", "tests/tooling/kit", "tests/tooling/new"),
    "README.md": ("tests/areal_harness", "tests/tooling/upgrade/commands"),
    "examples/": ("tests/areal/trainer",),
    "skills/": ("tests/tooling/harness",),
}


def run_git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.split("\0") if line]


def changed_files(base: str) -> list[str]:
    """Return what differs from the merge base: committed, not committed, and not tracked."""
    found = run_git("diff", "--name-only", "-z", "--merge-base", base)
    return sorted({*found, *run_git("ls-files", "-z", "--others", "--exclude-standard")})


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def imports(path: str) -> frozenset[str]:
    """Return the dotted names that a file imports anywhere; of `from a import b` both "a" and "a.b"."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Registries, and programs that tests start: "areal.reward.math:score", "-m tooling.new".
            words = node.value.replace(":", " ").split() if len(node.value) < 200 else []
            found |= {word for word in words if word.startswith(("areal.", "tooling."))}
    return frozenset(found)


def mirrored(folder: str, files: list[str]) -> str:
    """Return the package that a test folder mirrors, or the next one above it that exists."""
    package = folder.removeprefix("tests/")
    while package and not any(name.startswith(f"{package}/") for name in files):
        package = package.rpartition("/")[0]
    return package or "none"


def folders_of_tests(files: list[str]) -> list[str]:
    """Return the folders that hold test modules, of a package at most two levels deep."""
    tests = [PurePosixPath(name).parts for name in files if name.startswith("tests/") and "/test_" in name]
    return sorted({"/".join(parts[: min(4, len(parts) - 1)]) for parts in tests if len(parts) > 2})


def reached(folder: str, files: list[str]) -> set[str]:
    """Return the files of modules that tests in a folder import, directly or not, and of the package they mirror."""
    modules = {module_name(name): name for name in files if name.endswith(".py") and not name.startswith("tests/")}
    beginnings = (f"{folder}/", f"{mirrored(folder, files)}/")
    start = [name for name in files if name.startswith(beginnings) and name.endswith(".py")]
    found, waiting = set(start), list(start)
    while waiting:
        for name in imports(waiting.pop()):
            # A module's packages run first.
            parts = name.split(".")
            for dotted in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
                path = modules.get(dotted)
                if path is not None and path not in found:
                    found.add(path)
                    waiting.append(path)
    return found


def folders_of_file(name: str, folders: list[str]) -> list[str] | None:
    """Return what a file outside of the packages affects; None when no rule knows."""
    for prefix, also in ALSO.items():
        if name.startswith(prefix):
            return list(also)
    if name.startswith(NO_TESTS) or (name.endswith(".md") and "/" not in name):
        return []
    beside = name.rpartition("/")[0]
    if name.startswith("tests/test_"):
        return [name]
    own = [each for each in folders if name.startswith(f"{each}/") or each.startswith(f"{beside}/")]
    return own if own and beside != EVERYTHING else None


def affected(changed: list[str], files: list[str]) -> tuple[list[str], str]:
    """Return test folders, and why it is all of them ("" when it is not)."""
    folders = folders_of_tests(files)
    hit: set[str] = set()
    products = []
    for name in changed:
        if name.startswith(("areal/", "areal_harness/", "tooling/")):
            products.append(name)
        elif (found := folders_of_file(name, folders)) is not None:
            hit.update(found)
        else:
            return [EVERYTHING], f"{name} may affect all tests"
    if not set(products) <= set(files):
        return folders, "who imported a module that is gone is not known"
    for folder in set(folders) - hit if products else ():
        modules = reached(folder, files)
        parents = {name.rpartition("/")[0] for name in modules}
        if any(
            name in modules or (not name.endswith(".py") and name.rpartition("/")[0] in parents) for name in products
        ):
            hit.add(folder)
    return sorted(hit), ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default=os.environ.get("AREAL_BASE") or "HEAD^", help="compare with this revision")
    parser.add_argument("--json", action="store_true", help="print one object: folders, all, why, changed")
    options = parser.parse_args(argv)
    try:
        changed = changed_files(options.base)
    except subprocess.CalledProcessError:
        folders, why, changed = [EVERYTHING], f"{options.base} is not a revision of this checkout", []
    else:
        files = [
            name
            for name in run_git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            if (ROOT / name).is_file()
        ]
        folders, why = affected(changed, files)
    if options.json:
        found = {"folders": folders, "all": folders == [EVERYTHING], "why": why, "changed": changed}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{folder}\n" for folder in folders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
