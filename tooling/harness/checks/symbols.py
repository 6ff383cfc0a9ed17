"""Whether names of the code that are mentioned exist.

Judged are spans that look like a name of code: with a dot, a colon, an underscore or a call, or in CamelCase. A plain
word (`exact`) could be anything and is left alone. `a.b` is followed through modules and classes, and through the
annotations of fields and parameters called `a`; names of other packages as far as their modules.
"""

from __future__ import annotations

import functools
import re
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tooling.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from tooling.harness.checks.definitions import Definitions

_NAME: Final = re.compile(
    r"@?(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?::[A-Za-z_][\w.]*)?)"
    r"(?P<rest>\(.*\)|\[[^\]]*\]|(?::| ?=) .*|=.*)?(?:\.\.\.)?",
    re.DOTALL,
)
_CAMEL: Final = re.compile(r"_?[A-Z]+[a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+|_?[A-Z][a-z0-9]+[A-Z]\w*")


def name_in(text: str) -> str | None:
    """Return the name that a code span is, without call, index or value; None for plain words and anything else.

    Example: "logprobs[t]" -> "logprobs"; "areal.api:Config" -> "areal.api.Config"; "exact" -> None.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    if ":" in found["name"] and "." not in found["name"] and "_" not in found["name"]:
        return None  # `module:object` stands for such a name
    name, rest = found["name"].replace(":", "."), found["rest"] or ""
    telling = "." in name or "_" in name.strip("_") or rest.startswith(("(", "[")) or _CAMEL.fullmatch(name)
    return name if telling else None


class Symbols:
    """Judges names of one repository."""

    def __init__(
        self,
        definitions: Definitions,
        packages: AbstractSet[str],
        words: AbstractSet[str] = frozenset(),
        elsewhere: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Judge by an index of definitions.

        packages: names that the repository's dependencies are imported by. words: names of its scripts and settings,
        e.g. variables of the environment. elsewhere: whether a name that is none of these exists all the same.
        """
        self._index = definitions
        self._packages = packages
        self._words = words
        self._elsewhere = functools.cache(elsewhere)
        self._roots = {module.split(".")[0] for module in definitions.modules}

    def problem(self, name: str) -> tuple[str, str] | None:
        """Return message and fix for a name that does not exist; None when it does, or cannot be judged."""
        parts = name.split(".")
        if len(parts) == 1:
            known = name in self._index.names or name in self._index.values or name in self._words
            is_known = known or self._elsewhere(name)
            return None if is_known else (f"nothing is called {name}", self._suggestion(name))
        if parts[0] in self._roots:
            return self._in_module(parts)
        if parts[0] in sys.stdlib_module_names or parts[0] in self._packages:
            return None if _is_external(parts) else (f"there is no module {name}", "see the package's documentation")
        if name in self._index.values:
            return None
        return self._through_types(parts)

    def _in_module(self, parts: list[str]) -> tuple[str, str] | None:
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            if module not in self._index.modules:
                continue
            rest = parts[end:]
            if not rest:
                return None
            if rest[0] not in self._index.modules[module]:
                return f"{module} has no {rest[0]}", did_you_mean(rest[0], self._index.modules[module])
            return self._members(rest)
        if any(module.startswith(".".join(parts) + ".") for module in self._index.modules):
            return None  # a folder
        return f"there is no module {'.'.join(parts)}", self._suggestion(parts[-1])

    def _members(self, parts: list[str]) -> tuple[str, str] | None:
        """Find a member that a class does not have; an unknown class is not judged."""
        for owner, member in pairwise(parts):
            if owner not in self._index.members:
                return None
            known = self._index.members_of(owner)
            if member not in known:
                return f"{owner} has no {member}", did_you_mean(member, known)
        return None

    def _through_types(self, parts: list[str]) -> tuple[str, str] | None:
        if parts[0] in self._index.members:
            return self._members(parts)
        for owner, member in pairwise(parts):
            if owner not in self._index.names:
                return f"nothing is called {owner}", self._suggestion(owner)
            classes = {name for name in self._index.types.get(owner, ()) if name in self._index.members}
            known = set[str]().union(*(self._index.members_of(name) for name in classes)) if classes else None
            if known is not None and member not in known:
                kinds = ", ".join(sorted(classes)[:3])
                return f"{owner} ({kinds}) has no {member}", did_you_mean(member, known)
            if known is None and member not in self._index.names:
                return f"nothing is called {member}", self._suggestion(member)
        return None

    def _suggestion(self, name: str) -> str:
        close = {known for known in self._index.names if known[:1].casefold() == name[:1].casefold()}
        return did_you_mean(name, close) or "write what exists, or say in plain words what does not"


def _is_external(parts: list[str]) -> bool:
    """Say whether a package has the name, as far as its files tell: modules by their paths, what is in them by its
    name standing in their text. True where nothing can be seen (not installed, compiled, `import *`)."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(parts[0])  # of a package's root: nothing is loaded
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        return True
    place = Path(folders[0])
    for position, part in enumerate(parts[1:], 1):
        if (place / part).is_dir():
            place = place / part
            continue
        module = place / f"{part}.py"
        last = position == len(parts) - 1
        if module.is_file() and last:
            return True
        holder = module if module.is_file() else place / "__init__.py"
        text = holder.read_text(encoding="utf-8", errors="replace") if holder.is_file() else ""
        wanted = parts[position + 1] if module.is_file() else part
        return not text or "import *" in text or re.search(rf"\b{re.escape(wanted)}\b", text) is not None
    return True
