"""Compare many processes with one, and print the table: loss, gradients and parameters after two optimizer steps.

examples:
  python -m areal.engine.archon.equality                          # 2 and 4 gloo processes, float64
  python -m areal.engine.archon.equality --world-size 4 --only mixture
  python -m areal.engine.archon.equality --write docs/parallel.md
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, UsageError
from areal.engine.archon.equality.cases import CONFIGS, cases
from areal.engine.archon.equality.comparison import TOLERANCES
from areal.engine.archon.equality.launch import run_processes
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEGIN: Final = "<!-- areal.engine.archon.equality: begin -->"
_END: Final = "<!-- areal.engine.archon.equality: end -->"
_COLUMNS: Final = ("scores", "loss", "gradient norm", "gradients", "parameters")


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0 all equal, 1 a case differs or fails, 2 wrong arguments."""
    options = _parser().parse_args(argv)
    try:
        results = _results(options)
        table = _markdown(results)
        if options.write is not None and not options.dry_run:
            atomic_write(options.write, _replaced(options.write.read_text(encoding="utf-8"), table))
    except (ArealError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code if isinstance(error, ArealError) else 2
    failed = [result for result in results if not result.get("equal", True)]
    if options.json:
        sys.stdout.write(json.dumps({"ok": not failed, "results": results}) + "\n")
    else:
        sys.stdout.write(table + "\n")
    for result in failed:
        sys.stderr.write(f"{result['case']}: {result.get('error') or result['differences']}\n")
    return 1 if failed else 0


def _results(options: argparse.Namespace) -> list[dict[str, Any]]:
    arguments = [f"--dtype={options.dtype}", f"--only={options.only}", *(["--quick"] if options.quick else [])]
    names = {
        world_size: [case.name for case in cases(world_size, quick=options.quick) if options.only in case.name]
        for world_size in options.world_size or (2, 4)
    }
    if not any(names.values()):
        kinds = ", ".join(CONFIGS)
        raise UsageError(f"no case has {options.only!r} in its name; names begin with one of {kinds}")
    results: list[dict[str, Any]] = []
    for world_size in (world_size for world_size, found in names.items() if found):
        results += run_processes(
            "areal.engine.archon.equality.worker", world_size, arguments, timeout_seconds=options.timeout
        )
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m areal.engine.archon.equality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 all equal, 1 a case differs or fails, 2 wrong arguments",
    )
    parser.add_argument("--world-size", type=int, action="append", help="number of processes; repeatable (2 and 4)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="the cases that every run of the tests has")
    parser.add_argument("--dtype", choices=tuple(TOLERANCES), default="float64", help="of parameters and arithmetic")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for one number of processes")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="put the table between the markers of this page")
    parser.add_argument("--dry-run", action="store_true", help="leave the page of --write as it is")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _markdown(results: Sequence[dict[str, Any]]) -> str:
    """One row per case; the exponent of the largest difference, so that rounding does not change the page."""
    lines = [f"| processes | case | {' | '.join(_COLUMNS)} | equal |", f"| --- | --- |{' --- |' * (len(_COLUMNS) + 1)}"]
    for result in results:
        shown = [_magnitude(result.get("differences", {}).get(name)) for name in _COLUMNS]
        verdict = "skipped" if "skipped" in result else "yes" if result["equal"] else "**no**"
        lines.append(f"| {result['world_size']} | {result['case']} | {' | '.join(shown)} | {verdict} |")
    return "\n".join(lines)


def _replaced(page: str, table: str) -> str:
    """`page` with `table` between its markers. Raises UsageError without them."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise UsageError(f"the page has no markers {_BEGIN} and {_END}; add them where the table belongs")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _magnitude(difference: float | None) -> str:
    if difference is None:
        return ""
    if difference == 0:
        return "0"
    exponent = int(f"{difference:e}".partition("e")[2]) + 1
    return f"< 1e{exponent}"


if __name__ == "__main__":
    raise SystemExit(main())
