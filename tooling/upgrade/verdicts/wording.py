"""Evidence and phrases that all verdicts share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.upgrade.findings import Evidence
from tooling.upgrade.symbols import Open, SymbolKind

if TYPE_CHECKING:
    from tooling.upgrade.symbols import Absent, Symbol, Upstream

_LONGEST = 240


def evidence(upstream: Upstream, symbol: Symbol) -> Evidence:
    """Where a definition stands, and the definition in one line."""
    return Evidence(symbol.file, symbol.line, shorten(definition(upstream, symbol)))


def evidence_of_absence(absent: Absent) -> Evidence:
    """Where one would have to look for it."""
    return Evidence(absent.file, absent.line, "")


def definition(upstream: Upstream, symbol: Symbol) -> str:
    """A definition as one line."""
    name = symbol.dotted.rpartition(".")[2]
    if symbol.kind is SymbolKind.MODULE:
        return f"module {symbol.dotted}"
    if symbol.kind is SymbolKind.VALUE:
        return f"{name} = {symbol.value}" if symbol.value else name
    if "property" in symbol.binding:
        return f"@{symbol.binding.replace('-', '_')} def {name}(self)"
    signature = upstream.signature(symbol)
    text = f"{name}(...)" if isinstance(signature, Open) else signature.text(name)
    if symbol.kind is SymbolKind.CLASS:
        return f"class {text}"
    return f"async def {text}" if symbol.is_async else f"def {text}"


def mentions(upstream: Upstream, file: str, pattern: str) -> int:
    """Line of a file of the release that a pattern matches; 0 if none does."""
    text = upstream.release.read(file)
    found = re.search(pattern.encode(), text)
    return text.count(b"\n", 0, found.start()) + 1 if found else 0


def shorten(text: str, longest: int = _LONGEST) -> str:
    """One line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
