"""What has to change together: lock files, generated pages, translations, mirrors, documents that name what is gone,
tests; and tests that cannot fail."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from tooling.python.module import Function, field_names, last_name
from tooling.review.records import Place, Rule, Severity, is_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import ChangedFile, Comparison
    from tooling.review.repository.side import Side

_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "constraints.txt", "requirements.lock")
_PIN = re.compile(r"^\s*(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<version>[=<>!~][^;#]*)")
_VERSION = re.compile(r"\b\d+\.\d+(\.\d+)?\b")
_MIRRORS = (".agents", ".claude", ".opencode", ".codex")


def lock_behind(comparison: Comparison) -> Iterator[Place]:
    """Find requirements that changed without the lock that the repository keeps."""
    for file in comparison.files:
        if PurePosixPath(file.path).name != "pyproject.toml" or file.status != "M":
            continue
        before, after = (_requirements(side.text(path)) for side, path in _sides(comparison, file))
        folder = file.path.removesuffix("pyproject.toml")
        locks = [folder + name for name in _LOCKS if folder + name in comparison.head.paths]
        if before != after and locks and not any(lock in comparison.by_path for lock in locks):
            changed = sorted(str(each) for each in before ^ after)
            yield Place(file.path, min(file.added | file.removed), f"{changed[0]!r} changed, {locks[0]} did not")


def checklist_behind(comparison: Comparison) -> Iterator[Place]:
    """Find a requirement that moved without the checklist of its package."""
    lists = {PurePosixPath(path).stem: path for path in comparison.head.paths if "/checklists/" in path}
    for file in comparison.files:
        name = PurePosixPath(file.path).name
        if file.status != "M" or not (name == "pyproject.toml" or name in _LOCKS) or not lists:
            continue
        before, after = (_pins(side.text(path), name) for side, path in _sides(comparison, file))
        for package in sorted(set(before) & set(after) & set(lists)):
            if before[package] == after[package] or lists[package] in comparison.by_path:
                continue
            if _VERSION.search(comparison.head.text(lists[package]) or ""):  # says what version it is about
                lines = (comparison.head.text(file.path) or "").lower().replace("_", "-").split("\n")
                hits = (number for number in sorted(file.added) if package in lines[number - 1])
                line = next(hits, min(file.added, default=1))
                message = f"{package} moved, {lists[package]} did not"
                yield Place(file.path, line, message, f"{lists[package]}:1")


def _pins(text: str | None, name: str) -> dict[str, str]:
    """Map packages to the versions that are asked for."""
    lines = _requirements(text) if name == "pyproject.toml" else (text or "").splitlines()
    found = (_PIN.match(line) for line in lines)
    return {each["name"].lower().replace("_", "-"): each["version"].strip() for each in found if each}


def _sides(comparison: Comparison, file: ChangedFile) -> tuple[tuple[Any, str], tuple[Any, str]]:
    return (comparison.base, file.old_path), (comparison.head, file.path)


def _requirements(text: str | None) -> frozenset[str]:
    try:
        project = tomllib.loads(text or "").get("project", {})
    except tomllib.TOMLDecodeError:
        return frozenset()
    extras = project.get("optional-dependencies", {}).values()
    return frozenset([*project.get("dependencies", ()), *(each for extra in extras for each in extra)])


def pages_behind(comparison: Comparison) -> Iterator[Place]:
    """Find fields of the command line's configuration that changed without its generated page."""
    pages = [path for path in comparison.head.paths if path.endswith("cli_reference.md")]
    if not pages or any(path in comparison.by_path for path in pages):
        return
    for file in comparison.files:
        if PurePosixPath(file.path).name != "cli_args.py" or file.status != "M":
            continue
        sides = ((comparison.base, file.old_path), (comparison.head, file.path))
        before, after = (field_names(side.module(path)) for side, path in sides)
        if before and after and set(before) != set(after):
            changed = sorted(set(before) ^ set(after))
            line = min((after[name] for name in changed if name in after), default=1)
            while line - 1 in file.added:  # a class is new as a whole, a field has a comment
                line -= 1
            yield Place(file.path, line, f"{', '.join(changed[:3])}: {sorted(pages)[0]} does not say so")


