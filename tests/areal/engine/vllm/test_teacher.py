"""A teacher on a server says what the same model says here; what it cannot say is an error, never a number."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

from areal.api import EngineError, PaddedBatch
from areal.dataset.encoding import character_tokenizer
from areal.engine.server.client import is_healthy
from areal.engine.train.candidates import Top
from areal.engine.train.runner import FrozenModel
from areal.engine.vllm.teacher import ServedTeacher
from areal.models import from_config, save_pretrained
from tests.support.teacher_double import TeacherServer

VLLM_PYTHON = Path(__file__).resolve().parents[4] / ".venv-vllm/bin/python"
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def model():
    """A tiny real model."""
    return from_config(CONFIG, seed=3)


@pytest.fixture(scope="module")
def server(model):
    """It on a server."""
    with TeacherServer(model) as running:
        yield running


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Repeat at once."""
    waited = asyncio.sleep
    monkeypatch.setattr("areal.engine.vllm.teacher.asyncio.sleep", lambda _: waited(0))


@pytest.fixture
def batch():
    """Four sequences; the third has no sampled token."""
    lengths, columns = torch.tensor([7, 12, 5, 9]), torch.arange(12)
    mask = ((columns >= 3) & (columns < lengths[:, None])).float()
    mask[2] = 0.0
    mask[1, 6] = 0.0
    zeros = torch.zeros(4, 12)
    return PaddedBatch(
        tokens=torch.randint(0, 29, (4, 12), generator=torch.Generator().manual_seed(0)),
        lengths=lengths, loss_mask=mask, logp_behave=zeros, versions=zeros.long(), turn_ids=zeros.long(),
        rewards=torch.zeros(4), groups=torch.arange(4), truncated=torch.zeros(4, dtype=torch.bool),
    )  # fmt: skip


@pytest.mark.parametrize("k", [0, 1, 5])
def test_the_server_says_what_the_model_says_here(server, model, batch, k):
    found = ServedTeacher(server.url, k=k).score(batch, [0, 1, 2, 3])
    local = FrozenModel.copy_of(model)
    torch.testing.assert_close(found.logp, local.forward_logp(batch, only_masked=True), rtol=1e-5, atol=1e-5)
    if not k:
        assert found.candidates is None
        return
    expected = local.forward_top(batch, Top(k=k, below=29))
    assert found.candidates is not None
    assert torch.equal(found.candidates, expected.candidates)
    torch.testing.assert_close(found.candidate_logp, expected.candidate_logp, rtol=1e-5, atol=1e-5)


def test_only_the_rows_of_this_teacher_are_asked_for(server, batch):
    server.bodies.clear()
    found = ServedTeacher(server.url).score(batch, [1])
    assert [body["prompt"] for body in server.bodies] == [batch.tokens[1, :12].tolist()]
    assert server.bodies[0]["model"] == "teacher"
    assert not found.logp[[0, 2, 3]].any()


@pytest.mark.parametrize("fault", ["status:503", "html", "short", "foreign"])
def test_a_failed_request_is_repeated_and_then_an_error(server, batch, fault):
    teacher = ServedTeacher(server.url)
    good = teacher.score(batch, [0])
    server.faults = [fault] * 2
    assert torch.equal(teacher.score(batch, [0]).logp, good.logp)
    server.faults = [fault] * 3
    with pytest.raises(EngineError, match="could not score"):
        teacher.score(batch, [0])


def test_a_server_that_lists_too_few_says_how_to_start_it(server, batch):
    before = len(server.bodies)
    with pytest.raises(EngineError, match="max allowed: 20") as caught:
        ServedTeacher(server.url, k=21).score(batch, [0])
    assert "--max-logprobs 21" in (caught.value.fix or "")
    assert len(server.bodies) == before + 1  # a refusal is not repeated


def test_wrong_models_and_dead_servers_are_named(server):
    with pytest.raises(EngineError, match="serves teacher, not 'other'"):
        ServedTeacher(server.url, model="other")
    with pytest.raises(EngineError, match="does not answer"):
        ServedTeacher("http://127.0.0.1:9")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not VLLM_PYTHON.is_file(), reason="no vLLM here: bash scripts/setup_vllm.sh")
def test_real_vllm_says_what_the_model_says_here(tmp_path, batch, monkeypatch):
    monkeypatch.undo()
    model = from_config(CONFIG | {"hidden_size": 64, "head_dim": 32, "eos_token_id": 1}, seed=3)
    save_pretrained(model, tmp_path)
    character_tokenizer("0123456789+-*/=abcdefghijkl").save_pretrained(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", tmp_path, "--port", str(port),
               "--dtype", "float32", "--enforce-eager", "--max-logprobs", "5", "--max-model-len", "64"]  # fmt: skip
    with (tmp_path / "vllm.log").open("w") as log:
        server = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=log, env=dict(os.environ), start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while not is_healthy(url, 2.0):
            assert server.poll() is None, (tmp_path / "vllm.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(1)
        found = ServedTeacher(url, k=5).score(batch, [0, 1, 2, 3])
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        server.wait(60)
    expected = FrozenModel(model).forward_top(batch, Top(k=5, below=29))
    torch.testing.assert_close(found.logp, expected.logp, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.candidate_logp, expected.candidate_logp, rtol=1e-3, atol=1e-3)
