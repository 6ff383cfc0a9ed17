"""`python -m areal_harness MODULE ...` is `python -m MODULE ...` for a module of the harness, wherever that lies."""

from __future__ import annotations

import runpy
import sys

from areal_harness import add_to_path

if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit("error: expected a module of the harness, e.g. python -m areal_harness tooling.new --help")
    add_to_path()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
