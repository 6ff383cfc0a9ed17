"""Names across files: imports that lead nowhere, cost or demand too much in their place, calls that do not fit,
attributes that no class has."""

from __future__ import annotations

import ast
import enum
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in
from tooling.python.source import string_of
from tooling.python.symbols.calls import why_refused
from tooling.review.records import Place, Rule, Severity, is_test
from tooling.review.rules.members import handed_on, members_of, subclasses
from tooling.review.rules.readings import is_expected, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side


def unresolved_import(module: Module, side: Side) -> Iterator[Hit]:
    """`from ours.module import name` where there is no such module or name, and tables of what to import on demand."""
    for line, origin, name in _on_demand(module, side):
        problem = _missing(side, origin, name)
        if problem:
            yield line, problem, side.packages.get(origin, "")
    for node in module.nodes(ast.ImportFrom):
        origin = module.absolute(node)
        if not _is_ours(origin, side) or _is_guarded(module, node):
            continue
        for alias in node.names:
            problem = _missing(side, origin, alias.name)
            if problem:
                yield node, problem, side.packages.get(origin, "")
    for plain in module.nodes(ast.Import):
        for alias in plain.names:
            known = side.may_have(alias.name)
            if _is_ours(alias.name, side) and not known and not _is_guarded(module, plain):
                yield plain, f"there is no module `{alias.name}`"