def translation_behind(comparison: Comparison) -> Iterator[Place]:
    """Find a page that changed without its translation."""
    for file in comparison.files:
        parts = PurePosixPath(file.path).parts
        if "docs" not in parts or "en" not in parts or not file.path.endswith(".md") or file.status != "M":
            continue
        twin = str(PurePosixPath(*("zh" if part == "en" else part for part in parts)))
        if twin in comparison.head.paths and twin not in comparison.by_path and len(file.added) >= 3:
            yield Place(file.path, min(file.added), f"{twin} did not change")


def mirrors_differ(comparison: Comparison) -> Iterator[Place]:
    """Find a skill that several agent platforms keep a copy of, changed in one of them."""
    for file in comparison.files:
        top, _, rest = file.path.partition("/")
        if top not in _MIRRORS or not rest.startswith("skills/") or file.status not in "MA":
            continue
        twins = [f"{each}/{rest}" for each in _MIRRORS if each != top and f"{each}/{rest}" in comparison.head.paths]
        text = comparison.head.text(file.path)
        differ = [twin for twin in twins if twin not in comparison.by_path and comparison.head.text(twin) != text]
        if differ:
            yield Place(file.path, min(file.added, default=1), f"differs from {', '.join(differ)}")


def documents_name_gone(comparison: Comparison) -> Iterator[Place]:
    """Find a document or skill that names a symbol or file which the change removed."""
    gone = {name: file for name, file in comparison.gone.values() if len(name) > 5 and not name.islower()}
    gone |= {name: file for name, file in comparison.gone.values() if "_" in name.strip("_") and len(name) > 7}
    modules = {part for path in comparison.head.packages for part in path.split(".")}
    still = {name for name in gone if name in modules or _is_defined(comparison, name)}
    for name in sorted(set(gone) - still):
        for path in comparison.head.grep([name], "*.md"):
            text = comparison.head.text(path) or ""
            spelt = re.compile(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`")
            lines = (number for number, line in enumerate(text.split("\n"), 1) if spelt.search(line))
            for number in list(lines)[:1]:
                yield Place(path, number, f"names `{name}`, which is gone", gone[name].path)


def _is_defined(comparison: Comparison, name: str) -> bool:
    """Tell whether another module defines the name now: it moved, or the page means something else."""
    spelt = re.compile(
        rf"^\s*(?:(?:async\s+)?def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\b\s*[:=]", re.MULTILINE
    )
    return any(spelt.search(comparison.head.text(path) or "") for path in comparison.head.grep([name], "*.py"))


def named_file_missing(comparison: Comparison) -> Iterator[Place]:
    """Find a program that a hook or a workflow starts, and the repository does not have. A file that moves to another
    folder, or brings more code here, may mean what is not there before it runs."""
    paths = comparison.head.paths
    tops = {path.partition("/")[0] for path in paths}
    for file in comparison.files:
        if not file.path.startswith((".pre-commit", ".github/workflows/")) or not file.path.endswith((".yaml", ".yml")):
            continue
        text = (comparison.head.text(file.path) or "") if file.status != "D" else ""
        lines = [re.sub(r"(?:^|\s)#.*", "", line) for line in text.split("\n")]
        if any(_ELSEWHERE.search(line) for line in lines):
            continue
        for number in sorted(file.added):
            for found in _STARTED.finditer(lines[number - 1] if number <= len(lines) else ""):
                path = found["path"].removeprefix("./")
                before = "\n".join(lines[: number - 1]) + lines[number - 1][: found.start()]
                made = PurePosixPath(path).name in before  # a line before may write it
                linked = any(str(parent) in paths for parent in PurePosixPath(path).parents)  # a link, or a submodule
                deeper = any(each.endswith(f"/{path}") for each in paths)
                if path.partition("/")[0] in tops and path not in paths and not (made or linked or deeper):
                    yield Place(file.path, number, f"starts `{path}`, which is not in the repository")


_ELSEWHERE = re.compile(
    r"\b(?:cd|pushd)\s|working-directory|repository:|\bclone\b|submodule|\b(?:docker|podman|ssh|kubectl|unzip|tar)\s"
)
"""Other folders, other machines, and code that comes from elsewhere."""
_STARTED = re.compile(r"(?:^|[\s\"'])(?:python3?|bash|sh)\s+(?P<path>(?:\./)?[\w.-]+/[\w./-]+\.(?:py|sh))\b")


def removed_export(comparison: Comparison) -> Iterator[Place]:
    """Find a name removed from a package's `__all__` without any deprecation before."""
    for file in comparison.files:
        if not file.path.endswith("__init__.py") or file.status not in "MR" or file.path != file.old_path:
            continue
        before, after = (_exports(side.text(path)) for side, path in _sides(comparison, file))
        missing = sorted(before - after)
        old = comparison.base.text(file.old_path) or ""
        if missing and after and "deprecat" not in old.lower():
            yield Place(file.path, min(file.removed, default=1), f"no longer exports {', '.join(missing[:5])}")


def _exports(text: str | None) -> set[str]:
    found = re.search(r"^__all__\s*(?::[^=]+)?=\s*[\[(](.*?)[\])]", text or "", re.MULTILINE | re.DOTALL)
    return set(re.findall(r"[\"'](\w+)[\"']", found[1])) if found else set()


_CHECKING = re.compile(
    r"^_?(raises|warns|fail|skip|xfail|exit|run|main|launch|spawn|torchrun|smoke)|assert|check|expect|verify|test",
    re.IGNORECASE,
)
_TEST_FILES = tuple(
    f":(top,glob)**/{each}" for each in ("tests/**/*.py", "test/**/*.py", "test_*.py", "*_test.py", "conftest.py")
)
_NO_FAILURE = re.compile(
    r"accept|allow|permit|no_longer|not_rais|no_(error|exception|crash|op)|does_?n.?t|does_not|valid|smoke|surviv|tolerat|"
    r"without_(error|exception|crash|rais)|is_(ok|fine)|idempotent|harmless",
    re.IGNORECASE,
)
"""Names of tests that hold when nothing is raised: `test_an_empty_batch_is_accepted`."""
_TEST = re.compile(r"(^|/)test_[^/]*\.py$|(^|/)[^/]*_test\.py$")


def toothless(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a test in which nothing can fail."""
    if not _TEST.search(module.path):
        return
    for function in module.functions():
        if function.name.startswith("test_") and module.function_of(function) is None and not _can_fail(function):
            yield function, f"`{function.name}` checks nothing"


def _can_fail(function: Function) -> bool:
    """Whether it asserts, raises, or calls something that says it checks."""
    if any(re.search(r"skip|xfail|fixture", ast.unparse(each)) for each in function.decorator_list):
        return True
    if any(each.arg == "benchmark" for each in function.args.args):
        return True  # it measures
    if _NO_FAILURE.search(function.name):
        return True
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call) and _CHECKING.search(last_name(node.func)):
            return True
    return False


def untested(comparison: Comparison) -> Iterator[Place]:
    """Find a new public function in a module whose functions tests name one by one, in a change without any test."""
    if any(is_test(file.path) for file in comparison.files):
        return
    for file in comparison.files:
        module = comparison.head.module(file.path) if file.status == "M" else None
        before = comparison.base.module(file.old_path) if module is not None else None
        if module is None or before is None:
            continue
        known, now = _public_functions(before), _public_functions(module)
        used = {each.id for each in module.nodes(ast.Name)}
        new = [name for name in now.keys() - known if name not in used] if len(known) >= 2 else []
        tested = comparison.head.mentioned({*known, *new}, *_TEST_FILES) if new else set()
        if len(tested & known.keys()) * 5 >= len(known) * 4:
            for name in sorted(set(new) - tested):
                yield Place(file.path, now[name], f"no test names `{name}`; those beside it are tested")


def _public_functions(module: Module) -> dict[str, int]:
    functions = (node for node in module.tree.body if isinstance(node, Function))
    return {node.name: node.lineno for node in functions if not node.name.startswith("_")}


RULES: Final = (
    Rule("lock-behind", Severity.MEDIUM, in_change=lock_behind),
    Rule("checklist-behind", Severity.LOW, in_change=checklist_behind),
    Rule("pages-behind", Severity.LOW, in_change=pages_behind),
    Rule("translation-behind", Severity.LOW, in_change=translation_behind),
    Rule("mirror-drift", Severity.MEDIUM, in_change=mirrors_differ),
    Rule("document-names-gone", Severity.MEDIUM, in_change=documents_name_gone),
    Rule("named-file-missing", Severity.HIGH, in_change=named_file_missing),
    Rule("removed-export", Severity.MEDIUM, in_change=removed_export),
    Rule("toothless-test", Severity.LOW, in_file=toothless),
    Rule("untested-symbol", Severity.LOW, in_change=untested),
)
