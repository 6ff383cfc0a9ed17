"""What `areal-upgrade-deps --fix` can answer: replacements that are offered, codemods, and whether they hold.

    python benchmarks/upgrade_fixes.py [--show] [--json]
    python benchmarks/upgrade_fixes.py --cases CASES.json CHECKOUTS [--cache FOLDER] [--show] [--json]

Without --cases it reads the pairs of `tests/tooling/upgrade/pairs`: every client is fixed, audited again and run on the
new package. With --cases it audits repositories as `upgrade_history.py` does, and fixes them in a copy.

findings: breaking ones and warnings. offered: those with a replacement. An answer exists (`has answer`) for a pair if
the kind says so (a new name, place or form; not what is simply gone, nor a condition that is always true), for a case
if the maintainers' own change wrote another name. codemod: those that were edited. held: those edited ones that the
second audit no longer finds. ran: clients of pairs all of whose findings were edited that run on the new package.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from upgrade_pairs import PAIRS, load_corpus_module

NO_ANSWER = frozenset({"removed", "guard-dead", "unresolved", "param-removed", "return-changed", "private", "info"})
"""Kinds of which many have nothing to be written instead: counted as answerable only if something is offered."""
NOTHING_TO_WRITE = {
    "a base class becomes a function": "no class is left that could be the base",
    "a class becomes a function": "no class is left to compare with",
    "a class becomes a function and is a base": "no class is left that could be the base",
    "a helper of the base class that only outsiders called": "nothing took its place",
    "a hook is gone from a class with a base of another distribution": "nothing took its place",
    "a hook that nobody calls any more": "nothing took its place",
    "a property that the base class now assigns": "any name of one's own",
}
"""Pairs whose new package has nothing to write instead, by name, with the reason."""


@dataclass
class Tally:
    """Findings of one kind."""

    findings: int = 0
    offered: int = 0
    has_answer: int = 0
    codemod: int = 0
    held: int = 0
    notes: list[str] = field(default_factory=list)

    def text(self, kind: str) -> str:
        """One line."""
        return (
            f"{kind:<16} {self.findings:>4} findings, {self.has_answer:>4} with an answer: offered {self.offered:>4} "
            f"({self.offered / self.has_answer if self.has_answer else 1:.0%}), codemod {self.codemod:>4}, "
            f"held {self.held:>4}"
        )


def pairs() -> tuple[dict[str, Tally], list[str], int]:
    """Of all pairs: tallies by kind, clients that fail on the new package, and how many were run."""
    corpus, auditing = load_corpus_module("corpus"), load_corpus_module("auditing")
    tallies: dict[str, Tally] = defaultdict(Tally)
    requests = []
    with tempfile.TemporaryDirectory(prefix="upgrade-fixes-") as folder:
        for number, pair in enumerate([*corpus.read_pairs(), *corpus.read_pairs(corpus.HARD)]):
            root = Path(folder) / str(number)
            root.mkdir()
            result = auditing.fixed(pair, root)
            told = [each for each in result.before if each.severity != "info"]
            stubborn = result.stubborn
            reasons = {id(finding): why for finding, why in result.left}
            for each in told:
                _count(
                    tallies[str(each.kind)],
                    offered=each.replacement is not None,
                    done=each in result.done,
                    held=each not in stubborn,
                    note=f"{pair.name}: {each.path}:{each.line} {reasons.get(id(each), each.message)}",
                    answerable=str(each.kind) not in NO_ANSWER and pair.name not in NOTHING_TO_WRITE,
                )
            if told and all(each in result.done for each in told) and pair.client != result.client:
                requests.append(_request(pair, result.client, root / "run"))
        child = subprocess.run(
            [sys.executable, str(PAIRS / "run_client.py")],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    results = json.loads(child.stdout)
    failed = [f"{name}: {each['raised'][0][1:]}" for name, each in results.items() if each["raised"]]
    return dict(tallies), failed, len(requests)


def _request(pair: Any, client: dict[str, str], root: Path) -> dict[str, Any]:
    for name, text in {**pair.new, **client}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = root / f"up-{pair.new_version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: up\nVersion: {pair.new_version}\n")
    return {"name": pair.name, "root": str(root), "files": list(client)}


def cases(file: Path, checkouts: Path, cache: str) -> dict[str, Tally]:
    """Of published repositories, by case."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for case in json.loads(file.read_text()):
        checkout = checkouts / case["id"]
        found = _impact(case, checkout, cache)
        told = [each for each in found["findings"] if each["severity"] != "info"]
        done, held = _fixed(case, checkout, told, cache)
        answered = {
            (place["path"], line)
            for place in case["truth"]
            if place.get("new")
            for line in (place["line"], place.get("line_arg"))
        }
        for index, each in enumerate(told):
            _count(
                tallies[case["id"]],
                offered=each["replacement"] is not None,
                done=index in done,
                held=index in held,
                note=f"{each['path']}:{each['line']} {each['message'][:160]}",
                answerable=(each["path"], each["line"]) in answered,
            )
    return dict(tallies)


