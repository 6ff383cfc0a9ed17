"""`python -m areal.porting.write UNIT < report.json`: the source that a report stands for, as one JSON object.

A report that no source can be written from gives exit code 2 and {"ok": false, "error": "...", "where": "...",
"fix": "..."}; without `where`, it says something that no analysis says.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from areal.porting.records import ReportError
from areal.porting.write.pieces import family
from areal.utils.special_numbers import untagged

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a report, write its pieces; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m areal.porting.write", description=__doc__)
    parser.add_argument("unit", metavar="UNIT", help="what the family is called where its architecture has no name")
    unit = parser.parse_args(arguments).unit
    try:
        answer = {"ok": True, "family": family(untagged(json.load(sys.stdin)), unit)}
    except ReportError as error:
        answer = {"ok": False, "error": str(error), "where": error.where, "fix": error.fix}
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if answer["ok"] else 2


if __name__ == "__main__":
    raise SystemExit(main())
