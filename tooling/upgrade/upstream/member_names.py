"""Which classes of a release define an attribute of a name, by the text of all its modules.

Nothing is parsed: a release of two thousand modules takes a second, once, and the answer is kept with its facts. Only
classes at the top level of a module count.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from tooling.python.source import module_name

if TYPE_CHECKING:
    from tooling.upgrade.upstream.store import ReleaseStore

_PART = re.compile(
    rb"^(?:class[ \t]+(?P<class>\w+)|(?P<end>[^\s#)\]}@])"
    rb"|[ ]{4}(?:async[ ]+)?def[ ]+(?P<method>\w+)(?=\()"
    rb"|[ ]{4}(?P<field>[A-Za-z_]\w*)[ \t]*(?P<value>(?::[^=\n]+)?(?:=[^=\n][^\n]*)?)$"
    rb"|[ ]{8,}self\.(?P<own>\w+)[ \t]*(?::[^=\n]+)?=(?!=))",
    re.MULTILINE,
)
_BRACKET = re.compile(rb"[()\[\]{}]")
_LONGEST = 8_000
"""Bytes between the brackets of a definition."""
_SPACE = re.compile(rb"\s+|,(?=\s*\))")
Definers = dict[str, dict[str, int]]
"""Name of an attribute -> dotted path of a class -> checksum of how it is written there (0: assigned to `self`)."""


def member_names(store: ReleaseStore) -> Definers:
    """Definers of each attribute of the release's classes."""
    found: Definers = {}
    for path in store.release.files():
        data = store.release.read(path)
        if b"class " not in data:
            continue
        module, owner = module_name(path)[0], ""
        for match in _PART.finditer(data):
            kind = match.lastgroup
            if kind == "class":
                owner = f"{module}.{match['class'].decode()}"
            elif kind == "end":
                owner = ""
            elif owner and kind == "method":
                depth, end = 0, match.end()
                for bracket in _BRACKET.finditer(data, match.end(), match.end() + _LONGEST):
                    depth += 1 if bracket[0] in b"([{" else -1
                    if not depth:
                        end = bracket.end()
                        break
                shape = zlib.crc32(_SPACE.sub(b"", data[match.end() : end])) or 1
                found.setdefault(match["method"].decode(), {})[owner] = shape
            elif owner and kind == "value":
                found.setdefault(match["field"].decode(), {})[owner] = zlib.crc32(_SPACE.sub(b"", match["value"])) or 1
            elif owner and kind == "own":
                found.setdefault(match["own"].decode(), {}).setdefault(owner, 0)
    return found
