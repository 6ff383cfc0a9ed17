"""How much of what real upgrades broke `areal-upgrade-deps` finds, on repositories as they were just before.

    python benchmarks/upgrade_history.py CASES.json CHECKOUTS [--only ID ...] [--cache FOLDER] [--json]
                                         [--others griffe,pyright] [--judged FILE] [--scores FILE] [--write-docs]

CASES.json is a list of {id, package, import, old, new, scope, truth, safe, preexisting}; places are {path, line, kind,
symbol, static, role} with an optional line_arg. CHECKOUTS holds one folder per id: the repository at the commit before
its maintainers adapted. A breaking finding is right if it is on a line of `truth` (for arguments: on any line of the
innermost call around it); on a line of `safe` or `preexisting` it is wrong; elsewhere it is unexplained, and counted as
wrong until somebody has looked: --judged is a list of {case, path, line, right, why} from reading both sources, for
places that the maintainers' commit left out. Uses of an imported name count as found if its import is: type checkers
say it once.

--scores keeps what was measured, so that cases may be run one by one on a busy machine; --write-docs puts the table of
all that is kept into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import upgrade_others as others
import upgrade_tables as tables

if TYPE_CHECKING:
    from collections.abc import Sequence

SAME_KIND = {
    "moved": {"moved", "renamed", "removed"},
    "renamed": {"renamed", "moved", "removed"},
    "removed": {"removed", "moved", "renamed"},
    "param_removed": {"param-removed", "param-renamed"},
    "param_renamed": {"param-renamed", "param-removed"},
    "param_required": {"param-required"},
    "signature_override": {"override-drift"},
    "return_changed": {"return-changed", "http-field"},
}
"""Kind of a true place: what an audit may call it."""


@dataclass
class Score:
    """Outcome of one case."""

    case: str
    tool: str = "areal-upgrade-deps"
    exit_code: int = -1
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    found: dict[str, list[int]] = field(default_factory=dict)
    """Visibility -> [found, of]."""
    right_kind: int = 0
    missed: list[str] = field(default_factory=list)
    right: int = 0
    """Breaking findings on true places."""
    wrong: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def run_case(case: dict[str, Any], checkout: Path, cache: str) -> Score:
    """Audit one repository and compare."""
    score = Score(case["id"])
    command = [str(Path(sys.executable).parent / "areal-upgrade-deps"), "impact", f"{case['package']}=={case['new']}"]
    command += ["--from", case["old"], "--json", "--repo", str(checkout)]
    command += ["--cache", cache] if cache else []
    clock = others.Clock()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    score.seconds, score.cpu_seconds = clock.stop()
    score.exit_code = done.returncode
    try:
        report = json.loads(done.stdout)
    except ValueError:
        score.error = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return score
    if "findings" not in report:
        score.error = str(report.get("error"))
        return score
    audits = report.get("audits") or [{}]
    score.figures = {key: audits[0].get(key) for key in ("uses", "symbols", "judged", "open_share", "seconds")}
    _compare(case, checkout, report["findings"], score)
    return score


def run_others(case: dict[str, Any], checkout: Path, cache: str, names: Sequence[str]) -> list[Score]:
    """Judge the same case with other tools, all on one unpacked copy of the two releases."""
    from tooling.upgrade.sources.cache import default_folder
    from tooling.upgrade.sources.indexed import Catalogue

    catalogue = Catalogue(Path(cache) if cache else default_folder(), project=checkout)
    scores = []
    with tempfile.TemporaryDirectory(prefix="upgrade-history-") as folder:
        for side in ("old", "new"):
            others.unpack(catalogue.release(case["package"], case[side]), Path(folder) / side)
        files = others.client_files(checkout, tuple(case["scope"]), case["import"])
        for name in names:
            told = others.TOOLS[name](case["import"], Path(folder), checkout, files)
            score = Score(case["id"], name, seconds=told.seconds, cpu_seconds=told.cpu_seconds, error=told.error)
            _compare(case, checkout, [{**each, "severity": "breaking"} for each in told.places], score)
            scores.append(score)
    return scores


def _compare(case: dict[str, Any], checkout: Path, findings: list[dict[str, Any]], score: Score) -> None:
    scope = tuple(case["scope"])
    # Below breaking, places count as found too if they are what a maintainer had to change under a guard.
    visible = [f for f in findings if f["severity"] != "info" and _inside(f["path"], scope)]
    found = [[each for each in visible if _on(each, place, checkout)] for place in case["truth"]]
    imports = {
        (place["path"], place["symbol"])
        for place, hits in zip(case["truth"], found, strict=True)
        if place["role"] == "import" and hits
    }
    for truth, hits in zip(case["truth"], found, strict=True):
        known = bool(hits) or (truth["path"], truth["symbol"]) in imports
        tally = score.found.setdefault(truth["static"], [0, 0])
        tally[0] += known
        tally[1] += 1
        if any(finding["kind"] in SAME_KIND.get(truth["kind"], {truth["kind"].replace("_", "-")}) for finding in hits):
            score.right_kind += 1
        if not known:
            score.missed.append(f"{truth['path']}:{truth['line']} {truth['static']} {truth['kind']} {truth['symbol']}")
    for finding in (finding for finding in visible if finding["severity"] == "breaking"):
        _count(case, checkout, finding, score)


def _count(case: dict[str, Any], checkout: Path, finding: dict[str, Any], score: Score) -> None:
    """Right, wrong or unexplained."""
    judged = [place["right"] for place in case.get("judged", ()) if _on(finding, place, checkout)]
    if any(judged) or any(_on(finding, place, checkout) for place in case["truth"]):
        score.right += 1
        return
    words = f"{finding['path']}:{finding['line']} {finding['kind']} {finding['symbol']} {finding['parameter'] or ''}"
    known = [*case["safe"], *case["preexisting"]]
    wrong = bool(judged) or any(_on(finding, place, checkout) for place in known)
    (score.wrong if wrong else score.unexplained).append(words)


def _inside(path: str, scope: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in scope)


def _on(finding: dict[str, Any], place: dict[str, Any], checkout: Path) -> bool:
    if finding["path"] != place["path"]:
        return False
    if finding["line"] in {place["line"], place.get("line_arg")}:
        return True
    first, last = _call_around(checkout / place["path"], place["line"]) if "param" in place else (0, 0)
    return first <= finding["line"] <= last


@lru_cache(maxsize=4096)
def _call_around(file: Path, line: int) -> tuple[int, int]:
    """First and last line of the innermost call that a line is part of; of none (0, 0)."""
    calls = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return min(calls, key=lambda span: span[1] - span[0], default=(0, 0))


@lru_cache(maxsize=256)
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cache", default="")
    parser.add_argument("--others", default="", help=f"comma-separated: {', '.join(others.TOOLS)}")
    parser.add_argument("--judged", type=Path)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _cases(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    judged = json.loads(arguments.judged.read_text()) if arguments.judged else []
    cases = json.loads(arguments.cases.read_text())
    for case in cases:
        case["judged"] = [place for place in judged if place["case"] == case["id"]]
    return [case for case in cases if not arguments.only or case["id"] in arguments.only]


def main() -> None:
    """Run all cases and print what was found, missed and wrongly reported."""
    arguments = _parsed()
    names = [name for name in arguments.others.split(",") if name]
    if names and others.missing():
        sys.stderr.write(f"{others.missing()}\n")
        names = []
    scores: list[Score] = []
    for case in _cases(arguments):
        checkout = arguments.checkouts / case["id"]
        scores.append(run_case(case, checkout, arguments.cache))
        scores += run_others(case, checkout, arguments.cache, names) if names else []
        if arguments.scores:
            tables.keep(arguments.scores, [asdict(score) for score in scores])
    kept = tables.kept(arguments.scores) if arguments.scores else [asdict(score) for score in scores]
    if arguments.write_docs:
        tables.write_docs(kept)
    if arguments.json:
        print(json.dumps({"cases": [asdict(score) for score in scores], "summary": tables.summaries(kept)}, indent=1))
        return
    for score in scores:
        print(
            f"{score.case}, {score.tool}: {score.seconds} s, {score.cpu_seconds} processor s, found {score.found}, "
            f"right {score.right} of {score.right + len(score.wrong) + len(score.unexplained)}"
        )
        for title in ("missed", "wrong", "unexplained") if score.tool == Score.tool else ():
            for line in getattr(score, title):
                print(f"    {title}: {line}")
        if score.error:
            print(f"    error: {score.error}")
    print(json.dumps(tables.summaries(kept)))


if __name__ == "__main__":
    main()
