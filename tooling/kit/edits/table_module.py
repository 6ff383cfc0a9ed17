"""Write the parts of a module that looks strings up in a table: imports, the table, and the loader of its objects.

    REWARDS: typing.Final[dict[str, str]] = {
        "gsm8k": "pkg.gsm8k:gsm8k_reward",
    }

Only for `tooling.kit.edits.migrate`, which proves the result. A project that has a loader of its own may use that
instead afterwards; the generated one imports nothing but the standard library.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.kit.edits.bindings import parse_python
from tooling.kit.edits.ordering import IMPORT_ORDERS, place
from tooling.kit.edits.text import refusal, string_literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.kit.edits.text import SourceText

_VERBS = re.compile(r"^_*((get|load|make|build|create|resolve|find|select|choose|lookup)_)?")
_LOADER = '''\
def {loader}(target: str) -> {any}:
    """Import what "module:object" names; errors of the import reach the caller."""
    module_name, _, path = target.partition(":")
    module = {import_module}(module_name, __package__)
    first, *rest = path.split(".")
    if hasattr(module, first):
        found: {any} = getattr(module, first)
    else:
        found = {import_module}(f"{{module.__name__}}.{{first}}")
    for attribute in rest:
        found = getattr(found, attribute)
    return found
'''


@dataclass(frozen=True, slots=True)
class Names:
    """What the new parts call things, and which modules they must import for it."""

    table: str
    loader: str
    any: str
    final: str
    import_module: str
    imports: tuple[str, ...]

    def loader_source(self) -> str:
        """The function that imports an object; a missing attribute is looked for as a sub-module, as `from` does."""
        return _LOADER.format(loader=self.loader, any=self.any, import_module=self.import_module)

    def import_nodes(self) -> list[ast.stmt]:
        """The imports as syntax."""
        return [ast.Import([ast.alias(name, None)]) for name in self.imports]


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a migration puts together."""

    entries: tuple[tuple[str, str], ...]
    comments: Mapping[str, list[str]]
    """Own-line comments by the key they go above."""
    region: tuple[int, int]
    replacement: bytes
    function: ast.FunctionDef | ast.AsyncFunctionDef

    def table_source(self, names: Names, encoding: str = "utf-8") -> str:
        """The table, one entry per line."""
        lines = [f"{names.table}: {names.final}[dict[str, str]] = {{"]
        for key, target in self.entries:
            lines += [f"    {comment}" for comment in self.comments.get(key, ())]
            value = string_literal(target, encoding=encoding)
            lines.append(f"    {string_literal(key, encoding=encoding)}: {value},")
        return "\n".join([*lines, "}", ""])

    def nodes(self, names: Names) -> list[ast.stmt]:
        """Table and loader as syntax."""
        return parse_python(self.table_source(names) + names.loader_source()).body


def table_name(function: str) -> str:
    """A plural in capitals: "get_reward" -> "REWARDS", "load_policy" -> "POLICIES", "get_loss" -> "LOSSES"."""
    noun = _VERBS.sub("", function).strip("_").upper() or function.strip("_").upper() or "TABLE"
    if re.search(r"[^AEIOU]Y$", noun):
        return noun[:-1] + "IES"
    if re.search(r"(SS|X|CH|SH|Z)$", noun):
        return noun + "ES"
    return noun if noun.endswith("S") else noun + "S"


def choose_names(text: SourceText, tree: ast.Module, table: str, line: int) -> Names:
    """Names that mean nothing else in the module. Raises RegistryShapeError when there are none."""
    used = _identifiers(tree)
    builtins = {"isinstance", "str", "dict", "getattr", "hasattr"} & _assigned(tree)
    if builtins:
        why = f"{', '.join(sorted(builtins))} means something else in this module"
        raise refusal(text.file, line, why, "rename that first")
    free = next((name for name in (table, f"{table}_TABLE") if name not in used), None)
    loader = next((name for name in ("_load_target", "_load_registered") if name not in used), None)
    if free is None or loader is None:
        why = f"{table} or _load_target mean something else in this module"
        raise refusal(text.file, line, why, "rename that first")
    known = _imported_names(tree)
    wanted = {"Any": "typing", "Final": "typing", "import_module": "importlib"}
    spelled = {name: name if known.get(name) == f"{home}.{name}" else f"{home}.{name}" for name, home in wanted.items()}
    needed = {home for name, home in wanted.items() if spelled[name] != name and known.get(home) != home}
    clash = sorted(home for home in needed if home in used)
    if clash:
        raise refusal(text.file, line, f"{clash[0]} means something else in this module", "rename that first")
    return Names(free, loader, spelled["Any"], spelled["Final"], spelled["import_module"], tuple(sorted(needed)))


