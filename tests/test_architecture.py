"""The written rules of this repository as tests: sizes, light imports, registries, documented fields, the map.

Files are read as text or syntax trees. Layers are import-linter's job (pyproject.toml), style is ruff's.
Run alone: `.venv/bin/python -m pytest -q tests/test_architecture.py`.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

from areal.api import load

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_TEST_FILE_LINES = 600
"""A test file is a list of independent sentences: it may hold more of them than a reader keeps in mind at once."""
MAX_FUNCTION_LINES = 60
MAX_AGENTS_LINES = 120
HEAVY = ("datasets", "numpy", "pandas", "torch", "transformers")
ALLOWED = tomllib.loads((ROOT / "tests/architecture_allowlist.toml").read_text(encoding="utf-8"))


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is, or with the next `git add` would be, part of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in sorted(filter(None, listed.split("\0"))) if (path := ROOT / name).is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Python files below the folders (all when none is given); template sources are not Python yet."""
    wanted = tuple(f"{folder}/" for folder in folders)
    names = [(path, relative(path)) for path in repository_files() if path.suffix == ".py"]
    return [
        path for path, name in names if not name.startswith("templates/") and (not wanted or name.startswith(wanted))
    ]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def violations_beyond_allowlist(sizes: dict[str, int], limit: int, allowed: dict[str, int]) -> list[str]:
    """Names over their limit, and entries of the allow-list that could be lowered or removed."""
    over = [
        f"{name}: {size} lines, limit {allowed.get(name, limit)}"
        for name, size in sizes.items()
        if size > allowed.get(name, limit)
    ]
    stale = [
        f"{name}: the allow-list says {entry}, it has {sizes.get(name, 0)}: lower or remove the entry"
        for name, entry in allowed.items()
        if sizes.get(name, 0) < entry
    ]
    return over + stale


def functions_with_names(path: Path) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(qualified name, node) of every function in a file, nested ones included."""
    found = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{prefix}{child.name}", child))
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            visit(child, f"{prefix}{child.name}." if named else prefix)

    visit(tree_of(path), f"{relative(path)}::")
    return found


# ---------------------------------------------------------------------------------------------------------- sizes


def test_files_fit_in_one_reading():
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    tests = {name: size for name, size in sizes.items() if name.startswith("tests/")}
    product = {name: size for name, size in sizes.items() if name not in tests}
    assert violations_beyond_allowlist(product, MAX_FILE_LINES, ALLOWED["file_lines"]) == []
    assert violations_beyond_allowlist(tests, MAX_TEST_FILE_LINES, ALLOWED["file_lines"]) == []


def test_functions_fit_on_one_screen():
    sizes = {
        name: node.end_lineno - node.lineno + 1 for path in python_files() for name, node in functions_with_names(path)
    }
    assert violations_beyond_allowlist(sizes, MAX_FUNCTION_LINES, ALLOWED["function_lines"]) == []


# ------------------------------------------------------------------------------------------- configuration fields


def config_classes() -> dict[str, tuple[Path, ast.ClassDef]]:
    """Every class that derives from areal.api.Config, directly or not, by its name."""
    classes = {
        node.name: (path, node)
        for path in python_files("areal")
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    }
    known = {"Config"}
    while True:
        more = {
            name for name, (_, node) in classes.items() if known & {ast.unparse(base) for base in node.bases}
        } - known
        if not more:
            return {name: classes[name] for name in sorted(known - {"Config"})}
        known |= more


def undocumented_fields(node: ast.ClassDef) -> list[str]:
    """Fields that are not followed by a string literal."""
    following = [*node.body[1:], ast.Pass()]
    return [
        ast.unparse(statement.target)
        for statement, after in zip(node.body, following, strict=True)
        if isinstance(statement, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(statement.annotation)
        and not (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        )
    ]


def test_every_config_field_is_documented_where_it_stands():
    classes = config_classes()
    assert {"GenerationConfig", "PPOConfig", "RolloutConfig"} <= classes.keys()
    missing = [
        f"{relative(path)}: {name}.{field}"
        for name, (path, node) in classes.items()
        for field in undocumented_fields(node)
    ]
    assert missing == []


def test_every_config_is_a_frozen_keyword_only_dataclass():
    wrong = [
        f"{relative(path)}: {name}"
        for name, (path, node) in config_classes().items()
        if "dataclass(frozen=True, kw_only=True)" not in [ast.unparse(decorator) for decorator in node.decorator_list]
    ]
    assert wrong == []


# ------------------------------------------------------------------------------------------------------ registries


def registry_tables() -> list[tuple[str, str, ast.Dict]]:
    """(file, table name, literal) of every table in areal/*/registry.py."""
    return [
        (relative(path), ast.unparse(statement.target), statement.value)
        for path in sorted(ROOT.glob("areal/*/registry.py"))
        if path.parent.name != "api"
        for statement in tree_of(path).body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict)
    ]