def _on_demand(module: Module, side: Side) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of `_LAZY = {"Engine": ".engine"}` and `_import_structure = {"base": ["Engine"]}`."""
    for variable, table in module.values.items():
        if not _LAZY.search(variable) or not isinstance(table, ast.Dict):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            first, second = string_of(key), string_of(value)
            if first and second and (second.startswith(".") or _is_ours(second, side)):
                yield value.lineno, f"{module.package}{second}" if second.startswith(".") else second, first
            elif first and isinstance(value, ast.List):
                names = [(each.lineno, string_of(each)) for each in value.elts]
                yield from ((line, f"{module.package}.{first.lstrip('.')}", name) for line, name in names if name)


_LAZY: Final = re.compile(r"lazy|import_structure", re.IGNORECASE)


def _is_ours(name: str, side: Side) -> bool:
    return name.partition(".")[0] in side.roots


def _is_guarded(module: Module, node: ast.AST) -> bool:
    """Whether an ImportError is expected there, or the import is for types only."""
    handlers = [each for one in module.around(node) if isinstance(one, ast.Try) for each in one.handlers]
    caught = [ast.unparse(each.type) if each.type is not None else "Exception" for each in handlers]
    return any(name in each for each in caught for name in ("ImportError", "ModuleNotFoundError", "Exception"))


def _missing(side: Side, origin: str, name: str) -> str:
    if origin not in side.packages:
        return "" if side.may_have(origin) else f"there is no module `{origin}`"
    if name == "*" or side.may_have(f"{origin}.{name}"):
        return ""
    target = side.find_module(origin)
    if target is None or name in bound_names(target) or _is_open(target):
        return ""
    return f"`{origin}` has no `{name}`"


def bound_names(module: Module) -> set[str]:
    """Return every name that a module may bind at its top level, in whatever branch."""
    return module.bindings.keys() | {"__doc__", "__file__", "__name__", "__path__", "__all__", "__version__"}


def _is_open(module: Module) -> bool:
    """Whether names may come from elsewhere: `import *`, a module `__getattr__`, `globals()`, generated files."""
    stars = any(alias.name == "*" for node in module.nodes(ast.ImportFrom) for alias in node.names)
    return stars or "__getattr__" in module.top_level or "globals()" in module.text or "sys.modules" in module.text


def signature_mismatch(module: Module, side: Side) -> Iterator[Hit]:
    """Find a call of our own function that its signature refuses."""
    for written in module.nodes(ast.Call):
        node = handed_on(written)
        name = _called(module, node.func)
        target = side.definition(name) if _is_ours(name, side) else None
        if target is None:
            continue
        owner, definition = target
        signature = side.signature(name, definition)
        partial = last_name(written.func) == "partial"
        problem = why_refused(signature, node, partial=partial) if signature is not None else ""
        root = ast.unparse(node.func).partition(".")[0]
        if len(module.bindings.get(root, ())) > 1:
            continue  # two functions import two things under one name
        around = list(module.around(written)) if problem else []
        shadowed = any(root in module.shadowing[each] for each in around if isinstance(each, Function | ast.Lambda))
        if problem and not shadowed and not is_expected(module, written):
            evidence = f"{owner.path}:{definition.lineno}"
            said = f"`{ast.unparse(node.func)[:80]}(...)`: {problem}"
            # In a call of many lines, the line of the argument that it speaks of
            line = next((each.value.lineno for each in node.keywords if f"`{each.arg}`" in problem), node.lineno)
            yield line, said, evidence


def _called(module: Module, func: ast.expr) -> str:
    """Return the dotted name of what is called: "areal.utils.load" of `load(...)`, and of `utils.load(...)`."""
    if isinstance(func, ast.Attribute) and func.attr == "remote" and not isinstance(func.value, ast.Name):
        return _called(module, _made_remote(module, func.value) or func.value)
    if isinstance(func, ast.Name):
        return module.imported.get(func.id, f"{module.package}.{func.id}")
    root = func
    while isinstance(root, ast.Attribute):
        root = root.value
    return module.dotted(func) if isinstance(root, ast.Name) and root.id in module.imported else ""


def _made_remote(module: Module, actor: ast.expr) -> ast.expr | None:
    """Return `C` of `ray.remote(C)`, `ray.remote(num_gpus=1)(C)` and `ray.remote(C).options(...)`."""
    if not isinstance(actor, ast.Call):
        return None
    if isinstance(actor.func, ast.Attribute) and actor.func.attr == "options":
        return _made_remote(module, actor.func.value)
    wrapper = actor.func.func if isinstance(actor.func, ast.Call) else actor.func
    return actor.args[0] if len(actor.args) == 1 and module.dotted(wrapper) == "ray.remote" else None


def unknown_attribute(module: Module, side: Side) -> Iterator[Hit]:
    """`config.field` of a parameter that is annotated with our own dataclass, which has no such field."""
    for function in module.functions():
        for parameter in [*function.args.args, *function.args.kwonlyargs]:
            if not isinstance(parameter.annotation, ast.Name) or parameter.arg == "self":
                continue
            fields = _attributes(side, module, parameter.annotation.id)
            if fields is None or _is_retyped(function, parameter.arg):
                continue
            for node in (each for statement in function.body for each in ast.walk(statement)):
                if not isinstance(node, ast.Attribute) or not _is_named(node.value, parameter.arg):
                    continue
                if isinstance(node.ctx, ast.Store):
                    # Only what looks like an older name of a field, and nothing reads any more
                    like = any(each.startswith(f"{node.attr}_") or each.endswith(f"_{node.attr}") for each in fields)
                    modules = map(side.module, side.grep([node.attr], "*.py") if like else ())
                    uses = (each for one in modules if one is not None for each in one.nodes(ast.Attribute))
                    read = any(each.attr == node.attr and isinstance(each.ctx, ast.Load) for each in uses)
                    if read or not like:
                        continue
                if node.attr not in fields and not node.attr.startswith("__") and not _asked_for(function, node):
                    derived = subclasses(side, parameter.annotation.id)
                    if any(
                        node.attr in {one.name for one in each.body if isinstance(one, Function)} for _, each in derived
                    ):
                        continue  # it is annotated as the base of what has it
                    yield node, f"`{parameter.annotation.id}` has no `{node.attr}`"


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_retyped(function: Function, name: str) -> bool:
    """Whether the parameter is assigned, or its type asked for: nothing is certain then."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store | ast.Del):
            return True
        first = node.args[:1] if isinstance(node, ast.Call) and last_name(node.func) in {"isinstance", "type"} else []
        if any(_is_named(each, name) for each in first):
            return True
    return False


