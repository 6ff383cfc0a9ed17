"""Runs clients statement by statement, and says which lines ran and which raised: the child process of the proof.

Reads a JSON list of {"name", "root", "files"} on standard input; each root holds the package and the client files.
Every case runs in a process of its own (a fork), so that nothing imported stays behind."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

_COMMON = (
    "asyncio",
    "attrs",
    "concurrent.futures",
    "importlib.metadata",
    "packaging.version",
    "pydantic",
    "unittest.mock",
)
"""What cases import beside the package: loaded once, before the forks."""


def main() -> None:
    """One JSON object: name to {"ran": [[file, line]], "raised": [[file, line, text]]}."""
    cases = json.load(sys.stdin)
    for name in _COMMON:
        importlib.import_module(name)
    results = {case["name"]: _in_a_fork(case) for case in cases}
    json.dump(results, sys.stdout)


def _in_a_fork(case: dict[str, object]) -> dict[str, object]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            json.dump(_run(Path(str(case["root"])), list(case["files"])), stream)  # type: ignore[call-overload]  # a list in JSON
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"ran": [], "raised": [["", 0, "the process died"]]}


def _run(root: Path, files: list[str]) -> dict[str, object]:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(root))
    sys.stdout = sys.stderr
    paths = {str(root / file): file for file in files}
    ran: set[tuple[str, int]] = set()
    raised: list[tuple[str, int, str]] = []

    def watch(frame, event, _argument):  # a trace function
        file = paths.get(frame.f_code.co_filename)
        if file is None:
            return None
        ran.add((file, frame.f_lineno))
        return watch

    path = root / "client.py"
    space: dict[str, object] = {"__name__": "client", "__file__": str(path)}
    sys.settrace(watch)
    for statement in ast.parse(path.read_bytes()).body:
        code = compile(ast.Module([statement], []), str(path), "exec", flags=_future(path), dont_inherit=True)
        try:
            exec(code, space)
        except BaseException as error:  # noqa: BLE001 - whatever a client raises is the result
            raised.append(_place(error, paths))
    sys.settrace(None)
    return {"ran": sorted(ran), "raised": raised}


def _future(path: Path) -> int:
    import __future__

    wanted = "from __future__ import annotations" in path.read_text()
    return __future__.annotations.compiler_flag if wanted else 0


def _place(error: BaseException, paths: dict[str, str]) -> tuple[str, int, str]:
    """The innermost line of the client that the exception passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
    text = f"{type(error).__name__}: {error}"
    return (paths[frames[-1].filename], frames[-1].lineno or 0, text) if frames else ("", 0, text)


if __name__ == "__main__":
    main()
