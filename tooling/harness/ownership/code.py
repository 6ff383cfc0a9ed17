"""What the code says about itself, read as text: packages, programs, configuration, tables of names, refusals.

Nothing is imported. Each reader takes the files that it reads, and answers in their order.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.cli.toml import TOMLError, parse_toml
from tooling.python.source import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_TARGET = re.compile(r"[a-z_]\w*(?:\.\w+)+:[A-Za-z_][\w.]*")
_REFUSALS = frozenset({"ConfigError", "ModelError", "UsageError"})
_CHECK = r"__post_init__|_?(?:check|refuse|validate)\w*|\w+_problems"
_CHECKS = re.compile(_CHECK)
_MAY_CHECK = re.compile(rf"def (?:{_CHECK})\(")
_MAY_NAME = re.compile(r'"[a-z_]\w*(?:\.\w+)+:[A-Za-z_][\w.]*"')


def _holding(root: Path, paths: Iterable[str], wanted: re.Pattern[str]) -> Iterator[str]:
    """Yield the files whose text holds a match: parsing the others would take most of the time."""
    for path in paths:
        if wanted.search((root / path).read_text(encoding="utf-8", errors="replace")):
            yield path


def _tree(root: Path, path: str) -> ast.Module:
    """Return a file's syntax; that of an empty file when it is not valid Python."""
    target = root / path
    return _parsed(target, target.stat().st_mtime_ns) if target.is_file() else ast.Module([], [])


@functools.lru_cache(maxsize=1024)
def _parsed(target: Path, _changed: int) -> ast.Module:
    return parsed(target.read_bytes()) or ast.Module([], [])


