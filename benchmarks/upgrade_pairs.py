"""How many of the cases in `tests/tooling/upgrade/pairs` an audit judges as marked, those held out apart.

    python benchmarks/upgrade_pairs.py [--corpus hard|plain|first|second|third|fourth|fifth|sixth] [--show dev] [--json]

Each case is two versions of a small package and a client whose lines say what an audit must find; the tests run every
client on both versions, so the marks are facts. Half of the hard cases, by a hash of the name, are held out: figures
are printed for them, and --show names lines of the others only. The fresh ones (`benchmarks/fresh_pairs`) were
written without reading the audit's code or its pairs, and no test runs them. Each round was run before anybody had read
it; then it was read, and what it showed was mended.

recall: marked lines with a finding, warnings included. precision: breaking findings on marked lines, of all breaking
ones; all: the same of warnings too. kind: found lines whose finding has the marked kind.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ALIKE = ({"removed", "renamed", "moved"}, {"param-removed", "param-renamed"})
"""Kinds that differ by whether a replacement was found only."""
PAIRS = Path(__file__).parents[1] / "tests" / "tooling" / "upgrade" / "pairs"
FRESH = Path(__file__).with_name("fresh_pairs")
ROUNDS = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Fresh ones."""


@dataclass
class Tally:
    """What became of the lines of several cases."""

    cases: int = 0
    exact: int = 0
    """Cases judged exactly as marked."""
    marked: int = 0
    found: int = 0
    right_kind: int = 0
    breaking: int = 0
    breaking_right: int = 0
    reported: int = 0
    reported_right: int = 0
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, pair: Any, findings: set[tuple[str, int, str, str]]) -> None:
        """Compare one case."""
        marks = [mark for mark in pair.marks if mark.severity in ("breaking", "warning")]
        reported = {each for each in findings if each[3] != "info"}
        wanted = {(mark.file, mark.line) for mark in marks}
        hits = [mark for mark in marks if any(each[:2] == (mark.file, mark.line) for each in reported)]
        wrong = sorted(each for each in reported if each[:2] not in wanted)
        self.cases += 1
        self.exact += len(hits) == len(marks) and not wrong
        self.marked += len(marks)
        self.found += len(hits)
        self.right_kind += sum(
            any(each[:2] == (mark.file, mark.line) and _same(each[2], mark.kinds) for each in reported) for mark in hits
        )
        self.reported += len(reported)
        self.reported_right += len(reported) - len(wrong)
        breaking = [each for each in reported if each[3] == "breaking"]
        self.breaking += len(breaking)
        self.breaking_right += sum(each[:2] in wanted for each in breaking)
        self.missed += [f"{pair.name}: {m.file}:{m.line} {', '.join(m.kinds)}" for m in marks if m not in hits]
        self.wrong += [f"{pair.name}: {path}:{line} {severity} {kind}" for path, line, kind, severity in wrong]

    def text(self, title: str) -> str:
        """One line."""
        return (
            f"{title:<9} {self.exact}/{self.cases} cases exact, recall {_share(self.found, self.marked)}, "
            f"precision {_share(self.breaking_right, self.breaking)} "
            f"(all {_share(self.reported_right, self.reported)}), kind {_share(self.right_kind, self.found)}"
        )


def _same(kind: str, kinds: tuple[str, ...]) -> bool:
    return kind in kinds or any(kind in group and group & set(kinds) for group in ALIKE)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} = {part / whole:.1%}" if whole else "0/0"


def load_corpus_module(name: str) -> Any:
    """Return a module of the pairs' folder, which is no package: `corpus` or `auditing`."""
    spec = importlib.util.spec_from_file_location(f"pairs_{name}", PAIRS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def halves(corpus: Any, name: str) -> dict[str, list[Any]]:
    """Return the cases of a corpus: those that may be read, and those held out."""
    if name in ROUNDS:
        return {"dev": corpus.read_pairs(FRESH / name), "held out": []}
    pairs = corpus.read_pairs(corpus.HARD if name == "hard" else corpus.FOLDER)
    held_out = [pair for pair in pairs if name == "hard" and pair.held_out]
    return {"dev": [pair for pair in pairs if pair not in held_out], "held out": held_out}


def main() -> None:
    """Print the tallies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", choices=("hard", "plain", *ROUNDS), default="hard")
    parser.add_argument("--show", choices=("dev", "none"), default="none")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    corpus, auditing = load_corpus_module("corpus"), load_corpus_module("auditing")
    tallies: dict[str, Tally] = {}
    for half, pairs in halves(corpus, args.corpus).items():
        tally = tallies[half] = Tally()
        for pair in pairs:
            with tempfile.TemporaryDirectory(prefix="upgrade-pairs-") as folder:
                tally.add(pair, auditing.audited(pair, Path(folder)))
    if args.json:
        print(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1))
        return
    for name, tally in tallies.items():
        if tally.cases:
            print(tally.text(name))
    for title, lines in (("missed", tallies["dev"].missed), ("wrong", tallies["dev"].wrong)):
        for line in lines if args.show == "dev" else ():
            print(f"  {title}  {line}")


if __name__ == "__main__":
    main()
