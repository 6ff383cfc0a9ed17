"""Judge submodules that are reached through their package: somebody must have imported them.

import up
up.io.load()        # worked because up/__init__.py said `from up import io`, which the new version does not
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.python.access_paths import Name
from tooling.python.symbols.symbol import Found, SymbolKind
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.comparison import UseProblem, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.symbol import Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.verdicts.case import JudgedUse

_LAZY = re.compile(rb"__getattr__|[Ll]azy|import_module|__path__|globals\(\)|setattr")
"""In a package that may load its modules when they are asked for."""


def unloaded(case: JudgedUse) -> Iterator[UseProblem]:
    """A submodule that an import inside of the package loaded, and nothing loads any more."""
    target = case.use.target
    if case.use.action not in (Action.READ, Action.CALL) or not isinstance(target, Name):
        return
    parts = target.dotted.split(".")
    for end in range(2, len(parts)):
        module = ".".join(parts[:end])
        before, after = _module(case.old, module), _module(case.new, module)
        if before is None or after is None:
            return
        if f".{parts[end - 1]}" not in case.use.symbol_text or case.context.imported(module):
            continue
        if not _is_loaded(case.new, module) and _is_loaded(case.old, module):
            yield UseProblem(
                kind=FindingKind.REMOVED,
                severity=AuditSeverity.BREAKING,
                place=case.use.place,
                symbol=module,
                message=f"importing {parts[0]} no longer loads {module}: import it by name",
                raises="AttributeError",
                confidence=case.confidence * 0.9,
                old=evidence(case.old, before),
                new=evidence(case.new, after),
                replacement=Replacement(f"import {module}", "the module is still there", certain=True),
                fixable=True,
            )
            return


def _module(upstream: Upstream, dotted: str) -> Symbol | None:
    found = upstream.resolve(dotted)
    return found.symbol if isinstance(found, Found) and found.symbol.kind is SymbolKind.MODULE else None


def _is_loaded(upstream: Upstream, module: str) -> bool:
    """Whether importing the packages above may load a module: by any import that starts there, or lazily."""
    parts = module.split(".")
    waiting = [".".join(parts[:end]) for end in range(1, len(parts))]
    imports = upstream.imports()
    seen: set[str] = set()
    plain = re.compile(rb"^[ \t]*import[ \t]+" + re.escape(module.encode()) + rb"\b", re.MULTILINE)
    while waiting:
        current = waiting.pop()
        symbol = None if current in seen else _module(upstream, current)
        seen.add(current)
        if symbol is None:
            continue
        text = upstream.source.read(symbol.file) if symbol.file else b""
        if plain.search(text) or (module.startswith(f"{current}.") and _LAZY.search(text)):
            return True
        for source, names in imports.get(current, {}).items():
            reached = [source, *(f"{source}.{name}" for name in names)]
            if any(each == module or each.startswith(f"{module}.") for each in reached):
                return True
            waiting.extend(each for each in reached if each not in seen and upstream.owns(each))
    return False
