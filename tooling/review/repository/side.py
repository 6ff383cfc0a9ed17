"""Reads one side of a change: the files of a commit, of the index or of the work tree, and what its modules define."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tooling.python.module import Function, Module, last_name, parse
from tooling.python.source import DefinitionNode, module_name
from tooling.python.symbols.calls import written_signature
from tooling.python.symbols.symbol import Found, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tooling.python.symbols.tree import SymbolTree
    from tooling.review.repository.git import ReviewedClone

INDEX, WORK_TREE = ":index", ":worktree"
MAX_BYTES = 2_000_000
"""Files over this size are data or generated."""
_MANIFESTS = ("pyproject.toml", "setup.py")
_BUILT_FROM = (".c", ".cc", ".cpp", ".cu", ".cxx", ".in", ".pyd", ".pyx", ".rs", ".so")
_MOST_MODULES = 100
"""Modules that a name is followed through."""


@dataclass
class Side:
    """`where`: a commit's hash, INDEX or WORK_TREE."""

    git: ReviewedClone
    where: str
    frozen: frozenset[str] = frozenset()
    """Packages that the policy keeps for old code only."""
    _texts: dict[str, str | None] = field(default_factory=dict)
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _parsed: dict[tuple[str, str], Module | None] = field(default_factory=dict)
    """Shared by both sides: most files are the same in both."""
    known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What rules have worked out about this side, by its kind and name, where they ask more than once."""

    @cached_property
    def paths(self) -> frozenset[str]:
        """All files."""
        if self.where == WORK_TREE:
            return frozenset(self.git.listed("ls-files", "-z", "--cached", "--others", "--exclude-standard"))
        return frozenset(self._objects)

    @cached_property
    def _objects(self) -> dict[str, str]:
        """Path -> hash of its content. Links and submodules have none."""
        staged = self.where == INDEX
        command = ["ls-files", "-s", "-z"] if staged else ["ls-tree", "-r", "-z", "--full-tree", self.where]
        found = {}
        for row in self.git.listed(*command):
            head, _, path = row.partition("\t")
            mode, *rest = head.split(" ")
            found[path] = rest[0 if staged else 1] if mode.startswith("100") else ""
        return found

    def load(self, paths: Iterable[str]) -> None:
        """Read many files at once."""
        missing = sorted({path for path in paths if path not in self._texts and path in self.paths})
        if self.where == WORK_TREE:
            contents = [self._on_disk(path) for path in missing]
        else:
            named = [self._objects[path] for path in missing]
            read = iter(self.git.blobs([each for each in named if each]))
            contents = [next(read, None) if each else None for each in named]
        for path, content in zip(missing, contents, strict=True):
            binary = content is None or len(content) > MAX_BYTES or b"\0" in content[:8000]
            text = content.decode("utf-8", "replace").replace("\r\n", "\n") if content is not None else ""
            self._texts[path] = None if binary else text

    def _on_disk(self, path: str) -> bytes | None:
        place = self.git.root / path
        try:
            # A link may lead anywhere; its target is not content of this repository.
            return place.read_bytes() if stat.S_ISREG(place.lstat().st_mode) else None
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """Content; None for what does not exist, is binary or too large."""
        if path not in self._texts:
            self.load([path])
        return self._texts.get(path)

    def module(self, path: str) -> Module | None:
        """Return the parsed file; None if there is none or it is not Python."""
        if path not in self._modules:
            text = self.text(path) if path.endswith(".py") else None
            key = (path, text or "")
            if text is not None and key not in self._parsed:
                tree = parse(text)
                name = module_name(self.below_source(path))[0]
                self._parsed[key] = Module(path, tree, name, text) if tree is not None else None
            self._modules[path] = self._parsed[key] if text is not None else None
        return self._modules[path]

    @cached_property
    def packages(self) -> Mapping[str, str]:
        """Dotted module -> file, for the modules below top-level packages (and below src/)."""
        return {module_name(self.below_source(path))[0]: path for path in sorted(self.paths) if path.endswith(".py")}

    def below_source(self, path: str) -> str:
        """Return a path as packages are named: without `src/`, or the folder of a project among several."""
        return self._below.get(path, path)

    @cached_property
    def _sources(self) -> list[str]:
        """Folders that packages lie in, the deepest first; one that is a package itself is part of the name."""
        manifests = {path.removesuffix(name) for path in self.paths for name in _MANIFESTS if path.endswith(f"/{name}")}
        folders = {"src/", *manifests, *(f"{each}src/" for each in manifests)}
        return sorted((each for each in folders if f"{each}__init__.py" not in self.paths), key=len, reverse=True)

    def _source_of(self, path: str) -> str:
        return next((each for each in self._sources if path.startswith(each)), "")

    def may_have(self, dotted: str) -> bool:
        """Whether there is a module or folder of that name, or a file that one may be built from."""
        return dotted in self.packages or dotted in self.folders or dotted in self._built

    @cached_property
    def _built(self) -> frozenset[str]:
        """Dotted names of modules that may be built: of files in another language or a template, and their folders, and
        what a `setup.py` names."""
        scripts = [self.text(path) or "" for path in self.paths if path.rpartition("/")[2] == "setup.py"]
        found = {name for text in scripts for name in re.findall(r"[\"']([a-z_]\w*(?:\.\w+)+)[\"']", text)}
        for path in self.paths:
            if path.endswith(_BUILT_FROM):
                *folders, name = path.removeprefix(self._source_of(path)).split("/")
                parts = [*folders, name.partition(".")[0]]
                found.update(".".join(parts[:size]) for size in range(2, len(parts) + 1))
        return frozenset(found)

    @cached_property
    def _below(self) -> dict[str, str]:
        found = {}
        for path in self.paths:
            source = self._source_of(path)
            if path.endswith(".py") and source:
                found[path] = path.removeprefix(source)
        # A folder that tells two files of one name apart is part of the name.
        count = Counter([*found.values(), *(self.paths - found.keys())])
        return {path: below for path, below in found.items() if count[below] == 1}

    @cached_property
    def roots(self) -> frozenset[str]:
        """Top-level names that are ours: folders with an `__init__.py`."""
        inits = [PurePosixPath(self.below_source(path)) for path in self.paths if path.endswith("/__init__.py")]
        return frozenset(path.parts[0] for path in inits if len(path.parts) == 2)

    @cached_property
    def folders(self) -> frozenset[str]:
        """Dotted names of folders that hold Python files: packages, also those without an `__init__.py`."""
        return frozenset(
            ".".join(parts[:size])
            for parts in (name.split(".") for name in self.packages)
            for size in range(1, len(parts))
        )

    def find_module(self, name: str) -> Module | None:
        """Return the module of a dotted name, if it is ours."""
        path = self.packages.get(name)
        if path is not None and path not in self._texts:
            self.load(self.packages.values())  # one process reads them all; one each would take longer
        return self.module(path) if path is not None else None

    def grep(self, words: Iterable[str], *patterns: str) -> list[str]:
        """Return files that hold one of the words, below the patterns ("*.py")."""
        found = self._grep(["-l", "-z"], words, patterns).split("\0")
        prefix = f"{self.where}:" if self.where not in {INDEX, WORK_TREE} else ""
        return sorted(path.removeprefix(prefix) for path in found if path)

    def mentioned(self, words: Iterable[str], *patterns: str) -> set[str]:
        """Return those of the words that some file below the patterns holds."""
        return set(self._grep(["-h", "-o"], words, patterns).splitlines())

    def _grep(self, form: list[str], words: Iterable[str], patterns: tuple[str, ...]) -> str:
        asked = [part for word in sorted(set(words)) if "\n" not in word for part in ("-e", word)]
        if not asked:
            return ""
        where = {WORK_TREE: ["--untracked"], INDEX: ["--cached"]}.get(self.where, [])
        commit = [self.where] if not where else []
        command = ["grep", *form, "-w", "-F", "-I", *where, *asked, *commit, "--", *patterns]
        return os.fsdecode(self.git.run(*command, allowed=(0, 1)))

    def definition(self, name: str) -> tuple[Module, DefinitionNode] | None:
        """Return the function or class of a dotted name, followed through re-exports; None if that is not certain."""
        return self._looked_up(name, set())[1]

    def _looked_up(self, name: str, seen: set[str]) -> tuple[bool, tuple[Module, DefinitionNode] | None]:
        """Return whether something may bind a dotted name, and what, where that is certain. `seen`: names that are
        looked up already, of which none has been found: the first that is ends it."""
        owner, _, last = name.rpartition(".")
        module = self.find_module(owner) if owner else None
        if name in seen:  # modules that take everything from each other
            return False, None
        seen.add(name)
        if module is None or len(seen) > _MOST_MODULES:
            return True, None
        found = module.bindings.get(last, [])
        if not found:
            for star in reversed(module.stars):  # the last one wins
                there = self.find_module(star)
                given = there.gives_to_stars(last) if there is not None else not last.startswith("_")
                bound, definition = self._looked_up(f"{star}.{last}", seen) if given is not False else (False, None)
                if bound:
                    return True, definition if given else None
            return False, None
        if len(found) != 1:  # two branches, or a name that is assigned later: nobody knows which one it is
            return True, None
        node = found[0]
        if isinstance(node, DefinitionNode):
            return True, (module, node) if node in module.tree.body else None
        if isinstance(node, ast.ImportFrom):
            alias = next(each for each in node.names if (each.asname or each.name) == last)
            return True, self._looked_up(f"{module.absolute(node)}.{alias.name}", seen)[1]
        return True, None

    def named(self, module: Module, name: str) -> tuple[Module, DefinitionNode] | None:
        """Return the function or class that a plain name means in a module; None if that is not certain."""
        return self.definition(module.imported.get(name, f"{module.package}.{name}"))

    def lineage(self, module: Module, owner: ast.ClassDef) -> tuple[list[tuple[Module, ast.ClassDef]], list[str]]:
        """List a class with its bases of ours, depth first, each once, and the full names of the bases that are not
        ours."""
        classes: list[tuple[Module, ast.ClassDef]] = []
        foreign: list[str] = []
        waiting = [(module, owner)]
        while waiting:
            home, node = waiting.pop()
            if any(node is each for _, each in classes):
                continue
            classes.append((home, node))
            for base in reversed(node.bases):
                name = ast.unparse(base).partition("[")[0]
                found = self.named(home, name)
                # `from b import *; class A(A)`: the base is another class of that name.
                if found is not None and isinstance(found[1], ast.ClassDef) and found[1] is not node:
                    waiting.append((found[0], found[1]))
                else:
                    foreign.append(home.dotted(base.value if isinstance(base, ast.Subscript) else base))
        return classes, foreign

    @cached_property
    def symbols(self) -> SymbolTree[SideTree]:
        """Names, members and signatures of this side, found on demand."""
        from tooling.python.symbols.tree import SymbolTree

        return SymbolTree(SideTree(self))

    def signature(self, name: str, definition: DefinitionNode) -> Signature | None:
        """Return how what `definition` found under a name is called; None if that is not certain."""
        if isinstance(definition, Function) and not definition.decorator_list:
            return written_signature(definition.args)  # most are so, and what the name leads to is known
        marks = (each.func if isinstance(each, ast.Call) else each for each in definition.decorator_list)
        if any(last_name(each) in {"command", "group"} for each in marks):
            return None  # a program of click: its arguments come from the command line
        home = self.definition(name)
        bases = self.lineage(home[0], definition)[1] if home and isinstance(definition, ast.ClassDef) else []
        if any(each.endswith("TypedDict") for each in bases):
            return None  # takes whatever it is given when it is run
        found = self.symbols.resolve(name)
        if not isinstance(found, Found) or found.symbol.line != definition.lineno:
            return None
        signature = self.symbols.signature(found.symbol)
        return signature if isinstance(signature, Signature) and signature.exact else None


class SideTree:
    """One side as a tree of source, without the `src/` that its packages may lie in."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._paths = {side.below_source(path): path for path in side.packages.values()}

    def files(self) -> Sequence[str]:
        """Sorted paths of the Python files."""
        return sorted(self._paths)

    def read(self, path: str) -> bytes:
        """Content of one of `files`."""
        return (self._side.text(self._paths[path]) or "").encode("utf-8", "surrogatepass")

    def folders(self) -> frozenset[str]:
        """All folders that hold one of `files`, with their parents."""
        return frozenset(name.replace(".", "/") for name in self._side.folders)

    def native(self) -> frozenset[str]:
        """No compiled module is part of a repository."""
        return frozenset()

    def roots(self) -> frozenset[str]:
        """Top-level packages."""
        return self._side.roots

    def digest(self) -> str:
        """Not to be kept between runs."""
        return ""
