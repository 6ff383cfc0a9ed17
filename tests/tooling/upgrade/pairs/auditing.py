"""An audit of one pair, and its codemods: what the tests and `benchmarks/upgrade_pairs.py` compare with the marks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.fixes.files import fix_file
from tooling.upgrade.replacements import Explainer
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.usage import index_repository
from tooling.upgrade.verdicts import ReleasePair, audit, changed_members

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.upgrade.findings import AuditFinding


def findings_of(pair: Any, folder: Path) -> tuple[AuditFinding, ...]:
    """What an audit says about the client, which is written into the folder."""
    for name, text in pair.client.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    imports = sorted({name.partition("/")[0].removesuffix(".py") for name in (*pair.old, *pair.new)})
    comparison = ReleasePair(
        "up",
        SymbolTree(memory_release(pair.old, "up", pair.old_version)),
        SymbolTree(memory_release(pair.new, "up", pair.new_version)),
    )
    index = index_repository(folder, imports, members=changed_members([comparison]))
    allowed = SpecifierSet(pair.allowed) if pair.allowed else None
    (result,) = audit(index, [comparison], allowed=allowed, explain=Explainer())
    assert result.unreadable == ()
    return result.findings


def audited(pair: Any, folder: Path) -> set[tuple[str, int, str, str]]:
    """Findings of an audit: file, line, kind, severity."""
    return {(each.path, each.line, str(each.kind), str(each.severity)) for each in findings_of(pair, folder)}


@dataclass
class FixedPair:
    """What the codemods made of a pair's client."""

    before: tuple[AuditFinding, ...]
    done: list[AuditFinding]
    left: list[tuple[AuditFinding, str]]
    client: dict[str, str]
    after: tuple[AuditFinding, ...]
    """Findings of a second audit."""

    @property
    def stubborn(self) -> list[AuditFinding]:
        """What the codemods claim to have mended and the second audit still finds."""
        kept = Counter(map(_key, self.after))
        kept.subtract(Counter(map(_key, (each for each in self.before if each not in self.done))))
        return [each for each in self.done if kept[_key(each)] > 0]


def fixed(pair: Any, folder: Path) -> FixedPair:
    """Audit, fix what is fixable, audit again."""
    (folder / "before").mkdir()
    (folder / "after").mkdir()
    before = findings_of(pair, folder / "before")
    client, done, left = dict(pair.client), [], []
    for path, text in pair.client.items():
        one = fix_file(path, text.encode(), [each for each in before if each.path == path])
        client[path] = one.data.decode()
        done += one.done
        left += one.left
    after = findings_of(replace(pair, client=client), folder / "after")
    return FixedPair(before, done, left, client, after)


def _key(finding: AuditFinding) -> tuple[str, str, str, str]:
    return finding.path, str(finding.kind), finding.symbol, finding.parameter