def summary(root: Path, path: str) -> str:
    """Return the first sentence of a module's docstring, without its full stop; "" without one."""
    text = " ".join((ast.get_docstring(_tree(root, path)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[\w`)])\.(?:\s|$)", text, maxsplit=1)[0].rstrip(":. ")


@dataclass(frozen=True, slots=True)
class Runnable:
    """What a user runs. Example: Runnable("areal plan", "areal/cli/commands/plan.py", "say what training costs")."""

    line: str
    path: str
    about: str


def programs(root: Path, files: Sequence[str]) -> list[Runnable]:
    """Return the console scripts, their commands where a table `COMMANDS` lists them, and packages that run."""
    try:
        manifest: Mapping[str, Any] = parse_toml((root / "pyproject.toml").read_bytes())
    except (OSError, *TOMLError):
        manifest = {}
    found, scripts = [], manifest.get("project", {}).get("scripts", {})
    entries = {name: _entry(root, target) for name, target in scripts.items()}
    for name, path in sorted(entries.items()):
        folder = path.rpartition("/")[0]
        found.append(Runnable(name, path, _about(name, root, path, f"{folder}/__init__.py")))
        commands = _tables(_tree(root, path)).get("COMMANDS", {})
        found += [Runnable(f"{name} {word}", f"{folder}/commands/{word}.py", about) for word, about in commands.items()]
    for path in files:
        package, _, name = path.rpartition("/")
        if name == "__main__.py" and path not in entries.values() and f"{package}/__init__.py" in files:
            line = f"python -m {package.replace('/', '.')}"
            found.append(Runnable(line, path, _about(line, root, path, f"{package}/__init__.py")))
    return found


def _entry(root: Path, target: str) -> str:
    """Return the file of a "module:function"; a package whose tables say what its attribute runs is looked through."""
    module, _, attribute = target.partition(":")
    path = module.replace(".", "/")
    for table in _tables(_tree(root, f"{path}/__init__.py")).values():
        if _TARGET.fullmatch(table.get(attribute, "")):
            return _entry(root, table[attribute])
    return f"{path}.py"


def _about(line: str, root: Path, *paths: str) -> str:
    """Return the first summary of these files, without the program's own name."""
    about = next((text for text in (summary(root, path) for path in paths) if text), "")
    name = re.escape(line)
    return re.sub(rf"^`{name}[^`]*`(?::| is) |: the program `{name}`$", "", about)


def _tables(tree: ast.Module) -> dict[str, dict[str, str]]:
    """Return the constants of a module that are literal tables of texts; an inner table counts for its keys."""
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue
        table = {
            key: one if isinstance(one, str) else ", ".join(map(str, one.values()))
            for key, one in value.items()
            if isinstance(one, str | dict)
        }
        if isinstance(target, ast.Name) and target.id.isupper() and table and len(table) == len(value):
            found[target.id] = table
    return found


def registries(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Yield path, name and entries of each table in these files whose values are all `module:object`, by their keys."""
    for path in _holding(root, paths, _MAY_NAME):
        for name, table in _tables(_tree(root, path)).items():
            entries = {key: value.split(", ") for key, value in table.items()}
            if all(_TARGET.fullmatch(one) for targets in entries.values() for one in targets):
                yield path, name, entries


def public_classes(root: Path, paths: Iterable[str], ending: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of the classes in these files whose names end so; contracts and private ones are left out."""
    for path in _holding(root, paths, re.compile(rf"^class \w+{ending}\b", re.MULTILINE)):
        for node in _tree(root, path).body:
            if not isinstance(node, ast.ClassDef) or not node.name.endswith(ending) or node.name.startswith("_"):
                continue
            if not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield path, node.name


@dataclass(slots=True)
class ConfigSection:
    """A class of a configuration file's section."""

    name: str
    path: str
    bases: list[str]
    fields: dict[str, list[str]] = field(default_factory=dict)
    """Its own, each with the values it is limited to; none: it takes any."""
    sections: dict[str, list[str]] = field(default_factory=dict)
    """Fields that are sections themselves, with the names in their annotations."""
    keys: list[str] = field(default_factory=list)
    """Its places in a file: "actor", "archon.parallel"; "kind: rl" for a whole file, "" for what all have."""


def sections(root: Path, paths: Iterable[str], base: str = "Config") -> dict[str, ConfigSection]:
    """Return the classes below `base` that a configuration file reaches, by name, with their keys.

    A whole file's class has a field `kind`.
    """
    classes = {one.name: one for path in paths for one in _sections_in(root, path)}
    known, waiting = set[str](), {base}
    while waiting:
        waiting = {one.name for one in classes.values() if waiting & set(one.bases)} - known
        known |= waiting
    classes = {name: one for name, one in classes.items() if name in known}
    for one in classes.values():
        for name in [name for name, words in one.sections.items() if not known & set(words)]:
            del one.sections[name]
    for one in classes.values():
        if "kind" in one.fields:
            one.keys.append(f"kind: {', '.join(one.fields['kind'])}")
            _reach(one, "", classes)
    return {name: one for name, one in classes.items() if one.keys}


def _reach(section: ConfigSection, prefix: str, classes: Mapping[str, ConfigSection]) -> None:
    """Note the keys of all sections below one, those of its bases too."""
    for name, words in section.sections.items():
        key = f"{prefix}{name}"
        for word in words:
            below = classes.get(word)
            if below is not None and key not in below.keys:
                below.keys.append(key)
                _reach(below, f"{key}.", classes)
    for name in section.bases:
        if name in classes:
            if not prefix and "" not in classes[name].keys:
                classes[name].keys.append("")
            _reach(classes[name], prefix, classes)


def _sections_in(root: Path, path: str) -> Iterator[ConfigSection]:
    for node in _tree(root, path).body:
        if not isinstance(node, ast.ClassDef) or not node.bases:
            continue
        section = ConfigSection(node.name, path, [ast.unparse(base) for base in node.bases])
        for one in node.body:
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            text = ast.unparse(one.annotation)
            if text.startswith("ClassVar"):
                continue
            choices = re.fullmatch(r"Literal\[(?P<values>[^\[\]]*)\](?: \| None)?", text)
            values = re.findall(r"'([^']*)'", choices["values"]) if choices else []
            section.fields[one.target.id] = values
            section.sections[one.target.id] = re.findall(r"\w+", text)
        yield section


def refusals(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield path and message of what checks refuse, in order; a NAME stands for what is only known when it happens.

    A check is a function called `__post_init__`, `check...`, `refuse...`, `validate...` or `..._problems`; it raises an
    error of the user's making, or yields what is wrong, or a key with what is wrong about it.
    """
    for path in _holding(root, paths, _MAY_CHECK):
        body = _tree(root, path).body
        inner = [one for node in body if isinstance(node, ast.ClassDef) for one in node.body]
        seen = set[str]()
        for function in (*inner, *body):
            if isinstance(function, ast.FunctionDef) and _CHECKS.fullmatch(function.name):
                for node in sorted(ast.walk(function), key=lambda one: getattr(one, "lineno", 0)):
                    message = _refused(node)
                    if message and message not in seen:
                        seen.add(message)
                        yield path, message


def _refused(node: ast.AST) -> str:
    """Return the message of a `raise` or a `yield`; "" for anything else, and for one without words."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        if ast.unparse(node.exc.func) in _REFUSALS:
            parts = node.exc.args[:1]
    elif isinstance(node, ast.Yield) and node.value is not None:
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    texts = [_words(one) for one in parts]
    text = ": ".join(texts)
    return text if texts and all(texts) and len(re.findall(r"[a-z]{3,}", text)) > 3 else ""


def _words(node: ast.expr) -> str:
    """Return a text as it is written, with a NAME for what is filled in; "" for anything else."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_words, node.values))
    if isinstance(node, ast.FormattedValue):
        return re.findall(r"[A-Za-z]\w*|$", ast.unparse(node.value))[-2:][0].upper() or "..."
    return ""
