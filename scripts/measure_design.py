"""Measure how finely the code is cut, and which wordings it uses, against the limits of the house style.

    python scripts/measure_design.py             # one row per package, then the places that are over a limit
    python scripts/measure_design.py --tighten   # lower tests/architecture_allowlist.toml to what is measured now

tests/test_architecture.py holds the code to these measures. Files are read as text and syntax trees.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import subprocess
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
ALLOWLIST = ROOT / "tests/architecture_allowlist.toml"

MAX_FILE_LINES = 700
MIN_FILE_LINES = 30
"""A shorter product file needs a reason in the allow-list."""
SHORT_BY_NATURE = {"__init__.py", "__main__.py", "registry.py", "config.py"}
MAX_FUNCTION_LINES = 80
MAX_ONE_CALLER_SHARE = 25
"""Percent of a package's functions that are private and named once in their file outside of their definition."""
PACKAGE_LINES = 2000
"""The share is measured in packages of more lines than this; in small ones a single function moves it too far."""
MAX_DEPTH = 2
MAX_CONFIG_DEPTH = 3

ODD_WORDS = re.compile(
    r"(?<!there )\bis no\b(?! longer)"  # "X is no Y": write "X is not a Y; expected ..."
    r"|\b(?:shall|wishes|told|without a word|be had|taken back|stands (?:here|there|in|beside))\b"
    r"|\b(?:hears?|comes? to be|look(?:s|ed)? (?:awake|around|jointly)|carr(?:y|ies) out|nothing that [\w ]+ counts)\b",
    re.IGNORECASE,
)
ODD_OPENING = re.compile(r"^(?:One|From|How)\b|^[^.]*\?")
"""The first sentence of a module's docstring says what the module does."""
GENERATED_PROSE = re.compile(
    r"docs/(?:zh|reference|areal-new)/|docs/faults\.md$|skills/upgrade-deps/checklists/|skills/translate-doc-zh/"
)
PROSE = ("docs/", "skills/", "agents/", "README.md", "AGENTS.md")


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Return every file that is, or with the next `git add` would be, part of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in sorted(filter(None, listed.split("\0"))) if (path := ROOT / name).is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Return Python files below the folders (all when none is given); template sources are not Python yet."""
    wanted = tuple(f"{folder}/" for folder in folders)
    names = [(path, relative(path)) for path in repository_files() if path.suffix == ".py"]
    return [
        path for path, name in names if not name.startswith("templates/") and (not wanted or name.startswith(wanted))
    ]


@functools.cache
def generated_files() -> frozenset[str]:
    """Return the files of generated units: their templates answer for their design, in tests/templates."""
    receipts = [path for path in repository_files() if relative(path).startswith(".areal/receipts/")]
    return frozenset(
        name for path in receipts if path.suffix == ".json" for name in json.loads(source_of(path))["files"]
    )


def measured_files(*folders: str) -> list[Path]:
    """Return the Python files that people design."""
    return [path for path in python_files(*folders) if relative(path) not in generated_files()]


@functools.cache
def source_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(source_of(path), filename=str(path))


def module_of(name: str) -> str:
    """Return the dotted name of a module: `areal/api/__init__.py` -> `areal.api`."""
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def package_of(path: Path) -> str:
    """Return `areal/engine` for any file below that folder, and the first folder for files directly in it."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


@functools.cache
def _nodes_by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """Return the nodes of a tree, apart from operators and contexts; much faster than `ast.walk`."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    nodes: list[ast.AST] = [tree_of(path)]
    for node in nodes:
        found.setdefault(type(node), []).append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST) and name not in {"ctx", "op"}:
                nodes.append(value)
    return found


def nodes_of(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Return the nodes of a file that have one of the kinds, kind by kind."""
    nodes = _nodes_by_kind(path)
    return [node for kind in kinds for node in nodes.get(kind, ())]


def forget() -> None:
    """Drop sources and syntax trees from memory."""
    for cached in (source_of, tree_of, _nodes_by_kind, functions_with_names):
        cached.cache_clear()


