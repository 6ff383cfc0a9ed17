"""What an installation of a distribution would hold, told by paths alone; knows neither archives nor networks.

Paths have forward slashes and start at the folder that `sys.path` would name: "vllm/entrypoints/llm.py".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

SOURCES = (".py", ".pyi")
_NATIVE = (".so", ".pyd")
_INITS = ("__init__.py", "__init__.pyi")
_ASIDE_NAMES = "benchmark benchmarks doc docs example examples script scripts test tests tool tools"
_ASIDE = frozenset(_ASIDE_NAMES.split())
"""Top-level folders that wheels carry by accident: part of no interface, and every repository has its own."""
_SHARES = (b"extend_path(__path__", b"declare_namespace(__name__")
"""How an `__init__.py` says that other distributions put modules beside its own."""


def is_source(path: str) -> bool:
    """Whether a path names a file that can be read as a module."""
    return path.endswith(SOURCES)


def is_native(path: str) -> bool:
    """Whether a path names a compiled module."""
    return path.endswith(_NATIVE)


def dotted(path: str) -> str:
    """Module that a source path holds: "a/b.py" -> "a.b", "a/__init__.py" -> "a"."""
    stem = path.rsplit(".", 1)[0]
    return stem.removesuffix("/__init__").replace("/", ".")


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """All folders on the way to these paths."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return frozenset(found)


def native_modules(paths: Iterable[str]) -> frozenset[str]:
    """Dotted names of compiled modules: "vllm/_C.abi3.so" -> "vllm._C". Libraries that cannot be imported by their
    name (`lib.so.1`, `a-b.so`, folders like "torch.libs") are none."""
    found = set()
    for path in paths:
        if is_native(path):
            folder, _, name = path.rpartition("/")
            parts = [*folder.split("/"), name.split(".", 1)[0]] if folder else [name.split(".", 1)[0]]
            if all(part.isidentifier() for part in parts):
                found.add(".".join(parts))
    return frozenset(found)


def without_asides(paths: Collection[str]) -> list[str]:
    """Sorted paths without top-level folders of tests, examples and documents, unless there is nothing else."""
    kept = [path for path in paths if path.partition("/")[0] not in _ASIDE or "/" not in path]
    return sorted(kept or paths)


def owned_roots(paths: Collection[str], read: Callable[[str], bytes]) -> frozenset[str]:
    """Dotted names that belong to the distribution with these files, compiled ones included: top-level modules and
    packages; of a folder without `__init__`, or with one that says it is shared, what lies below it.

    Example: {"megatron/core/__init__.py"} -> {"megatron.core"}.
    """
    children: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    roots: set[str] = set()
    pending = [""]
    while pending:
        folder = pending.pop()
        for name in children[folder]:
            path = f"{folder}/{name}" if folder else name
            if path in children:
                if not name.isidentifier():
                    continue
                if _is_shared(path, children[path], read):
                    pending.append(path)
                else:
                    roots.add(path.replace("/", "."))
            elif is_source(name) and name not in _INITS:
                roots.add(dotted(path))
            elif is_native(name):
                roots.update(native_modules([path]))
    return frozenset(roots)


def _is_shared(folder: str, names: set[str], read: Callable[[str], bytes]) -> bool:
    if not names.intersection(_INITS):
        # Modules right inside say that it is this distribution's own folder, `__init__` forgotten or not.
        return not any(is_source(name) for name in names)
    if "__init__.py" not in names:
        return False
    content = read(f"{folder}/__init__.py").replace(b" ", b"")
    return any(mark in content for mark in _SHARES)
