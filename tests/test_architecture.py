"""The written rules of this repository as tests: sizes and shapes, wordings, light imports, registries.

Files are read as text or syntax trees (scripts/measure_design.py). Layers are import-linter's job (pyproject.toml),
style is ruff's.
Run alone: `.venv/bin/python -m pytest -q tests/test_architecture.py`.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import measure_design
import pytest
from measure_design import functions_with_names, python_files, relative, repository_files, short_files, tree_of

from areal.api import load

ROOT = Path(__file__).resolve().parent.parent
MAX_AGENTS_LINES = 120
HEAVY = ("datasets", "numpy", "pandas", "torch", "transformers")
ALLOWED = measure_design.allowlist()
measures = functools.cache(measure_design.measures)


@pytest.fixture(autouse=True, scope="module")
def trees():
    """Keep the trees of all files while these tests run; collecting garbage among millions of nodes takes seconds."""
    gc.disable()
    yield
    measure_design.forget()
    gc.enable()


def beyond_allowlist(section: str, slack: int = 0) -> list[str]:
    """Return what is over its limit, and entries of the allow-list that are more than `slack` too generous.

    The slack spares people who work at the same time each other's small improvements.
    """
    sizes, limit = measures()[section]
    allowed = ALLOWED[section]
    over = [
        f"{name}: {size}, limit {allowed.get(name, limit)}"
        for name, size in sizes.items()
        if size > allowed.get(name, limit)
    ]
    stale = [
        f"{name}: the allow-list says {entry}, now it is {sizes.get(name, 0)}: run scripts/measure_design.py --tighten"
        for name, entry in allowed.items()
        if sizes.get(name, 0) + slack < entry or sizes.get(name, 0) <= limit - slack
    ]
    return over + stale


# ------------------------------------------------------------------------------------------------- sizes and shapes


def test_a_file_is_one_idea():
    assert beyond_allowlist("file_lines") == []


def test_short_files_have_a_reason():
    reasons = ALLOWED["short_files"]
    assert sorted(short_files().keys() - reasons.keys()) == [], "merge them into a neighbour, or add a reason"
    assert sorted(reasons.keys() - short_files().keys()) == [], "run scripts/measure_design.py --tighten"
    assert [name for name, reason in reasons.items() if len(reason) < 20] == []


def test_functions_fit_on_one_screen():
    assert beyond_allowlist("function_lines") == []


def test_few_private_functions_have_a_single_caller():
    """Such a function belongs into its caller, unless it is a step that the reader wants to skip."""
    assert beyond_allowlist("one_caller_share", slack=3) == []


def test_inheritance_is_shallow():
    assert beyond_allowlist("depth") == []
    assert beyond_allowlist("config_depth") == []


def test_public_class_names_are_unique():
    """One name means one idea inside `areal`, and inside `tooling`."""
    assert beyond_allowlist("class_names", slack=1) == []


def test_wordings_are_plain_english():
    """Places: `python scripts/measure_design.py`; what to write in their place: AGENTS.md, style."""
    assert beyond_allowlist("wording", slack=10) == []


def test_measures_of_shape(tmp_path, monkeypatch):
    """Checks the measures themselves on a project of three modules."""
    files = {
        "areal/api/config.py": "class Config: ...\n",
        "areal/base.py": "from typing import Protocol\nclass Contract(Protocol): ...\nclass Fault(Exception): ...\n",
        "areal/__init__.py": "from areal.base import Contract\n",
        "tooling/words.py": """'One of many.'
import areal
from areal.base import Fault
from areal.api.config import Config
class Chat(areal.Contract): ...
class Deep(Chat): ...
class Deeper(Deep): ...
class Lost(Fault): ...
class Options(Config): ...
def public(): _step(); _twice(); _twice(); print("x is no number; there is no column; it is no longer told")
def _step(): ...
def _twice(): ...
""",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(measure_design, "ROOT", tmp_path)
    monkeypatch.setattr(measure_design, "repository_files", lambda: tuple(sorted(tmp_path.rglob("*.py"))))
    measured = measure_design.packages.__wrapped__()["tooling"]
    assert (measured.functions, measured.one_caller, measured.share) == (3, 1, 33)
    ordinary, configs = measure_design.depths()
    assert {name.rpartition(".")[2]: depth for name, depth in ordinary.items()} == {
        "Contract": 0,
        "Fault": 0,
        "Chat": 1,
        "Deep": 2,
        "Deeper": 3,
        "Lost": 1,
    }
    assert configs == {"areal.api.config.Config": 1, "tooling.words.Options": 2}
    assert len(measure_design.odd_wordings()["tooling"]) == 3


def test_the_allow_list_can_be_tightened():
    measured = {"file_lines": ({"a.py": 720, "b.py": 10}, 700)}
    text = '# Why.\n[short_files]\n"x.py" = "a reason"\n"y.py" = "another"\n[file_lines]\n"a.py" = 800\n"b.py" = 710\n'
    assert measure_design.tightened(text, measured, {"y.py": 3}) == (
        '# Why.\n[short_files]\n"y.py" = "another"\n[file_lines]\n"a.py" = 720\n'
    )


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


def documented_tree() -> tuple[dict[str, str], dict[str, str]]:
    """Folders in the map of AGENTS.md, each with its line: those of the top level, and the packages of areal."""
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
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


def test_the_map_lists_exactly_the_folders_that_exist():
    top, packages = documented_tree()
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
        prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", prose)
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
        for node in measure_design.nodes_of(path, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


MARKER = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")
REASON = re.compile(r"^(?:\[[\w, -]+\]|:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?\s*(?:#|-|--|:)?\s*(?P<reason>.*)$")


def comments_of(path: Path) -> list[tuple[int, str]]:
    if not MARKER.search(measure_design.source_of(path)):
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
        if path.suffix in {".png", ".safetensors", ".parquet", ".arrow", ".gz", ".whl"}:
            continue
        text = path.read_text(encoding="utf-8")
        if MACHINE_PATH.search(text):
            lines = enumerate(text.splitlines(), 1)
            found += [f"{relative(path)}:{number}" for number, line in lines if MACHINE_PATH.search(line)]
    assert found == []


def dotted(node: ast.expr) -> str:
    """Return `pytest.mark.skip` for that expression; of one that is not only names, the names at its end."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id] if isinstance(node, ast.Name) else names))


def test_every_skipped_test_says_why():
    silent = []
    for path in python_files("tests"):
        if not re.search("skip|xfail", measure_design.source_of(path)):
            continue
        for node in measure_design.nodes_of(path, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            if not isinstance(node, ast.Call):
                reasoned = not any(re.search(r"mark\.(skip|xfail)$", dotted(d)) for d in node.decorator_list)
            elif dotted(node.func) in {"pytest.skip", "pytest.xfail"}:
                reasoned = bool(node.args) or any(keyword.arg in {"reason", "msg"} for keyword in node.keywords)
            elif re.search(r"mark\.(skipif|skip|xfail)$", dotted(node.func)):
                reasoned = any(keyword.arg == "reason" for keyword in node.keywords)
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
            r"(^|\.)_?(raises|warns|fail|assert\w*|check\w*|expect\w*)$", dotted(node.func)
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