@functools.cache
def functions_with_names(path: Path) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return (qualified name, node) of every function in a file, nested ones included."""
    found = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                continue  # no expression contains a `def`
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{prefix}{child.name}", child))
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            visit(child, f"{prefix}{child.name}." if named else prefix)

    visit(tree_of(path), f"{relative(path)}::")
    return found


# ---------------------------------------------------------------------------------------------------------- sizes


def file_lines() -> dict[str, int]:
    return {relative(path): len(source_of(path).splitlines()) for path in measured_files()}


def short_files() -> dict[str, int]:
    """Return product files with fewer lines than a file of its own is worth; a registered unit has one by rule."""
    units = {
        match[1].replace(".", "/") + ".py"
        for path in measured_files("areal")
        if path.name == "registry.py"
        for match in re.finditer(r'"([\w.]+):\w+"', source_of(path))
    }
    return {
        name: lines
        for path in measured_files("areal", "tooling")
        if path.name not in SHORT_BY_NATURE and (name := relative(path)) not in units
        if (lines := len(source_of(path).splitlines())) < MIN_FILE_LINES
    }


def function_lines() -> dict[str, int]:
    return {
        name: node.end_lineno - node.lineno + 1
        for path in measured_files()
        for name, node in functions_with_names(path)
    }


# ------------------------------------------------------------------------------------------------------------ cut


@dataclass
class Package:
    """Counts of one package: its lines, its functions, and its private functions with one caller."""

    lines: int = 0
    functions: int = 0
    one_caller: int = 0

    @property
    def share(self) -> int:
        """Return private functions with one caller in percent of all functions."""
        return round(100 * self.one_caller / max(1, self.functions))


@functools.cache
def packages() -> dict[str, Package]:
    found: dict[str, Package] = {}
    for path in measured_files("areal", "tooling"):
        package = found.setdefault(package_of(path), Package())
        package.lines += len(source_of(path).splitlines())
        mentioned = Counter(
            node.id if isinstance(node, ast.Name) else node.attr for node in nodes_of(path, ast.Name, ast.Attribute)
        )
        for _, node in functions_with_names(path):
            package.functions += 1
            private = node.name.startswith("_") and not node.name.startswith("__")
            package.one_caller += private and mentioned[node.name] == 1
    return found


def one_caller_shares() -> dict[str, int]:
    return {name: package.share for name, package in packages().items() if package.lines > PACKAGE_LINES}


def public_class_names() -> dict[str, int]:
    """Return how many classes at the top level of a module have one public name: `areal.Outcome` -> 2."""
    names = Counter(
        f"{path.relative_to(ROOT).parts[0]}.{node.name}"
        for path in measured_files("areal", "tooling")
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return dict(names)


class Inheritance:
    """Bases of the project's classes, followed through imports and re-exports."""

    def __init__(self) -> None:
        self.modules: dict[str, dict[str, ast.ClassDef | str]] = {}
        """Per module what a name is: a class defined in it, or the dotted path that it was imported from."""
        for path in python_files("areal", "tooling"):
            names: dict[str, ast.ClassDef | str] = {}
            for node in nodes_of(path, ast.ImportFrom, ast.Import, ast.ClassDef):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                elif isinstance(node, ast.Import):
                    names |= {alias.asname: alias.name for alias in node.names if alias.asname}
                elif isinstance(node, ast.ClassDef):
                    names[node.name] = node
            self.modules[module_of(relative(path))] = names

    def find(self, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """Return the class that a (dotted) name means in a module, with its own module; None outside the project."""
        first, _, rest = name.partition(".")
        meaning = self.modules.get(module, {}).get(first)
        if isinstance(meaning, ast.ClassDef):
            return module, meaning
        if meaning is None:
            return None
        target = f"{meaning}.{rest}" if rest else meaning
        inside, _, last = target.rpartition(".")
        return self.find(inside, last) if inside in self.modules else None

    def ancestors(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """Yield the bases of a class that the project defines."""
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if found := self.find(module, ast.unparse(plain)):
                yield found

    def depth(self, module: str, node: ast.ClassDef) -> int:
        """Return the classes of the project on the longest way up, the class included.

        A Protocol is a contract and the root of errors a mark: both count nothing. `class Chat(Dataset)` over
        `class Dataset(Protocol)` has depth 1, `class TimeoutFault(Fault)` over `class Fault(Exception)` too.
        """
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        above = max((self.depth(*base) for base in self.ancestors(module, node)), default=0)
        is_root = not above and any(base.endswith(("Exception", "Error")) for base in bases)
        return above + (not is_root and "Protocol" not in bases)

    def is_config(self, module: str, node: ast.ClassDef) -> bool:
        return (module, node.name) == ("areal.api.config", "Config") or any(
            self.is_config(*base) for base in self.ancestors(module, node)
        )


def depths() -> tuple[dict[str, int], dict[str, int]]:
    """Return the depth of every class, of ordinary ones and of records of configuration."""
    inheritance = Inheritance()
    ordinary, configs, generated = {}, {}, set(map(module_of, generated_files()))
    for module, names in inheritance.modules.items():
        for name, node in names.items():
            if isinstance(node, ast.ClassDef) and module not in generated:
                group = configs if inheritance.is_config(module, node) else ordinary
                group[f"{module}.{name}"] = inheritance.depth(module, node)
    return ordinary, configs


# ------------------------------------------------------------------------------------------------------- wordings


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what is read as English in a file: strings of code, all of a page."""
    if path.suffix != ".py":
        yield from enumerate(source_of(path).splitlines(), 1)
        return
    for node in nodes_of(path, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value


def odd_wordings() -> dict[str, list[str]]:
    """Return places with wordings that the house style avoids, by package or folder of pages."""
    files = measured_files("areal", "tooling")
    files += [
        path
        for path in repository_files()
        if path.suffix == ".md" and (name := relative(path)).startswith(PROSE) and not GENERATED_PROSE.search(name)
    ]
    found: dict[str, list[str]] = {}
    for path in files:
        folder = package_of(path) if path.suffix == ".py" else relative(path).partition("/")[0]
        places = found.setdefault(folder, [])
        for line, text in _texts(path):
            for match in ODD_WORDS.finditer(text):
                around = text[max(0, match.start() - 40) : match.end() + 30]
                places.append(f"{relative(path)}:{line}: {' '.join(around.split())}")
        opening = ast.get_docstring(tree_of(path)) if path.suffix == ".py" else None
        if opening and ODD_OPENING.search(opening):
            places.append(f"{relative(path)}:1: {opening.splitlines()[0]}")
    return found


# ----------------------------------------------------------------------------------------------------- allow-list


def allowlist() -> dict[str, dict[str, int | str]]:
    return tomllib.loads(ALLOWLIST.read_text(encoding="utf-8"))


def measures() -> dict[str, tuple[dict[str, int], int]]:
    """Return what is measured and its limit, by section of the allow-list."""
    ordinary, configs = depths()
    return {
        "file_lines": (file_lines(), MAX_FILE_LINES),
        "function_lines": (function_lines(), MAX_FUNCTION_LINES),
        "one_caller_share": (one_caller_shares(), MAX_ONE_CALLER_SHARE),
        "depth": (ordinary, MAX_DEPTH),
        "config_depth": (configs, MAX_CONFIG_DEPTH),
        "class_names": (public_class_names(), 1),
        "wording": ({folder: len(places) for folder, places in odd_wordings().items()}, 0),
    }


def tightened(text: str, measured: Mapping[str, tuple[dict[str, int], int]], short: Mapping[str, int]) -> str:
    """Return the allow-list with its numbers lowered to what is measured, without entries nobody needs."""
    section, kept = "", []
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
        if entry := re.match(r'"(.+)" = (\d+)$', line):
            sizes, limit = measured[section]
            size = min(sizes.get(entry[1], 0), int(entry[2]))
            if size > limit:
                kept.append(f'"{entry[1]}" = {size}')
        elif not ((entry := re.match(r'"(.+)" = "', line)) and section == "short_files" and entry[1] not in short):
            kept.append(line)
    return "\n".join(kept) + "\n"


def report() -> str:
    """Return one row per package, and every place over a limit."""
    lines = [f"{'package':24}{'lines':>8}{'functions':>11}{'one caller':>12}{'share':>7}"]
    lines += [
        f"{name:24}{package.lines:8}{package.functions:11}{package.one_caller:12}{package.share:6}%"
        for name, package in sorted(packages().items())
    ]
    for section, (sizes, limit) in measures().items():
        if over := sorted(((size, name) for name, size in sizes.items() if size > limit), reverse=True):
            lines += ["", f"{section}: {len(over)} over {limit}", *(f"  {size:5} {name}" for size, name in over)]
    lines += ["", *(f"  {lines_:5} {name}" for name, lines_ in short_files().items())]
    lines += ["", *(f"  {place}" for places in odd_wordings().values() for place in places)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tighten", action="store_true", help="lower the allow-list to what is measured")
    if parser.parse_args().tighten:
        before = ALLOWLIST.read_text(encoding="utf-8")
        ALLOWLIST.write_text(tightened(before, measures(), short_files()), encoding="utf-8")
    else:
        print(report())


if __name__ == "__main__":
    main()
