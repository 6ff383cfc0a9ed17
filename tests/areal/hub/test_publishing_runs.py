"""A run publishes its model when it has finished, on a hub on loopback, and its failures lose nothing."""

import json
import shlex
from pathlib import Path

import pytest

from areal.cli.main import main
from areal.hub import publishing

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def train(hub, monkeypatch, tmp_path, capsys):
    """Return what trains a tiny model for two steps and gives the exit code and the answer."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr(publishing, "_PAUSES", (0.0, 0.0))
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    config = tmp_path / "sft.yaml"
    config.write_text(
        "kind: sft\nbatch_size: 2\ntotal_train_steps: 2\neval_every_steps: 1\nactor: {dtype: float32, device: cpu}\n"
        "model: {init: {model_type: qwen3, vocab_size: 64, hidden_size: 16, intermediate_size: 32, head_dim: 8,\n"
        "  num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1},\n"
        "  tokenizer_path: 'characters:0123456789+-*/='}\n"
        f"train_dataset: {{name: jsonl, path: {rows}}}\nvalid_dataset: {{name: jsonl, path: {rows}}}\n"
        f"output_dir: {tmp_path / 'größer'}\nmetrics: {{progress: false}}\nexport: {{push_to_hub: org/mine}}\n"
    )

    def run(*overrides):
        code = main(["train", str(config), *overrides, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_finished_run_is_published_and_its_model_loads_from_the_hub(hub, train):
    from transformers import AutoModelForCausalLM

    code, answer = train()
    assert code == 0, answer
    files = hub.files("org/mine")
    assert hub.repositories["model", "org/mine"].private
    card = files["README.md"].decode()
    assert "after 2 steps" in card
    assert "| loss |" in card
    assert "größer" not in card
    loaded = AutoModelForCausalLM.from_pretrained("org/mine")
    assert loaded.config.model_type == "qwen3"
    assert answer["summary"]["hub"]["commit"] == hub.repositories["model", "org/mine"].refs["main"]


@pytest.mark.parametrize("fault", ["token", "commit", "refused"])
def test_a_run_that_cannot_publish_is_whole_and_says_how_to_try_again(hub, train, monkeypatch, fault):
    from huggingface_hub import constants

    good = hub.token
    if fault == "token":
        monkeypatch.setenv("HF_TOKEN", "hf_other")
    elif fault == "commit":
        hub.faults["commit"] = 99
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, answer = train()
    assert code == 25, answer
    summary = answer["summary"]
    assert summary["finished"]
    assert summary["hub"]["error"].startswith("HubError: ")
    run = summary["directory"]
    for name in ("final/model.safetensors", "report.html", "metrics.jsonl"):
        assert Path(run, name).stat().st_size
    monkeypatch.setenv("HF_TOKEN", good)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    hub.faults.clear()
    words = shlex.split(summary["hub"]["again"])
    assert words[0] == "areal"
    assert main(words[1:]) == 0
    assert hub.repositories["model", "org/mine"].private
    assert "model.safetensors" in hub.files("org/mine")


def test_what_was_just_published_is_evaluated_by_its_name(hub, train, tmp_path, capsys):
    """`areal train` and `areal eval` follow each other; the second time with a model that was trained further."""
    rows = tmp_path / "train.jsonl"
    config = tmp_path / "eval.yaml"
    config.write_text(
        "kind: rl\nreward: exact\nmodel: {path: org/other}\ngconfig: {max_new_tokens: 2}\nengine: {max_seq_len: 16}\n"
        "rollout: {group_size: 2}\nactor: {device: cpu}\nmetrics: {progress: false}\n"
        f"eval_sets: {{test: {{dataset: {{name: jsonl, path: {rows}}}, samples: 2}}}}\n"
    )

    def evaluated(output):
        arguments = ["eval", "org/mine", "--config", str(config), "--output", str(tmp_path / output), "--json"]
        code = main(arguments)
        return code, json.loads(capsys.readouterr().out)

    seen = []
    for steps, output in ((2, "first"), (3, "second")):
        code, answer = train(f"total_train_steps={steps}")
        assert code == 0, answer
        commit = answer["summary"]["hub"]["commit"]
        code, found = evaluated(output)
        assert code == 0, found
        assert f"org/mine@{commit}" in json.dumps(found)
        assert (tmp_path / output).is_dir()
        seen.append(commit)
    assert seen[0] != seen[1]