def _asked_for(function: Function, node: ast.Attribute) -> bool:
    """Tell whether the function holds `hasattr(x, "name")` or another assignment of the attribute."""
    for each in ast.walk(function):
        if isinstance(each, ast.Constant) and each.value == node.attr:
            return True
        if not isinstance(each, ast.Attribute) or each is node:
            continue
        if isinstance(each.ctx, ast.Store) and each.attr == node.attr:
            return True
    return False


def _attributes(side: Side, module: Module, name: str) -> set[str] | None:
    """Return fields and methods of a dataclass with all its bases; None if any of it is not ours or not plain."""
    target = side.named(module, name)
    if target is None or not isinstance(target[1], ast.ClassDef):
        return None
    classes, foreign = side.lineage(target[0], target[1])
    names: set[str] = set()
    for _, each in classes:
        decorators = [ast.unparse(decorator) for decorator in each.decorator_list]
        if len(decorators) != 1 or not decorators[0].startswith(("dataclass", "dataclasses.dataclass")):
            return None
        for node in ast.walk(each):
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return None if foreign or {"__getattr__", "__getattribute__"} & names else names


_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})


_OF_EVERY_CLASS = frozenset(dir(type))
_OF_ENUMS = frozenset(each for kind in (enum.Enum, enum.IntFlag) for each in vars(kind))
"""What enumerations keep beside their members: `_value2member_map_`, `_member_names_`."""


def unknown_member(module: Module, side: Side) -> Iterator[Hit]:
    """Find `Kind.GONE` of a class or an enumeration of ours that has no such member."""
    for node in module.nodes(ast.Attribute):
        if (
            not isinstance(node.value, ast.Name)
            or not isinstance(node.ctx, ast.Load)
            or not node.value.id[:1].isupper()
        ):
            continue
        target = side.named(module, node.value.id) if len(module.bindings.get(node.value.id, ())) == 1 else None
        if target is None or not isinstance(target[1], ast.ClassDef) or node.attr.startswith("__"):
            continue
        known = _class_members(side, target[0], target[1])
        if known is None or node.attr in known | _OF_EVERY_CLASS or _is_guarded(module, node):
            continue
        set_from_outside = f"{node.value.id}.{node.attr} =" in module.text or f'"{node.attr}"' in module.text
        if not set_from_outside and not any(node.attr in module.shadowing[each] for each in module.around(node)):
            yield node, f"`{node.value.id}` has no `{node.attr}`", target[0].path


def _class_members(side: Side, module: Module, owner: ast.ClassDef) -> set[str] | None:
    """Return what can be read from a class; None where a base, a metaclass or a decorator may add to it."""
    if any("dataclass" not in ast.unparse(each) for each in owner.decorator_list if last_name(each) != "unique"):
        return None
    bases = {last_name(each) for each in owner.bases}
    if not bases & _ENUMS:
        return None if owner.keywords else members_of(side, module, owner)
    if (
        owner.keywords
        or bases - _ENUMS - {"str", "int", "float"}
        or any(isinstance(each, ast.For) for each in owner.body)
    ):
        return None
    names = {each.name for each in owner.body if isinstance(each, Function | ast.ClassDef)}
    names |= {each.id for each in nodes_in(owner, ast.Name) if isinstance(each.ctx, ast.Store)}
    return names.union(dir(str), dir(int), dir(float), {"name", "value"}, _OF_ENUMS)


def registry_target(module: Module, side: Side) -> Iterator[Hit]:
    """Find a "module:object" of ours that does not exist. Outside of registries such a text may be anything: there the
    module must exist, or the object under another module of that last name."""
    registers = module.path.endswith("registry.py")
    for node in module.nodes(ast.Constant):
        named = _TARGET.fullmatch(node.value) if isinstance(node.value, str) else None
        if named is None or not _is_ours(named[1], side):
            continue
        root, last = named[1].partition(".")[0], named[1].rpartition(".")[2]
        if not registers and last in _SUFFIXES:
            continue  # "config.yaml:actor"
        problem = _missing(side, named[1], named[2])
        if problem and not registers and named[1] not in side.packages:
            alike = [each for each in side.packages if each.startswith(f"{root}.") and each.endswith(f".{last}")]
            modules = [found for each in alike if (found := side.find_module(each)) is not None]
            problem = problem if any(named[2] in bound_names(each) for each in modules) else ""
        if problem:
            yield node, f"registry entry: {problem}"


