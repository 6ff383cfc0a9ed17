"""Share of defects in new files, written by hand, that `areal-review` reports.

    python benchmarks/review_written.py [REPOSITORY] [--set development|held-out] [--list]

`review_written.txt` holds forty files in the style of `areal/`, each with one defect of a kind that people make in such
code; they were written before anything was said of them. `### PATH KIND` starts a file, `# <--` marks the line of its
defect and is taken out. Each is reviewed as if a commit had added it to the newest commit of REPOSITORY (default: this
one). A defect counts as reported if something is said within three lines of it; what is said elsewhere is false. The
hash of the path says which half rules are developed on; of the other half only the number is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from review_history import NEAR
from review_introduced import set_of

from tooling.cli.errors import UsageError
from tooling.review.findings import find
from tooling.review.policy import read_policy
from tooling.review.repository.comparison import ChangedFile, Comparison
from tooling.review.repository.git import ReviewedClone
from tooling.review.repository.side import Side

MARK = "  # <--"


def cases(text: str) -> dict[str, tuple[str, int, str]]:
    """Map the path of each file to its kind, the defect's line and the content."""
    found = {}
    for part in text.split("### ")[1:]:
        header, _, body = part.partition("\n")
        path, kind = header.split()
        line = next(number for number, each in enumerate(body.split("\n"), 1) if each.endswith(MARK))
        found[path] = (kind, line, body.replace(MARK, ""))
    return found


def main() -> int:
    """Review all files at once, and print what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path, nargs="?", default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--set", choices=("development", "held-out"))
    parser.add_argument("--list", action="store_true", help="print each case for development, and what is said of it")
    arguments = parser.parse_args()
    try:
        git = ReviewedClone.open(arguments.repository)
    except UsageError as error:
        parser.error(f"{arguments.repository}: no repository; name a clone ({error})")
    written = cases(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
    chosen = {path: case for path, case in written.items() if arguments.set in (None, set_of(path))}
    base = Side(git, git.require("HEAD", "--head"))
    head = Side(git, base.where, _parsed=base._parsed)
    head.__dict__["paths"] = base.paths | set(chosen)
    head._texts.update({path: text for path, (_, _, text) in chosen.items()})
    files = [
        ChangedFile(path, path, "A", frozenset(range(1, text.count("\n") + 2))) for path, (_, _, text) in chosen.items()
    ]
    said, notes = find(Comparison(base, head, tuple(files), "written"), read_policy(base))
    bugs, found, elsewhere = Counter[str](), Counter[str](), Counter[str]()
    for path, (kind, line, _) in chosen.items():
        here = [each for each in said if each.place.path == path]
        near = {each.rule.id for each in here if abs(each.place.line - line) <= NEAR}
        others = [each for each in here if abs(each.place.line - line) > NEAR]
        name = set_of(path)
        bugs[name] += 1
        found[name] += bool(near)
        elsewhere[name] += len(others)
        if arguments.list and name == "development":
            print(f"{kind:28} {path}:{line} {' '.join(sorted(near)) or 'MISSED'}")
            for each in others:
                print(f"    elsewhere {each.place.line} {each.rule.id} {each.place.message}")
    for note in notes:
        print(note, file=sys.stderr)
    rates = {name: f"{found[name]} of {count}, {elsewhere[name]} elsewhere" for name, count in sorted(bugs.items())}
    print(json.dumps(rates))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
