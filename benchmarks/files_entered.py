"""Count the files of this repository that one command enters: how many a reader meets who follows it.

    python benchmarks/files_entered.py -- areal train examples/math/arithmetic_grpo.yaml total_train_steps=2
    python benchmarks/files_entered.py --list -- areal-new reward digits --dry-run
    python benchmarks/files_entered.py --json -- areal-new model granite --dry-run

A file counts when a function of it is called while the command runs, in any thread of its process (processes that it
starts are not counted). What runs on import, class bodies included, is not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import threading
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("areal", "tooling")
_OPTIMIZED = 0x1
"""Flag of the code of functions; modules and class bodies lack it."""


def entered(program: str, arguments: list[str]) -> tuple[Counter[str], int]:
    """Run a program of pyproject.toml in this process; return calls by file, and the exit code."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    if program not in scripts:
        raise SystemExit(f"{program!r} is not a program of this repository; expected one of {', '.join(scripts)}")
    module, _, function = scripts[program].partition(":")
    roots = tuple(f"{ROOT / package}/" for package in PACKAGES)
    calls: Counter[Any] = Counter()

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_flags & _OPTIMIZED:
                calls[code] += 1

    main = getattr(importlib.import_module(module), function)
    sys.argv = [program, *arguments]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        code = main()
    except SystemExit as ending:
        code = ending.code
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it; the stub lacks that
    files: Counter[str] = Counter()
    for each, count in calls.items():
        # Comprehensions are part of the function, or of the module, that they are in.
        if each.co_filename.startswith(roots) and (each.co_name == "<lambda>" or not each.co_name.startswith("<")):
            files[str(Path(each.co_filename).relative_to(ROOT))] += count
    return files, int(code or 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the files, most calls first")
    parser.add_argument("--json", action="store_true", help="print one object: count, exit_code, files")
    parser.add_argument("command", nargs="*", help="a program and its arguments, after --")
    options = parser.parse_args()
    if not options.command:
        parser.error("no command: write it after --")
    with contextlib.redirect_stdout(sys.stderr):
        files, code = entered(options.command[0], options.command[1:])
    if options.json:
        print(json.dumps({"count": len(files), "exit_code": code, "files": dict(files.most_common())}))
    else:
        print(f"{len(files)} files (exit code {code})")
        if options.list:
            print("".join(f"{count:9} {name}\n" for name, count in files.most_common()), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
