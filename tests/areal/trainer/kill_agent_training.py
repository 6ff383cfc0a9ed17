"""Program run by test_agent_runs: `areal train` of an agent, killed while agents are at work, and continued.

    python kill_agent_training.py <empty folder>

Prints one JSON object for the uninterrupted run and one for the killed one, as kill_training does, each with the
prompts that agents of each process were given, in order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import kill_training
import runs

import areal.gateway.server  # noqa: F401 - imported once for all forks
from areal.trainer.assembly import tokenizer_of
from areal.workflow.agent import AgentWorkflow

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents"
PLACE = "while agents of step 4 work"
SETTINGS = {
    "total_train_steps": 5,
    "checkpoint__every_steps": 2,
    "rollout__batch_size": 2,
    "rollout__group_size": 2,
    "model__init": runs.BASE["model.init"] | {"vocab_size": 22, "eos_token_id": 1, "pad_token_id": 0},
    "model__tokenizer_path": str(EXAMPLE / "tokenizer"),
    "train_dataset__path": str(EXAMPLE / "questions.jsonl"),
    "workflow": "agent",
    "workflow_options": {"agent": "agents_of_runs:asks_twice"},
}


def main() -> None:
    root = Path(sys.argv[1])
    kill_training.SETTINGS = SETTINGS
    tokenizer_of(runs.tiny(root, **SETTINGS).model)
    # Four episodes a step: two of the fourth step are over, two are not. Only the second step has a checkpoint.
    for name, place in (("straight", None), (PLACE, (AgentWorkflow, "_rewarded", 15, "before"))):
        prompts = root / f"{name}.prompts"
        os.environ["AREAL_TEST_PROMPTS"] = str(prompts)
        report = kill_training.run_case(root, name, place)
        given: dict[str, list[str]] = {}
        for pid, prompt in map(str.split, prompts.read_text().splitlines()):
            given.setdefault(pid, []).append(prompt)
        sys.stdout.write(json.dumps(report | {"prompts": list(given.values())}) + "\n")
        sys.stdout.flush()


main()