def test_there_is_a_registry_for_everything_that_can_be_added():
    assert {file.split("/")[1] for file, _, _ in registry_tables()} >= {"dataset", "models", "reward", "workflow"}


def test_registries_are_sorted_tables_of_strings_with_one_entry_per_line():
    problems = []
    for file, table, literal in registry_tables():
        keys = [ast.literal_eval(key) for key in literal.keys]
        targets = [ast.literal_eval(value) for value in literal.values]
        lines = [key.lineno for key in literal.keys]
        if keys != sorted(set(keys)):
            problems.append(f"{file}: {table} is not sorted or has duplicates")
        if len(set(lines)) != len(lines):
            problems.append(f"{file}: {table} has several entries on one line")
        problems += [
            f"{file}: {table} target {t!r} is not 'module:object'"
            for t in targets
            if not re.fullmatch(r"[\w.]+:[\w.]+", t)
        ]
    assert problems == []


def test_every_registry_entry_loads():
    unloadable = []
    for file, table, literal in registry_tables():
        entries = ast.literal_eval(literal)
        for name in entries:
            if load(table.lower(), name, entries) is None:
                unloadable.append(f"{file}: {name}")
    assert unloadable == []


# --------------------------------------------------------------------------------------------------------- the map


def documented_tree(document: str) -> tuple[dict[str, str], dict[str, str]]:
    """Folders in the code block that lists areal/, each with its line: top-level ones, and packages of areal."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if re.search(r"^areal/", block, flags=re.MULTILINE))
    top, packages, parent = {}, {}, ""
    for line in block.splitlines():
        match = re.fullmatch(r"( *)([\w.-]+)/ +(\S.*)", line)
        if match is None:
            continue
        indent, name, purpose = match.groups()
        if not indent:
            top[name], parent = purpose, name
        elif parent == "areal":
            packages[name] = purpose
    return top, packages


@pytest.mark.parametrize("document", ["AGENTS.md", "README.md"])
def test_the_map_lists_exactly_the_folders_that_exist(document):
    top, packages = documented_tree(document)
    parts = [path.relative_to(ROOT).parts for path in repository_files()]
    folders = {names[0] for names in parts if len(names) > 1}
    subfolders = {names[1] for names in parts if names[0] == "areal" and len(names) > 2}
    assert (sorted(top), sorted(packages)) == (sorted(folders), sorted(subfolders))


def test_the_agent_instructions_stay_short():
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= MAX_AGENTS_LINES


def test_every_relative_link_in_the_documents_leads_somewhere():
    broken = []
    for path in repository_files():
        if path.suffix != ".md" or relative(path).startswith("templates/"):
            continue
        targets = re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
        broken += [f"{relative(path)}: {target}" for target in targets if not (path.parent / target).exists()]
    assert broken == []


def test_test_folders_mirror_the_packages():
    packages = {path.name for path in (ROOT / "areal").iterdir() if (path / "__init__.py").is_file()}
    mirrored = {
        path.relative_to(ROOT).parts[2] for path in python_files("tests/areal") if len(path.relative_to(ROOT).parts) > 3
    }
    assert mirrored - packages == set()


# --------------------------------------------------------------------------------------------------- light start-up


def heavy_modules_after(code: str) -> str:
    """Run code in a new interpreter; return the names of heavy modules it loaded."""
    program = f"import sys\n{code}\nsys.stderr.write('LOADED ' + ' '.join(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("LOADED ")[2].strip()


def test_importing_the_package_roots_and_configs_stays_light():
    roots = [path.parent for path in python_files("areal") if path.name == "__init__.py"]
    roots = [path for path in roots if path.parent.name != "models"]  # a model family is made of torch
    configs = [path.with_suffix("") for path in python_files("areal") if path.name == "config.py"]
    names = sorted({relative(path).replace("/", ".") for path in roots + configs})
    assert {"areal", "areal.api", "areal.trainer.config"} <= set(names)
    assert heavy_modules_after("\n".join(f"import {name}" for name in names)) == ""


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_command_line_help_stays_light(arguments):
    code = (
        f"sys.argv = ['areal', *{arguments!r}]\n"
        "from areal.cli.main import main\n"
        "try:\n    code = main()\nexcept SystemExit as ending:\n    code = ending.code\n"
        "assert not code, code"
    )
    assert heavy_modules_after(code) == ""


# ----------------------------------------------------------------------------------------------------- honest code


def test_only_the_command_line_prints():
    printing = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files("areal")
        if not relative(path).startswith("areal/cli/")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


MARKER = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")
REASON = re.compile(r"^(?:\[[\w, -]+\]|:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?\s*(?:#|-|--|:)?\s*(?P<reason>.*)$")


def comments_of(path: Path) -> list[tuple[int, str]]:
    if not MARKER.search(path.read_text(encoding="utf-8")):
        return []
    with tokenize.open(path) as source:
        return [(t.start[0], t.string) for t in tokenize.generate_tokens(source.readline) if t.type == tokenize.COMMENT]


def test_every_lint_ignore_says_why():
    """`code  # type: ignore[arg-type]  # reason` and `code  # noqa: BLE001 - reason`."""
    silent = [
        f"{relative(path)}:{line}: {comment}"
        for path in python_files()
        for line, comment in comments_of(path)
        if (match := MARKER.search(comment)) and len(REASON.match(match["rest"].strip())["reason"]) < 10
    ]
    assert silent == []


def test_every_rule_that_ruff_leaves_out_says_why():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ignored = re.search(r"^ignore = \[\n(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE)[1].splitlines()
    per_file = re.search(r"^\[tool\.ruff\.lint\.per-file-ignores\]\n(.*?)^\[", text, flags=re.DOTALL | re.MULTILINE)[
        1
    ].splitlines()
    silent = [line for line in ignored if "#" not in line]
    silent += [
        line
        for before, line in zip(["", *per_file], per_file, strict=False)
        if "= [" in line and not before.startswith("#")
    ]
    assert silent == []


# Places that exist on one machine only; written so that this file does not contain them itself.
MACHINE_PATH = re.compile(r"(?<![\w.~*-])/(?:work|root|home/\w+|Users/\w+)/\w|/opt/(?:whe" + r"els|pypi)")


def test_no_file_names_a_place_on_somebodys_machine():
    found = []
    for path in repository_files():
        if path.suffix in {".png", ".safetensors", ".parquet", ".arrow", ".gz"}:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{relative(path)}:{number}" for number, line in enumerate(lines, 1) if MACHINE_PATH.search(line)]
    assert found == []


def call_name(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_every_skipped_test_says_why():
    silent = []
    for path in python_files("tests"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and call_name(node) in {"pytest.skip", "pytest.xfail"}:
                reasoned = bool(node.args) or any(keyword.arg in {"reason", "msg"} for keyword in node.keywords)
            elif isinstance(node, ast.Call) and re.search(r"mark\.(skipif|skip|xfail)$", call_name(node)):
                reasoned = any(keyword.arg == "reason" for keyword in node.keywords)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                reasoned = not any(re.search(r"mark\.(skip|xfail)$", ast.unparse(d)) for d in node.decorator_list)
            else:
                continue
            if not reasoned:
                silent.append(f"{relative(path)}:{node.lineno}")
    assert silent == []


def can_fail(function: ast.AST) -> bool:
    """Whether a test asserts, expects an exception, or hands over to a helper that says it does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call) and re.search(
            r"(^|\.)_?(raises|warns|fail|assert\w*|check\w*|expect\w*)$", call_name(node)
        ):
            return True
    return False


def test_every_test_can_fail():
    toothless = [
        name
        for path in python_files("tests")
        if path.name.startswith("test_")
        for name, node in functions_with_names(path)
        if node.name.startswith("test_") and not can_fail(node)
    ]
    assert toothless == []
