"""Tasksets of verifiers, as agents: their harness calls a model by itself, so an episode is one of the gateway.

    workflow: agent
    workflow_options:
      command: [/path/to/.venv-verifiers/bin/python, /path/to/areal/environment/adapters/verifiers_agent.py,
                my_settings.json, "{row}"]
      score: areal.environment.adapters.verifiers_agent:reward
    reward: unscored

As a program it plays the task whose position in the taskset is the column `task` of the row, against the model at
OPENAI_BASE_URL with the key OPENAI_API_KEY, and writes what that earned to verifiers.json in its working folder. The
settings are a JSON file with fields of `verifiers.v1.SingleAgentEnvConfig`, {"taskset": {"id": "my_taskset"}}; the null
harness in a subprocess is the default. Exit code 3: the episode failed by itself, which is not a reward of 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_RESULT = "verifiers.json"
_FAILED = 3
_MAX_BYTES = 1 << 20
_RUNTIME = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


def reward(run: Any) -> float:
    """Return what an episode earned, for `score` of the workflow. Raises ValueError when it says nothing usable.

    run: an `areal.workflow.agent.AgentRun`, in whose folder the program has left its result.
    """
    file = Path(run.folder) / _RESULT
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{_RESULT} is missing: did the command run {Path(__file__).name}?")
    earned = json.loads(file.read_bytes())["reward"]
    if not isinstance(earned, (int, float)) or isinstance(earned, bool) or not math.isfinite(earned):
        raise ValueError(f"{_RESULT} has the reward {earned!r:.60}, expected a finite number")
    return float(earned)


def main() -> int:
    """Play, write what came of it, and return the exit code."""
    # Beside this file lie modules with the names of packages that verifiers imports.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    settings, row = (json.loads(Path(argument).read_bytes()) for argument in sys.argv[1:])
    Path(_RESULT).unlink(missing_ok=True)
    position = row.get("task")
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        sys.stderr.write(f"the row's column task is {position!r}, expected the position of a task: 0, 1, 2, ...\n")
        return _FAILED
    episode = asyncio.run(_play({"agent": _RUNTIME, **settings}, position))
    if episode is None:
        sys.stderr.write(f"the taskset has no task {position}\n")
        return _FAILED
    if not episode.ok or not episode.traces:
        sys.stderr.write(f"the episode failed: {[str(error) for error in episode.errors]}\n")
        for trace in episode.traces:
            sys.stderr.write(f"  {[str(error) for error in trace.errors]}\n")
        return _FAILED
    rewards = [trace.reward for trace in episode.traces]
    part = Path(f"{_RESULT}.part")
    part.write_text(json.dumps({"reward": sum(rewards) / len(rewards), "rewards": rewards}), encoding="utf-8")
    part.replace(_RESULT)
    return 0


async def _play(settings: dict[str, Any], position: int) -> Any:
    """Return the episode of a task, or None where there is no such task."""
    vf: Any = import_module("verifiers.v1")  # of the interpreter that runs this program
    environment = vf.load_environment(vf.SingleAgentEnvConfig.model_validate(settings))
    task = next((task for index, task in enumerate(environment.taskset) if index == position), None)
    if task is None:
        return None
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    return await environment.run_episode(task, vf.ModelContext("areal", client, vf.SamplingConfig()))


if __name__ == "__main__":
    raise SystemExit(main())