def _fixed(case: dict[str, Any], checkout: Path, told: list[dict[str, Any]], cache: str) -> tuple[set[int], set[int]]:
    """Return indices of findings that were edited, and of those that a second audit does not find again."""
    from tooling.upgrade.findings import AuditFinding, AuditSeverity, FindingKind, Replacement
    from tooling.upgrade.fixes.files import fix_file

    findings = [
        AuditFinding(
            path=each["path"],
            line=each["line"],
            column=each["column"],
            end_line=each["end_line"],
            kind=FindingKind(each["kind"]),
            severity=AuditSeverity(each["severity"]),
            confidence=each["confidence"],
            distribution=case["package"],
            symbol=each["symbol"],
            parameter=each["parameter"] or "",
            message=each["message"],
            replacement=Replacement(each["replacement"], "", certain=True) if each["replacement"] else None,
            fixable=each["fixable"],
        )
        for each in told
    ]
    edited: dict[str, bytes] = {}
    done: set[int] = set()
    for path in {each.path for each in findings}:
        here = [each for each in findings if each.path == path]
        one = fix_file(path, (checkout / path).read_bytes(), here)
        done |= {index for index, each in enumerate(findings) if each in one.done}
        if one.done:
            edited[path] = one.data
    kept = {path: (checkout / path).read_bytes() for path in edited}
    try:
        for path, data in edited.items():
            (checkout / path).write_bytes(data)
        again = _impact(case, checkout, cache)["findings"] if edited else told
    finally:
        for path, data in kept.items():
            (checkout / path).write_bytes(data)
    keys = [(each["path"], each["kind"], each["symbol"], each["parameter"]) for each in again]
    unfixed = [_key(each) for index, each in enumerate(findings) if index not in done]
    return done, {index for index in done if keys.count(_key(findings[index])) <= unfixed.count(_key(findings[index]))}


def _key(finding: Any) -> tuple[str, str, str, str | None]:
    return finding.path, str(finding.kind), finding.symbol, finding.parameter or None


def _impact(case: dict[str, Any], checkout: Path, cache: str) -> dict[str, Any]:
    command = [str(Path(sys.executable).parent / "areal-upgrade-deps"), "impact", f"{case['package']}=={case['new']}"]
    command += ["--from", case["old"], "--json", "--repo", str(checkout), *(["--cache", cache] if cache else [])]
    report: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return report


def _count(tally: Tally, *, offered: bool, done: bool, held: bool, note: str, answerable: bool) -> None:
    tally.findings += 1
    tally.offered += offered
    tally.has_answer += offered or answerable
    tally.codemod += done
    tally.held += done and held
    if not done or not held:
        state = "still found" if done else "left" if offered else "no answer" if answerable else ""
        tally.notes += [f"{state}: {note}"] if state else []


def main() -> None:
    """Print the tallies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs=2, type=Path, metavar=("CASES.json", "CHECKOUTS"))
    parser.add_argument("--cache", default="")
    parser.add_argument("--show", action="store_true", help="name findings that were not mended")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    failed: list[str] = []
    run = 0
    if args.cases:
        tallies = cases(*args.cases, args.cache)
    else:
        tallies, failed, run = pairs()
    if args.json:
        print(json.dumps({"kinds": {k: asdict(t) for k, t in tallies.items()}, "ran": run, "failed": failed}, indent=1))
        return
    total = Tally()
    for kind, tally in sorted(tallies.items()):
        print(tally.text(kind))
        for name in ("findings", "offered", "has_answer", "codemod", "held"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        for note in tally.notes if args.show else ():
            print(f"    {note}")
    print(total.text("all"))
    if not args.cases:
        print(f"{run - len(failed)} of {run} clients that were mended as a whole run on the new package")
        for line in failed:
            print(f"    fails: {line}")


if __name__ == "__main__":
    main()
