"""`areal serve`: what it would start, what it starts, and that nothing of it is left.

The program behind it is a double of vLLM's API, started by the command line for vLLM.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from areal.cli import main as cli
from areal.engine.server.client import is_healthy
from areal.infra.directory import open_directory

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("program", ROOT / "tests/areal/engine/contract/vllm_program.py")
program = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)

CONFIG = """
kind: rl
output_dir: {folder}/run
model:
  init: {{model_type: qwen3, vocab_size: 17, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1,
          num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, max_position_embeddings: 64,
          tie_word_embeddings: true}}
  tokenizer_path: "characters:0123456789+-*/="
train_dataset: {{name: arithmetic}}
reward: exact
gconfig: {{max_new_tokens: 4}}
rollout: {{engine: vllm}}
servers: {{dtype: float32, max_seq_len: 64}}
supervisor: {{grace_seconds: 2, startup_seconds: 60}}
vllm: {{python: {python}}}
"""


@pytest.fixture
def config(tmp_path):
    """Of a run with vLLM servers."""
    python = program.write_python(tmp_path / "environment" / "python")
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, python=python))
    return path


def answer(capsys, *arguments):
    code = cli.main(["serve", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_dry_run_shows_the_whole_command_and_writes_nothing(config, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    code, facts = answer(capsys, config, "--host", "0.0.0.0", "--port", "18473", "--dry-run")
    assert code == 0
    assert facts["url"] == f"http://{socket.gethostname()}:18473"
    words = facts["arguments"]
    for pair in (("--logprobs-mode", "processed_logprobs"), ("--max-model-len", "64"), ("--dtype", "float32")):
        assert words[words.index(pair[0]) + 1] == pair[1]
    # The last one counts.
    assert words[len(words) - words[::-1].index("--host")] == "0.0.0.0"
    folder = tmp_path / "run" / "serve" / "18473"
    assert words[words.index("--model") + 1] == str(folder / "model")
    assert facts["environment"]["PYTHONPATH"] == str(folder / "vllm-plugin")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["rollout.engine=embedded"],
            "uses no vLLM servers, and this starts no others; set kind=rl and rollout.engine=vllm",
        ),
        (["vllm.python=no/such/python"], "no/such/python', which does not exist: run `bash"),
        (["servers.dtype=float16"], "servers.dtype"),
    ],
)
def test_what_cannot_be_served_is_refused_with_exit_code_2(config, capsys, changes, message):
    code, facts = answer(capsys, config, *changes, "--dry-run")
    assert code == 2
    assert re.search(message, facts["error"])


def test_a_port_that_is_taken_is_refused_at_once(config, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, facts = answer(capsys, config, "--port", port)
    assert code == 2
    assert f"cannot listen at port {port}" in facts["error"]


@pytest.fixture
def start(config, fork_server):
    """`start(*options)`: a process of `areal serve`."""
    return lambda *options: fork_server.start("areal", ["serve", str(config), *map(str, options), "--json"])


def ready(process, file):
    deadline = time.monotonic() + 60
    while not file.is_file():
        assert process.returncode is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return json.loads(file.read_text())


def test_it_serves_until_it_is_asked_to_end_and_leaves_nothing(start, tmp_path):
    file = tmp_path / "server.json"
    process = start("--ready-file", file)
    try:
        standing = ready(process, file)
        assert is_healthy(standing["url"], 60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert json.loads(process.stdout).items() >= {"ok": False, "command": "serve", "exit_code": 143, **standing}.items()
    assert f"serving at {standing['url']}" in process.stderr
    assert not is_healthy(standing["url"], 1.0)
    assert not file.exists()


@pytest.mark.exhaustive
def test_a_server_with_a_directory_announces_itself_and_withdraws_when_it_ends(start, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"of this test and nobody else's")
    key.chmod(0o600)
    url = f"file://{tmp_path}/meet"
    where = (f"servers.directory={url}", f"servers.directory_key={key}")
    process = start(*where, "weights.carrier=disk", "--name", "n1.gpu0")
    try:
        with open_directory(url, key.read_bytes()) as directory:
            (name, entry), *_ = directory.wait_for("server", 1, 60).items()
            assert name == "n1.gpu0"
            assert is_healthy(entry["url"], 60.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
            assert directory.entries("server") == {}
    finally:
        process.kill()
    assert "announced as n1.gpu0" in process.stderr


def test_a_key_that_others_can_read_is_refused(config, tmp_path, capsys):
    key = tmp_path / "key"
    key.write_bytes(b"of this test and nobody else's")
    key.chmod(0o644)
    code, facts = answer(capsys, config, "servers.directory=tcp://127.0.0.1:9", f"servers.directory_key={key}")
    assert code == 2
    assert "can be read by other users" in facts["error"]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=25,
    injected="SIGKILL of `areal serve`",
    seen="its server ends too",
)
def test_no_server_survives_a_command_that_is_killed(start, tmp_path):
    file = tmp_path / "server.json"
    process = start("--ready-file", file)
    try:
        standing = ready(process, file)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    finally:
        process.kill()
    deadline = time.monotonic() + 60
    while is_healthy(standing["url"], 1.0):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_dies_is_an_error_with_the_end_of_its_log(config, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no device of that name' >&2\nexit 3\n")
    broken.chmod(0o755)
    code, facts = answer(capsys, config, f"vllm.python={broken}")
    assert code == 1
    assert "the server ended: exit status 3" in facts["error"]
    assert "no device of that name" in facts["error"]