def assemble(text: SourceText, tree: ast.Module, names: Names, pieces: Pieces) -> bytes:
    """The new module: chain replaced, table and loader above the function, imports in their place."""
    newline = text.newline(0).decode()
    parts = f"{pieces.table_source(names, text.encoding)}\n\n{names.loader_source()}\n\n".replace("\n", newline)
    at = _above(text, pieces.function)
    start, end = pieces.region
    head = text.data[:at]
    if _follows_imports(tree, pieces.function, names):  # formatters want one blank line there, functions had two
        blank = text.newline(0)
        head = head.removesuffix(blank) if head.endswith(blank * 3) else head
    data = head + parts.encode("utf-8") + text.data[at:start] + pieces.replacement + text.data[end:]
    for name in names.imports:
        data = _with_import(text.with_data(data), name, newline)
    return data


def _follows_imports(tree: ast.Module, function: ast.stmt, names: Names) -> bool:
    """Whether the table will stand directly below import lines."""
    index = next(i for i, node in enumerate(tree.body) if node is function)
    if index == 0 or (index == 1 and _is_docstring(tree.body[0])):
        return bool(names.imports)
    return isinstance(tree.body[index - 1], ast.Import | ast.ImportFrom)


def _above(text: SourceText, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Offset of the first line that belongs to a function: its decorators and the comments directly above."""
    line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    while line > 1 and text.data[text.starts[line - 2] :].startswith(b"#"):
        line -= 1
    return text.starts[line - 1]


def _with_import(text: SourceText, name: str, newline: str) -> bytes:
    """`import name` in its sorted place among the standard library's imports; below docstring and `__future__`."""
    tree = parse_python(text.text)
    line = f"import {name}{newline}"
    plain = [node for node in tree.body if isinstance(node, ast.Import) and _standard(node.names[0].name)]
    if plain:
        index, _ = place([node.names[0].name for node in plain], name, IMPORT_ORDERS)
        at = _behind(text, plain[index - 1]) if index else _before(text, plain[0])
        return _put(text, at, line)
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and _standard(node.module or ".")]
    if froms:
        return _put(text, _before(text, froms[0]), line)
    head = [node for node in tree.body[:1] if _is_docstring(node)]
    head += [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    if head:
        return _put(text, _behind(text, head[-1]), newline + line)
    blank = newline * (2 if isinstance(tree.body[0], ast.FunctionDef | ast.ClassDef) else 1)
    return _put(text, _before(text, tree.body[0]), line + blank)


def _put(text: SourceText, at: int, piece: str) -> bytes:
    return text.data[:at] + piece.encode("utf-8") + text.data[at:]


def _before(text: SourceText, node: ast.stmt) -> int:
    return text.starts[node.lineno - 1]


def _behind(text: SourceText, node: ast.stmt) -> int:
    return text.next_line(text.offset(node.end_lineno or node.lineno, 0))


def _standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names and module != "__future__"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _identifiers(tree: ast.Module) -> set[str]:
    """Every name that occurs anywhere, strings not counted."""
    return _assigned(tree) | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _assigned(tree: ast.Module) -> set[str]:
    """Every name that is bound anywhere in the module, in whatever scope."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """What top-level imports bind: {"Any": "typing.Any", "typing": "typing"}; names that are bound again are left
    out."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name: alias.name for alias in node.names if alias.asname is None}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.name: f"{node.module}.{alias.name}" for alias in node.names if alias.asname is None}
    counted = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    return {name: path for name, path in found.items() if name not in {node.id for node in counted}}
