"""A taskset of verifiers trained over the gateway, in the interpreter that scripts/setup_verifiers.sh makes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal.api import FaultError, FaultKind, GenerationConfig
from areal.environment.adapters import verifiers_agent
from areal.reward.unscored import unscored_reward
from areal.testing.scripted import ScriptedEngine, ambiguous_tokenizer
from areal.workflow.assembly import create_workflow

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
PROGRAM = str(verifiers_agent.__file__)
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

real = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not (ROOT / ".venv-verifiers" / ".ready").exists(), reason="run `bash scripts/setup_verifiers.sh` first"
    ),
]


@pytest.fixture(scope="module")
def tokenizer():
    return ambiguous_tokenizer(TEMPLATE)


@pytest.fixture
def workflow(tokenizer, tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"taskset": {"id": "sums_taskset"}}))
    paths = os.pathsep.join([str(PYTHON.parent), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    tasks = str(Path(__file__).with_name("verifiers_tasks"))
    return create_workflow(
        "agent",
        reward=unscored_reward,
        gconfig=GenerationConfig(max_new_tokens=50),
        tokenizer=tokenizer,
        options={
            "command": [str(PYTHON), PROGRAM, str(settings), "{row}"],
            "score": "areal.environment.adapters.verifiers_agent:reward",
            "process": {
                "seconds": 200.0,
                "environment": {"PATH": paths, "PYTHONPATH": tasks, "UV_CACHE_DIR": str(tmp_path / "cache")},
                "pass_environment": ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "PIP_INDEX_URL"],
            },
        },
    )


def episode(workflow, tokenizer, task, said):
    engine = ScriptedEngine(lambda _: said, tokenizer)
    return asyncio.run(workflow.arun_episode(engine, {"messages": "a sum", "task": task})), engine


class TestVerifiers:
    pytestmark = real

    @pytest.mark.parametrize(("said", "reward"), [("it is 42", 1.0), ("it is 41", 0.0)])
    def test_a_task_is_played_over_the_gateway_and_its_score_is_the_reward(self, workflow, tokenizer, said, reward):
        (leaf,), engine = episode(workflow, tokenizer, 0, said)

        assert leaf.reward == reward
        assert tokenizer.decode(engine.requests[0].input_ids) == "<|user|>6*7?<eos>\n<|assistant|>"
        learned = [token for token, is_learned in zip(leaf.tokens, leaf.loss_mask, strict=True) if is_learned]
        assert tokenizer.decode(learned) == f"{said}<eos>"

    @pytest.mark.parametrize(("task", "words"), [(2, "a bug of the taskset"), (7, "no task 7")])
    def test_a_task_that_fails_by_itself_is_a_fault_and_no_zero(self, workflow, tokenizer, task, words):
        with pytest.raises(FaultError) as caught:
            episode(workflow, tokenizer, task, "it is 42")

        assert caught.value.kind is FaultKind.AGENT_FAILED
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is missing"),
        ('{"reward": NaN}', "finite number"),
        ('{"reward": "1"}', "finite number"),
        ('{"reward": true}', "finite number"),
        (" " * (1 << 21), "is missing"),
    ],
)
def test_a_result_that_is_none_is_no_reward(text, words, tmp_path):
    if text is not None:
        (tmp_path / "verifiers.json").write_text(text)

    with pytest.raises(ValueError, match=words):
        verifiers_agent.reward(SimpleNamespace(folder=tmp_path))


@pytest.mark.parametrize("task", [None, "0", True, -1])
def test_a_row_without_a_task_is_refused_before_anything_is_imported(task, tmp_path):
    for name, value in (("settings.json", {"taskset": {"id": "sums_taskset"}}), ("row.json", {"task": task})):
        (tmp_path / name).write_text(json.dumps(value))

    done = subprocess.run(
        [sys.executable, PROGRAM, "settings.json", "row.json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 3
    assert "expected the position of a task" in done.stderr