_SUFFIXES: Final = frozenset(
    ["cfg", "conf", "csv", "ini", "js", "json", "jsonl", "log", "md", "py", "sh", "toml", "txt", "yaml", "yml"]
)
_TARGET: Final = re.compile(r"([a-z_]\w*(?:\.\w+)+):([A-Za-z_]\w*)(?:\.\w+)*")


def unregistered(comparison: Comparison) -> Iterator[Place]:
    """Find a new file beside a registry that names all its siblings, and not this one."""
    for file in comparison.files:
        folder, _, name = file.path.rpartition("/")
        registry = comparison.head.module(f"{folder}/registry.py")
        if file.status != "A" or not name.endswith(".py") or name.startswith("_") or registry is None:
            continue
        registered = {
            node.value.partition(":")[0]
            for node in registry.nodes(ast.Constant)
            if isinstance(node.value, str) and ":" in node.value
        }
        package = registry.package.rpartition(".")[0]
        siblings = {path for path in comparison.base.packages if path.rpartition(".")[0] == package}
        module = comparison.head.module(file.path)
        own = {path.rpartition(".")[2] for path in siblings & registered}
        suffixes = {_entry_suffix(registry, each) for each in siblings & registered}
        made = list(module.top_level) if module is not None else []
        looks_like_one = any(suffix and each.endswith(suffix) for suffix in suffixes for each in made)
        if own and looks_like_one and f"{package}.{name[:-3]}" not in registered:
            yield Place(file.path, 1, f"is not in {folder}/registry.py, unlike {', '.join(sorted(own)[:3])}")


def _entry_suffix(registry: Module, target: str) -> str:
    """Return "_reward" of "areal.reward.gsm8k:gsm8k_reward"."""
    for node in registry.nodes(ast.Constant):
        if isinstance(node.value, str) and node.value.startswith(f"{target}:"):
            name, stem = node.value.partition(":")[2], target.rpartition(".")[2]
            return name.removeprefix(stem) if name.startswith(stem) else ""
    return ""


HEAVY = words("""
    datasets deepspeed flash_attn jax megatron ray sglang tensorflow torch transformers vllm
""")
"""Packages whose import takes seconds, or that are there only where they can run."""
_ENOUGH = 3
"""Files that import a package late, before one that does not is an outlier."""


def heavy_root(module: Module, side: Side) -> Iterator[Hit]:
    """Find a package that loads its parts on demand, and a heavy package at once."""
    if not module.path.endswith("__init__.py") or "__getattr__" not in module.top_level:
        return
    for node, name in _at_import(module):
        if name in HEAVY and name not in side.roots:
            yield node, f"`{name}` is loaded with the package; its other parts on demand"


def heavy_outlier(comparison: Comparison) -> Iterator[Place]:
    """Find a heavy package imported with the module, when all other files of the repository import it late or
    guarded."""
    suspects = [
        (file.path, node, name)
        for file in comparison.files
        if (module := comparison.head.module(file.path)) is not None and not is_test(file.path)
        for node, name in _at_import(module)
        if name in HEAVY and node.lineno in file.added and name not in comparison.head.roots
    ]
    for path, node, name in suspects:
        late = _late(comparison.base, name, path)
        if len(late) >= _ENOUGH:
            message = f"`{name}` is imported with the module; all {len(late)} other files import it late or guarded"
            yield Place(path, node.lineno, message, late[0])


def _late(side: Side, name: str, besides: str) -> list[str]:
    """Return the files that import a package late; none if one of the package's folder does not."""
    top = besides.partition("/")[0]
    paths = [path for path in side.grep([name], "*.py") if path != besides and path.partition("/")[0] == top]
    side.load(paths)
    found: list[str] = []
    for path in paths:
        module = None if is_test(path) else side.module(path)
        if module is None or not any(name in set(_packages(node)) for node in _all(module)):
            continue
        if any(each == name for _, each in _at_import(module)):
            return []
        found.append(path)
    return found


