"""Runs modules in copies of one process that has imported what all of them need; a program of its own, in any Python.

    python worker.py ROOT

Each line on stdin asks for one run: {"module", "arguments", "input", "imports", "environment"}. `imports` are imported
first, and stay: torch and transformers take seconds of CPU, a fork takes a twentieth of one. The run is a fork, so that
no run sees what another one has done; what it finds in `ROOT` is what lies there when it begins. Each line on stdout
answers: {"status", "stdout", "stderr"}, the status as of `subprocess`. It ends with its stdin.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any


def main() -> None:
    """Answer requests until there are no more."""
    root = sys.argv[1]
    sys.path[0] = root  # as `python -m` has it
    os.chdir(root)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(answer(request)) + "\n")
        sys.stdout.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a run gives. What cannot be imported is missing in the run as well, which says so."""
    gc.disable()  # of what imports make almost all stays: looking through it again and again is a quarter of their time
    for name in request["imports"]:
        try:
            importlib.import_module(name)
        except ImportError:
            break
    gc.freeze()  # the collector of a fork would touch, and so copy, every page
    gc.enable()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        given.write(request["input"].encode())
        given.seek(0)
        child = os.fork()
        if not child:
            for place, stream in enumerate((given, out, error)):
                os.dup2(stream.fileno(), place)
            _run(request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for stream in (out, error):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return {"status": status, "stdout": texts[0], "stderr": texts[1]}


def _run(request: dict[str, Any]) -> None:
    """Become a run, and end with it."""
    status = 1
    try:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        sys.argv = [request["module"], *request["arguments"]]
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as ended:
            if isinstance(ended.code, str):
                sys.stderr.write(ended.code + "\n")
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever ends a run is what its process says
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)  # the requests and the cleaning up are the worker's


if __name__ == "__main__":
    main()
