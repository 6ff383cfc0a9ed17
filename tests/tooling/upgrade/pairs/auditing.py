"""An audit of one pair: what the tests and `benchmarks/upgrade_pairs.py` compare with the marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from tooling.upgrade.replacements import Explainer
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.upstream import open_upstream
from tooling.upgrade.usage import index_repository
from tooling.upgrade.verdicts import ReleasePair, audit, changed_members

if TYPE_CHECKING:
    from pathlib import Path


def audited(pair: Any, folder: Path) -> set[tuple[str, int, str, str]]:
    """Findings of an audit: file, line, kind, severity."""
    for name, text in pair.client.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    imports = sorted({name.partition("/")[0].removesuffix(".py") for name in (*pair.old, *pair.new)})
    comparison = ReleasePair(
        "up",
        open_upstream(memory_release(pair.old, "up", pair.old_version)),
        open_upstream(memory_release(pair.new, "up", pair.new_version)),
    )
    index = index_repository(folder, imports, members=changed_members([comparison]))
    allowed = SpecifierSet(pair.allowed) if pair.allowed else None
    (result,) = audit(index, [comparison], allowed=allowed, explain=Explainer())
    assert result.unreadable == ()
    return {(each.path, each.line, str(each.kind), str(each.severity)) for each in result.findings}
