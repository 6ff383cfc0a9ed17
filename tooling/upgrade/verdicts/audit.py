"""All uses of a repository judged: one cause at one place is one finding, and what could not be seen is counted."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, ClientClass, Either, Name, roots_of
from tooling.upgrade.findings import Audit, AuditFinding, AuditSeverity, FindingKind, Unseen
from tooling.upgrade.uses import Action
from tooling.upgrade.verdicts.case import Coverage, JudgedUse, coverage_of
from tooling.upgrade.verdicts.comparison import JudgeContext, ReleasePair
from tooling.upgrade.verdicts.guards import dead
from tooling.upgrade.verdicts.judge import imported_name, is_absence, judge
from tooling.upgrade.verdicts.surroundings import Surroundings
from tooling.upgrade.verdicts.untyped import as_annotated, as_untyped, is_untyped, judge_untyped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.specifiers import SpecifierSet

    from tooling.upgrade.usage.index import UsageIndex
    from tooling.upgrade.uses import FileUses, Use
    from tooling.upgrade.verdicts.comparison import Explainer

_RANK = {AuditSeverity.BREAKING: 0, AuditSeverity.WARNING: 1, AuditSeverity.INFO: 2}


def audit(
    index: UsageIndex,
    pairs: Sequence[ReleasePair],
    *,
    allowed: Mapping[str, SpecifierSet] | SpecifierSet | None = None,
    explain: Explainer | None = None,
) -> tuple[Audit, ...]:
    """One audit for each distribution, in the order of `pairs`.

    allowed: versions that the new manifest admits, of all or by distribution; without it no guard is called dead.
    explain: says where gone names went (`replacements`)."""
    from packaging.specifiers import SpecifierSet

    return tuple(
        _audited(
            index,
            pair,
            pairs,
            allowed if allowed is None or isinstance(allowed, SpecifierSet) else allowed.get(pair.distribution),
            explain,
        )
        for pair in pairs
    )


@dataclass
class _Tally:
    """What an audit counts."""

    uses: int = 0
    imports: int = 0
    files: set[str] = field(default_factory=set)
    judged: int = 0
    unresolved: int = 0
    symbols: set[str] = field(default_factory=set)
    open: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, use: Use, known: Coverage) -> None:
        self.uses += 1
        self.imports += use.action is Action.IMPORT
        self.files.add(use.place.path)
        self.symbols.add(known.symbol)
        if known.why:
            self.open[known.why] += 1
            self.examples.setdefault(known.why, f"{use.place.path}:{use.place.line}")
        elif known.unresolved:
            self.unresolved += 1
        else:
            self.judged += 1

    def unseen(self) -> tuple[Unseen, ...]:
        """What was open, by reason."""
        return tuple(
            Unseen(why=why, count=count, example=self.examples[why]) for why, count in sorted(self.open.items())
        )


def _audited(
    index: UsageIndex,
    pair: ReleasePair,
    pairs: Sequence[ReleasePair],
    allowed: SpecifierSet | None,
    explain: Explainer | None,
) -> Audit:
    started = time.perf_counter()
    surroundings = Surroundings(index.files, pairs)
    context = JudgeContext(
        pair.distribution,
        pairs,
        explain,
        alternatives=surroundings.alternatives,
        starred=surroundings.starred,
        extension=surroundings.extensions.get,
        made=surroundings.made.__contains__,
        assigned=surroundings.assigned,
        extended=surroundings.extended,
        imported=surroundings.imported,
        names_in=surroundings.names_in,
    )
    tally = _Tally()
    findings: list[AuditFinding] = []
    for file in index.files:
        findings.extend(_of_file(file, pair, context, tally))
        if allowed is not None:
            guards = (dead(file.path, guard, pair, allowed) for guard in file.guards)
            findings.extend(finding for finding in guards if finding is not None)
    findings = _without_consequences(findings, index, pair)
    # Sorted; of several findings on one cause at one place the gravest, then the one that names most
    best: dict[tuple[object, ...], AuditFinding] = {}
    for finding in findings:
        cause = "gone" if is_absence(finding) else finding.kind
        key = (finding.path, finding.line, finding.column, cause, finding.parameter)
        rival = best.get(key)
        if rival is None or _worth(finding) < _worth(rival):
            best[key] = finding
    return Audit(
        distribution=pair.distribution,
        old_version=pair.old.source.origin.version,
        new_version=pair.new.source.origin.version,
        findings=tuple(
            sorted(best.values(), key=lambda each: (each.path, each.line, each.column, each.kind, each.parameter))
        ),
        uses=tally.uses,
        imports=tally.imports,
        used_in=tuple(sorted(tally.files)),
        symbols=len(tally.symbols),
        judged=tally.judged,
        unresolved=tally.unresolved,
        open=tally.unseen(),
        unreadable=tuple(f"{file.path}: {file.problem}" for file in index.files if file.problem),
        modules_read=(pair.old.modules_read, pair.new.modules_read),
        seconds={"judge": time.perf_counter() - started},
    )


def _of_file(file: FileUses, pair: ReleasePair, context: JudgeContext, tally: _Tally) -> list[AuditFinding]:
    findings: list[AuditFinding] = []
    for use in file.uses:
        if _is_stored(use):
            continue
        if is_untyped(use):
            findings.extend(judge_untyped(use, pair, context))
            continue
        if not any(pair.owns(root) for root in roots_of(use.target)):
            continue
        case = JudgedUse(use, pair.old, pair.new, context)
        try:
            case = as_annotated(case)
            known, found = coverage_of(case), judge(case)
        except RecursionError:  # code nested beyond Python's stack is open
            known, found = Coverage(use.symbol_text, why="nested too deep to be followed"), []
        tally.add(use, known)
        findings.extend(found)
        guessed = as_untyped(case, unresolved=known.unresolved)
        if guessed is not None:
            findings.extend(judge_untyped(guessed, pair, context))
        if known.unresolved and use.action is Action.IMPORT:
            version = pair.old.source.origin.version
            findings.append(
                AuditFinding(
                    path=use.place.path,
                    line=use.place.line,
                    column=use.place.column,
                    end_line=use.place.end_line,
                    kind=FindingKind.UNRESOLVED,
                    severity=AuditSeverity.INFO,
                    confidence=0.5,
                    distribution=pair.distribution,
                    symbol=known.symbol,
                    message=f"{known.symbol}: {pair.distribution} {version} does not have it either",
                )
            )
    return findings


def _is_stored(use: Use) -> bool:
    """Whether a value goes by another name: `self.size = config.size` fails, not what reads `self.size` later."""
    if use.action not in (Action.READ, Action.ASSIGN) or not isinstance(use.target, Attribute):
        return False
    return re.fullmatch(r"[\w.]+", use.symbol_text) is not None and use.symbol_text.split(".")[-1] != use.target.name


def _without_consequences(findings: list[AuditFinding], index: UsageIndex, pair: ReleasePair) -> list[AuditFinding]:
    """Uses of an imported name are as bad as its import: silent if that is, and they say where it is. What goes by
    another name was read before, and failed there.

    A star import names nothing, so uses of what it gave stand alone."""
    imports: dict[tuple[str, str], list[Use]] = defaultdict(list)
    texts: dict[tuple[str, int, int], str] = defaultdict(str)
    names: dict[tuple[str, int, int, str], Use] = {}
    for file in index.files:
        for use in file.uses:
            place = (file.path, use.place.line, use.place.column)
            targets = use.target.members if isinstance(use.target, Either) else (use.target,)
            by_name = all(isinstance(each, Name | ClientClass) for each in targets)
            texts[place] += f" {use.symbol_text if by_name else _ANY}"
            if use.action is not Action.IMPORT:
                names[*place, imported_name(use)] = use  # `Engine().run()` calls two things at one place
            elif isinstance(use.target, Name) and pair.owns(use.target.dotted):
                imports[file.path, use.target.dotted].append(use)
    by_place = {(finding.path, finding.line, finding.column): finding for finding in findings if is_absence(finding)}
    read = {
        (finding.path, finding.symbol): _RANK[finding.severity]
        for finding in sorted(by_place.values(), key=lambda each: _RANK[each.severity], reverse=True)
        if _spells(texts.get((finding.path, finding.line, finding.column), ""), finding)
    }
    kept: list[AuditFinding] = []
    for finding in findings:
        key = (finding.path, finding.symbol)
        named = names.get((finding.path, finding.line, finding.column, finding.symbol))
        imported = imports.get(key, []) if named is not None and is_absence(finding) else []
        function = named.function if named is not None else ""
        # The import of the innermost function around
        within = [each for each in imported if f"{function}.".startswith(f"{each.function}." if each.function else "")]
        origin = max(within or imported, key=lambda each: len(each.function)).place if imported else None
        if origin is None or (finding.line, finding.column) == (origin.line, origin.column):
            text = texts.get((finding.path, finding.line, finding.column), "") if is_absence(finding) else ""
            stored = text and not _spells(text, finding) and key not in imports
            if not stored or read.get(key, len(_RANK)) > _RANK[finding.severity]:
                kept.append(finding)
            continue
        cause = by_place.get((finding.path, origin.line, origin.column))
        if (
            named is not None
            and "." in named.symbol_text.partition("(")[0]
            and not any(named.symbol_text.startswith(f"{each.symbol_text.rpartition(' ')[2]}.") for each in imported)
        ):
            continue  # of another name, which holds what was imported
        typed = named is not None and not named.evaluated  # type checkers alone read both
        if cause is not None and _RANK[cause.severity] <= _RANK[finding.severity] and not typed:
            kept.append(replace(finding, message=f"{finding.message} (imported in line {origin.line})"))
    return kept


_ANY = "?"
"""What stands for the text of a use of a value, whatever its name is."""


def _spells(text: str, finding: AuditFinding) -> bool:
    """Whether the code at a finding's place names what is gone, and no variable that it was put into."""
    name = finding.symbol.rpartition(".")[2]
    return _ANY in text or re.search(rf"""[."']{re.escape(name)}\b""", text) is not None


def _worth(finding: AuditFinding) -> tuple[int, int, str]:
    return _RANK[finding.severity], -len(finding.symbol), finding.symbol