def _all(module: Module) -> Iterator[ast.Import | ast.ImportFrom]:
    yield from module.nodes(ast.Import)
    yield from module.nodes(ast.ImportFrom)


def _packages(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif not node.level and node.module:
        yield node.module.partition(".")[0]


def _at_import(module: Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Yield imports that run when the module is imported, and must not fail."""
    for node in _all(module):
        if all(isinstance(each, ast.Module | ast.With) for each in module.around(node)):
            yield from ((node, name) for name in _packages(node))


def relative_in_script(module: Module, side: Side) -> Iterator[Hit]:
    """Find a relative import in a main program outside of packages that a document or a script runs as a file: it has
    no parent there. `python -m examples.search.run` gives it one, `__init__.py` or not."""
    # A folder below a package is run as `-m package.folder.program`.
    folders = ["", *itertools.accumulate(module.path.split("/")[:-1], "{}/{}".format)]
    if "__main__" not in module.text or any(f"{each}/__init__.py".lstrip("/") in side.paths for each in folders):
        return
    tests = (each.test for each in module.nodes(ast.If) if module.parents.get(each) is module.tree)
    if not any("__name__ == '__main__'" in ast.unparse(each) for each in tests):
        return
    relative = [each for each in module.nodes(ast.ImportFrom) if each.level and module.parents.get(each) is module.tree]
    told = _run_as_file(module.path, side) if relative else ""
    for node in relative if told else ():
        yield node, f"`{ast.unparse(node)[:60]}` fails where this file is run as {told} says", told


def _run_as_file(path: str, side: Side) -> str:
    """Return the first document, workflow or script that says `python3 -u examples/run.py`, or
    `python -m some.launcher examples/run.py`; "" for none."""
    gap = r"(?:[ \t]|\\\n)+"
    option = rf"{gap}-m{gap}[\w.]*(?:launch|distributed\.run)[\w.]*|{gap}-(?!m)[^\s`]+"
    run = re.compile(rf"(?:python[\d.]*|torchrun)(?:{option})*{gap}(?:\./)?{re.escape(path)}(?![\w/])")
    return next((each for each in side.grep([path], *_TELLING) if run.search(side.text(each) or "")), "")


_TELLING = ("*.md", "*.rst", "*.txt", "*.sh", "*.yml", "*.yaml", "*.toml", "*.py", "*Makefile", "*Dockerfile")


def test_in_library(module: Module, side: Side) -> Iterator[Hit]:
    """Find a module of a package that needs tests of the same package to be imported."""
    if is_test(module.path) or not module.path.endswith(".py") or "test" in module.path.lower():
        return
    for node in module.nodes(ast.ImportFrom):
        origin = module.absolute(node)
        path = side.packages.get(origin, "")
        at_top = all(isinstance(each, ast.Module) for each in module.around(node))
        root = origin.partition(".")[0]
        same = root in side.roots and module.package.partition(".")[0] == root
        # `pkg/test_time.py` is installed like the modules beside it.
        if at_top and same and {"test", "tests"} & set(path.split("/")[:-1]):
            yield node, f"`{origin}` is a test: it is not there where this is installed", path


RULES: Final = (
    Rule("unresolved-import", Severity.CRITICAL, in_file=unresolved_import),
    Rule("signature-mismatch", Severity.HIGH, in_file=signature_mismatch),
    Rule("unknown-attribute", Severity.HIGH, in_file=unknown_attribute),
    Rule("unknown-member", Severity.HIGH, in_file=unknown_member),
    Rule("registry-target", Severity.CRITICAL, in_tests=False, in_file=registry_target),
    Rule("registry-entry-missing", Severity.MEDIUM, in_change=unregistered),
    Rule("heavy-package-root", Severity.MEDIUM, in_file=heavy_root),
    Rule("heavy-import", Severity.MEDIUM, in_change=heavy_outlier),
    Rule("relative-in-script", Severity.HIGH, in_tests=False, in_file=relative_in_script),
    Rule("test-in-library", Severity.HIGH, in_tests=False, in_file=test_in_library),
)
