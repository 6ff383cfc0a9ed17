"""A program of its own: calls one function of a workspace with each case and prints what came out.

    python caller.py '{"target": "module:name", "cases": [{"args": [1], "kwargs": {}}]}'

It prints a line of JSON: [{"returns": 1.0}, {"raises": "ValueError"}]. It knows nothing of the harness.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys


def main() -> None:
    """Call, and say what came out."""
    request = json.loads(sys.argv[1])
    module, _, name = request["target"].partition(":")
    answers = []
    with contextlib.redirect_stdout(sys.stderr):
        function = getattr(importlib.import_module(module), name)
        for case in request["cases"]:
            try:
                answers.append({"returns": function(*case.get("args", []), **case.get("kwargs", {}))})
            except Exception as error:  # noqa: BLE001 - which error it is, is the answer
                answers.append({"raises": type(error).__name__})
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
