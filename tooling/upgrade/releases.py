"""Releases: what `sources` bring, and everything else reads. Each is one version of one distribution, and tells what an
installation of it holds: modules, owned names, metadata; over any reader of files."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.source import module_name, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tooling.python.symbols.tree import SymbolTree

    Upstream = SymbolTree["Release"]
    """A release as symbols."""


SOURCES = (".py", ".pyi")
_NATIVE = (".so", ".pyd")
_INITS = ("__init__.py", "__init__.pyi")
_ASIDE_NAMES = "benchmark benchmarks doc docs example examples script scripts test tests tool tools"
_ASIDE = frozenset(_ASIDE_NAMES.split())
"""Top-level folders that wheels carry by accident: part of no interface, and every repository has its own."""
_SHARES = (b"extend_path(__path__", b"declare_namespace(__name__")
"""How an `__init__.py` says that other distributions put modules beside its own."""
_CONTENT = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def is_source(path: str) -> bool:
    """Whether a path names a file that can be read as a module."""
    return path.endswith(SOURCES)


def is_native(path: str) -> bool:
    """Whether a path names a compiled module."""
    return path.endswith(_NATIVE)


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
    children: dict[str, set[str]] = {"": set()}  # a distribution of libraries alone has no modules
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
                roots.add(module_name(path)[0])
            elif is_native(name):
                roots.update(native_modules([path]))
    return frozenset(roots)


def _is_shared(folder: str, names: set[str], read: Callable[[str], bytes]) -> bool:
    if not names.intersection(_INITS):
        # Modules right inside say that it is this distribution's own folder, `__init__` forgotten or not.
        return not any(is_source(name) for name in names)
    if "__init__.py" not in names:
        return False
    content = read(f"{folder}/__init__.py")
    if not any(mark in content.replace(b" ", b"") for mark in _SHARES):
        return False
    # pytorch_lightning says so too, and holds a whole package: nobody else puts anything there.
    tree = parsed(content)
    makes = ("pkgutil", "pkg_resources", "__future__")
    return tree is None or not any(
        isinstance(node, _CONTENT) or (isinstance(node, ast.ImportFrom) and node.module not in makes)
        for node in tree.body
    )


def requirements(metadata: bytes) -> tuple[str, ...]:
    """`Requires-Dist` lines, as written. The body (the long description) is not looked at."""
    from email.parser import HeaderParser

    message = HeaderParser().parsestr(metadata.decode("utf-8", "replace"), headersonly=True)
    return tuple(" ".join(str(value).split()) for value in message.get_all("Requires-Dist", []))


def console_scripts(entry_points: bytes) -> dict[str, str]:
    """Console scripts by name: {"vllm": "vllm.entrypoints.cli.main:main"}. Extras behind them are left out."""
    found: dict[str, str] = {}
    section = ""
    for line in entry_points.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("[") and text.endswith("]"):
            section = text[1:-1].strip()
        elif section == "console_scripts" and "=" in text and not text.startswith(("#", ";")):
            name, _, target = text.partition("=")
            found[name.strip()] = target.partition("[")[0].strip()
    return found


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a release was read from; part of each report."""

    distribution: str
    """Normalised name."""
    version: str
    filename: str
    """Of the wheel or sdist."""
    url: str
    """Without credentials; "" for a folder."""
    sha256: str
    """Of the whole archive as the index states it; "" if it states none."""
    verified: str
    """"whole": the archive's hash was checked; "ranged": CRC-32 and RECORD of each member read were; "folder"; "": an
    sdist of which the index states no hash."""
    doubt: str = ""
    """What its archive says wrongly of itself, although its index vouches for the whole of it; "" for nothing."""
    yanked: str | None = None
    """Why it was yanked; None if it was not."""
    bytes_read: int = 0
    """From the network in this run; 0 when the cache had it."""
    seconds: float = 0.0


class Release:
    """One version of one distribution as text, a `SourceTree`. Nothing of it is extracted, imported or run; what costs
    something is worked out when asked for. Tests, CI files and examples outside the packages are left out.

    Paths are those inside the package root of an installation ("vllm/__init__.py"), whatever the archive's layout."""

    def __init__(
        self,
        origin: Origin,
        paths: Sequence[str],
        read: Callable[[str], bytes],
        *,
        requires: Sequence[str] = (),
        scripts: Mapping[str, str] | None = None,
        digest: str = "",
    ) -> None:
        """paths: sources and compiled modules, in any order. read: gives the content of a source. digest: of the
        content, where it is known already."""
        self.origin = origin
        self._all = tuple(path for path in without_asides(paths) if (is_source(path) or is_native(path)))
        self._files = tuple(path for path in self._all if is_source(path))
        self._known = frozenset(self._files)
        self._read = read
        self._requires = tuple(requires)
        self._scripts = dict(scripts or {})
        self._given_digest = digest

    def files(self) -> Sequence[str]:
        """Sorted paths of sources."""
        return self._files

    def read(self, path: str) -> bytes:
        """Content of one of `files`; KeyError for others, ArchiveError for what does not match its hash."""
        if path not in self._known:
            raise KeyError(path)
        return self._read(path)

    @once()
    def folders(self) -> frozenset[str]:
        """All folders with sources, and their parents."""
        return folders_of(self._files)

    @once()
    def native(self) -> frozenset[str]:
        """Dotted names of compiled modules."""
        return native_modules(self._all)

    @once()
    def roots(self) -> frozenset[str]:
        """Dotted names this distribution owns."""
        return owned_roots(self._all, self._read)

    def requires(self) -> Sequence[str]:
        """Requires-Dist, as written."""
        return self._requires

    def scripts(self) -> Mapping[str, str]:
        """Console scripts: name to "module:object"."""
        return self._scripts

    @once()
    def digest(self) -> str:
        """SHA-256 over paths and contents."""
        return self._given_digest or content_digest((path, self._read(path)) for path in self._files)


def content_digest(contents: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over (path, content) pairs in the order given; equal only for equal paths and contents."""
    total = hashlib.sha256()
    for path, content in contents:
        total.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return total.hexdigest()
