"""How much of what real upgrades broke `areal-upgrade-deps` finds, on repositories as they were just before.

    python benchmarks/upgrade_history.py CASES.json CHECKOUTS [--only ID ...] [--cache FOLDER] [--json]

CASES.json is a list of {id, package, import, old, new, scope, truth, safe, preexisting}; places are {path, line, kind,
symbol, static, role} with an optional line_arg. CHECKOUTS holds one folder per id: the repository at the commit before
its maintainers adapted. A breaking finding is right if it is on a line of `truth`; on a line of `safe` or `preexisting`
it is wrong; elsewhere it is unexplained, and counted as wrong until somebody has looked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
    exit_code: int = -1
    seconds: float = 0.0
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
    command = [str(Path(sys.executable).parent / "areal-upgrade-deps"), f"{case['package']}=={case['new']}"]
    command += ["--from", case["old"], "--audit-only", "--json", "--repo", str(checkout)]
    command += ["--cache", cache] if cache else []
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    score.seconds, score.exit_code = round(time.perf_counter() - started, 2), done.returncode
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
    _compare(case, report["findings"], score)
    return score


def _compare(case: dict[str, Any], findings: list[dict[str, Any]], score: Score) -> None:
    scope = tuple(case["scope"])
    # Below breaking, places count as found too if they are what a maintainer had to change under a guard.
    visible = [f for f in findings if f["severity"] != "info" and _inside(f["path"], scope)]
    for truth in case["truth"]:
        hits = [finding for finding in visible if _on(finding, truth)]
        tally = score.found.setdefault(truth["static"], [0, 0])
        tally[0] += bool(hits)
        tally[1] += 1
        if any(finding["kind"] in SAME_KIND.get(truth["kind"], {truth["kind"]}) for finding in hits):
            score.right_kind += 1
        if not hits:
            score.missed.append(f"{truth['path']}:{truth['line']} {truth['static']} {truth['kind']} {truth['symbol']}")
    for finding in (finding for finding in visible if finding["severity"] == "breaking"):
        if any(_on(finding, truth) for truth in case["truth"]):
            score.right += 1
            continue
        words = (
            f"{finding['path']}:{finding['line']} {finding['kind']} {finding['symbol']} {finding['parameter'] or ''}"
        )
        known = [*case["safe"], *case["preexisting"]]
        (score.wrong if any(_on(finding, place) for place in known) else score.unexplained).append(words)


def _inside(path: str, scope: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in scope)


def _on(finding: dict[str, Any], place: dict[str, Any]) -> bool:
    return finding["path"] == place["path"] and finding["line"] in {place["line"], place.get("line_arg")}


def summary(scores: list[Score]) -> dict[str, Any]:
    """Recall by visibility and precision over all cases."""
    total: dict[str, list[int]] = {}
    for score in scores:
        for visibility, (found, of) in score.found.items():
            tally = total.setdefault(visibility, [0, 0])
            tally[0] += found
            tally[1] += of
    right = sum(score.right for score in scores)
    reported = right + sum(len(score.wrong) + len(score.unexplained) for score in scores)
    return {
        "recall": {visibility: f"{found}/{of}" for visibility, (found, of) in sorted(total.items())},
        "right_kind": sum(score.right_kind for score in scores),
        "breaking_precision": f"{right}/{reported}",
        "seconds": round(sum(score.seconds for score in scores), 1),
    }


def main() -> None:
    """Run all cases and print what was found, missed and wrongly reported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cache", default="")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases = [
        case for case in json.loads(arguments.cases.read_text()) if not arguments.only or case["id"] in arguments.only
    ]
    scores = [run_case(case, arguments.checkouts / case["id"], arguments.cache) for case in cases]
    if arguments.json:
        print(json.dumps({"cases": [asdict(score) for score in scores], "summary": summary(scores)}, indent=1))
        return
    for score in scores:
        print(f"{score.case}: exit {score.exit_code}, {score.seconds} s, found {score.found}, right {score.right}")
        for title in ("missed", "wrong", "unexplained"):
            for line in getattr(score, title):
                print(f"    {title}: {line}")
        if score.error:
            print(f"    error: {score.error}")
    print(json.dumps(summary(scores)))


if __name__ == "__main__":
    main()
