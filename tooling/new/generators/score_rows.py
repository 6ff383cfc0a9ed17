"""Scores rows with a reward that is not installed yet. Runs as a script in the repository's interpreter; not imported.

stdin   {"root", "file", "function", "rows": [{"prompt", "completion", "row"}, ...]}
stdout  one JSON object per row, in order: {"value": 1.0} or {"error": "ValueError: ..."}

What the reward itself prints goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from typing import Any


def main() -> None:
    """Load the file as a module and answer for each row."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    sys.path.insert(0, request["root"])
    spec = importlib.util.spec_from_file_location("staged_reward", request["file"])
    if spec is None or spec.loader is None:
        raise ImportError(request["file"])
    module = importlib.util.module_from_spec(spec)
    sys.modules["staged_reward"] = module
    spec.loader.exec_module(module)
    function = getattr(module, request["function"])
    for row in request["rows"]:
        outcome: dict[str, Any]
        try:
            value = float(function(row["prompt"], row["completion"], [1], [2], **row["row"]))
        except Exception as error:  # noqa: BLE001 - whatever the reward raises is its answer
            outcome = {"error": f"{type(error).__name__}: {error}"[:500]}
        else:
            outcome = {"value": value} if math.isfinite(value) else {"error": f"it returned {value}"}
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
