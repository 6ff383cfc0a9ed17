"""What the installed transformers can do, read from its files: model types, causal models, fields of their configs.

    catalog = installed_catalog()
    catalog.causal["qwen3"]                # "Qwen3ForCausalLM"
    catalog.fields("qwen3")["head_dim"]    # 128

Importing transformers and torch takes seconds; these files are parsed in a tenth of one, and nothing of them runs.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TABLES: Final = {
    "auto_mappings.py": ("CONFIG_MAPPING_NAMES", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"),
    "configuration_auto.py": ("CONFIG_MAPPING_NAMES", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"),
    "modeling_auto.py": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",),
}
"""Modules of `models/auto` to the tables that they hold or add to; earlier versions have no `auto_mappings.py`."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """One installation of transformers."""

    folder: Path
    """Its `models` folder."""
    version: str
    types: Mapping[str, str]
    """model_type to the name of its config class."""
    causal: Mapping[str, str]
    """model_type to the name of its causal language model, where it has one."""
    modules: Mapping[str, str]
    """model_type to the folder below `models` where that has another name."""

    def fields(self, model_type: str) -> dict[str, Any]:
        """Return the fields that the config class of a type declares, with their defaults; {} where it is not found.

        A default that is computed is None.
        """
        name = self.types.get(model_type)
        for each in (model_type, *(other for other, used in self.types.items() if used == name)):  # gpt-sw3: gpt2's
            folder = self.folder / self.modules.get(each, each.replace("-", "_"))
            for file in sorted(folder.glob("configuration_*.py")):
                if (declared := _declared(_text(file), name)) is not None:
                    return dict(declared)
        return {}


@functools.cache
def installed_catalog() -> Catalog:
    """Return the catalogue of the transformers that this interpreter would import. Raises `SubjectError` without one.

    A version whose tables are not understood is imported.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise SubjectError(f"transformers is not installed for {sys.executable}; install areal[train] there.")
    package = Path(found.submodule_search_locations[0])
    return read_catalog(package) or _imported(package)


def _imported(package: Path) -> Catalog:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return Catalog(
        folder=package / "models",
        version=str(transformers.__version__),
        types=dict(CONFIG_MAPPING_NAMES),
        causal={str(key): str(value) for key, value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()},
        modules={},
    )


def read_catalog(package: Path) -> Catalog | None:
    """Return the catalogue of a folder of transformers; None when its tables are not understood."""
    tables: dict[str, dict[str, str]] = {name: {} for names in _TABLES.values() for name in names}
    for module, names in _TABLES.items():
        file = package / "models/auto" / module
        if not file.is_file():
            continue
        for node in _parse(_text(file)).body:
            name = _table_of(node)
            if name in names:
                tables[name] |= _pairs(node)
    version = re.search(r'^__version__ = "([^"]+)"', _text(package / "__init__.py"), re.MULTILINE)
    types, causal = tables["CONFIG_MAPPING_NAMES"], tables["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"]
    if not types or not causal or version is None:
        return None
    special = tables["SPECIAL_MODEL_TYPE_TO_MODULE_NAME"]
    return Catalog(folder=package / "models", version=version[1], types=types, causal=causal, modules=special)


def _table_of(node: ast.stmt) -> str:
    """Return the name that a statement assigns or updates: `X = ...`, `X: ... = ...`, `X.update(...)`; else ""."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        target = node.value.func.value if node.value.func.attr == "update" else None
    return target.id if isinstance(target, ast.Name) else ""


def _pairs(node: ast.stmt) -> dict[str, str]:
    """Return every pair of texts in a statement, in tuples and in dictionaries.

    Example: `X = OrderedDict([("a", "A")], **{"b": "B"})` -> {"a": "A", "b": "B"}. Of several classes the first is the
    model: `("c", ("C", "FastC"))` -> {"c": "C"}.
    """
    found: dict[str, str] = {}
    values: set[ast.AST] = set()
    for part in ast.walk(node):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(part, ast.Tuple) and len(part.elts) == 2 and part not in values:
            pairs = [(part.elts[0], part.elts[1])]
        elif isinstance(part, ast.Dict):
            pairs = list(zip(part.keys, part.values, strict=True))
        for key, value in pairs:
            values.add(value)
            first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
            if isinstance(key, ast.Constant) and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.setdefault(str(key.value), first.value)
    return found


@functools.cache
def _declared(text: str, name: str | None) -> Mapping[str, Any] | None:
    """Return the fields of a class of a module, None where it has no such class."""
    classes = {node.name: node for node in _parse(text).body if isinstance(node, ast.ClassDef)}
    return _fields(classes, name) if name in classes else None


def _fields(classes: Mapping[str, ast.ClassDef], name: str) -> dict[str, Any]:
    """Return the annotated fields and the parameters of `__init__` of a class, those of its bases in the file first."""
    found: dict[str, Any] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != name:
            found |= _fields(classes, base.id)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if "ClassVar" not in ast.unparse(node.annotation):
                found[node.target.id] = _literal(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.args[1:], *node.args.kwonlyargs]
            missing = [None] * (len(node.args.args) - len(node.args.defaults))
            defaults = [*[*missing, *node.args.defaults][1:], *node.args.kw_defaults]
            found |= {each.arg: _literal(default) for each, default in zip(arguments, defaults, strict=True)}
    return {field: value for field, value in found.items() if not field.startswith("_")}


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
