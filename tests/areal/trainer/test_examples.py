"""Every file in examples/ is a valid run, says how to start it and what it took, and trains."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from areal.infra.metrics.logger import read_metrics
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import find_problems
from areal.trainer.run import run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))
ELSEWHERE = {
    "cluster/arithmetic_nodes.yaml": "a job of two ranks: tests/areal/infra/jobs",
    "cluster/gsm8k_16_shared.yaml": "needs a cluster and a checkpoint of a language model",
    "cluster/gsm8k_64.yaml": "needs a cluster and a checkpoint of a language model",
    "math/arithmetic_sglang.yaml": "needs an SGLang server: test_with_sglang",
    "math/arithmetic_vllm.yaml": "needs a vLLM server: test_with_servers",
    "math/gsm8k_rl.yaml": "needs a checkpoint of a language model",
    "math/gsm8k_sft.yaml": "needs a checkpoint of a language model",
    "preference/hhrlhf_dpo.yaml": "needs a checkpoint of a language model; with a tiny one: test_preference_examples",
    "preference/hhrlhf_reward_model.yaml": "as hhrlhf_dpo.yaml",
}
ON_CPU = [name for name in NAMES if name not in ELSEWHERE]
TOKENIZERS = {"code": "bytes:", "tools": "bytes:"}
TOKENIZERS |= {folder: f"examples/{folder}/tokenizer" for folder in ("agents", "chat", "environment")}
SHORT = {
    "total_train_steps": 2,
    "num_threads": 1,
    "metrics.progress": False,
    "checkpoint.every_seconds": 0,
}
WARM_STARTS = {"runs/arithmetic/sft/final": "math/arithmetic_sft.yaml", "runs/code/sft/final": "code/code_sft.yaml"}
WARM_STARTS |= {
    "runs/agents/sft/final": "agents/demonstrations_sft.yaml",
    "runs/arithmetic/teacher/final": "math/distillation_teacher.yaml",
    "runs/environment/sft/final": "environment/demonstrations_sft.yaml",
    "runs/tools/sft/final": "tools/calls_sft.yaml",
    "runs/arithmetic/reward_model/final": "preference/arithmetic_reward_model.yaml",
}


def head_of(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    return [line.removeprefix("#").strip() for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")]]


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_valid_run_of_files_that_are_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    document = yaml.safe_load((EXAMPLES / name).read_text())
    changes = {"output_dir": str(tmp_path)}
    if not document["model"].get("init"):
        tokenizer = TOKENIZERS.get(Path(name).parts[0], "characters:0123456789+-*/=")
        changes |= {"model.path": "", "model.init": {"model_type": "qwen3"}, "model.tokenizer_path": tokenizer}
    config = load_config(EXAMPLES / name, [f"{key}={json.dumps(value)}" for key, value in changes.items()]).config
    texts = [str(problem) for problem in find_problems(config)]
    # Servers are set up apart, and what another example writes is not there yet.
    texts = [text for text in texts if not text.startswith(("sglang.python", "vllm.python"))]
    assert [text for text in texts if not any(folder in text for folder in WARM_STARTS)] == []
    path = document.get("train_dataset", {}).get("path", "")
    assert not path or (ROOT / path).exists()


@pytest.mark.parametrize("name", ON_CPU)
def test_an_example_says_how_it_is_started_and_what_that_took(name):
    head = head_of(name)
    assert any(line.endswith(f"examples/{name}") or f"examples/{name} " in line for line in head), "the command"
    assert re.search(r"Measured on two CPU cores: \d+ s", "\n".join(head))


def test_the_readme_lists_every_example_and_nothing_else():
    listed = re.findall(r"\]\(([\w/]+\.yaml)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == NAMES


@pytest.fixture(scope="module")
def warm_start(tmp_path_factory):
    """A function from the folder that an example starts from to one that two steps of its warm start have written."""
    folders = {}

    def build(folder):
        if folder not in folders:
            output = tmp_path_factory.mktemp("warm")
            folders[folder] = train(WARM_STARTS[folder], output, build)["checkpoint"]
        return folders[folder]

    return build


def settings(name, output, build):
    """Overrides that shorten an example and lead it to its warm start."""
    document = yaml.safe_load((EXAMPLES / name).read_text())
    changes = SHORT | {"output_dir": str(output)}
    if path := document["model"].get("path"):
        changes["model.path"] = build(path)
    if document["kind"] == "rl":
        changes |= {"rollout.batch_size": 4, "gconfig.max_new_tokens": min(24, document["gconfig"]["max_new_tokens"])}
        for chosen in document.get("eval_sets", {}):
            changes[f"eval_sets.{chosen}.rows"] = 4
    if name == "preference/arithmetic_rl_on_scores.yaml":
        changes["reward.score.options.path"] = build("runs/arithmetic/reward_model/final")
    if name == "math/distillation.yaml":
        changes["distillation.teachers.main.path"] = build("runs/arithmetic/teacher/final")
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def train(name, output, build):
    return run(load_config(EXAMPLES / name, settings(name, output, build)).config)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in ON_CPU if "archon" not in name])
def test_an_example_trains(name, tmp_path, warm_start, monkeypatch):
    if name == "agents/arithmetic_grpo.yaml" and importlib.util.find_spec("openai") is None:
        pytest.skip("needs the OpenAI SDK: pip install openai")
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    summary = train(name, tmp_path / "run", warm_start)
    assert summary["finished"]
    assert Path(summary["checkpoint"], "config.json").is_file()
    assert {1, 2} <= set(read_metrics(tmp_path / "run" / "metrics.jsonl"))


@pytest.mark.exhaustive
def test_the_example_over_two_ranks_trains(tmp_path, warm_start, monkeypatch):
    monkeypatch.chdir(ROOT)
    changes = settings("math/arithmetic_archon.yaml", tmp_path / "run", warm_start)
    areal = str(Path(sys.executable).with_name("areal"))
    command = [areal, "launch", "--ranks", "2", "--", areal, "train", "examples/math/arithmetic_archon.yaml", *changes]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {1, 2} <= set(read_metrics(tmp_path / "run" / "metrics.jsonl"))
