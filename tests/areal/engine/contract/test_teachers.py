"""A teacher on a server says what the same model says here, whichever program serves it; what it cannot say is an
error, never a number."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch

from areal.api import EngineError, PaddedBatch
from areal.dataset.encoding import character_tokenizer
from areal.engine.server.client import is_healthy
from areal.engine.server.teacher import ServedTeacher
from areal.engine.sglang.teacher import SGLangScores
from areal.engine.train.candidates import Top
from areal.engine.train.runner import FrozenModel
from areal.engine.vllm.teacher import VLLMScores
from areal.infra.supervisor.process import free_port
from areal.models import from_config, save_pretrained
from tests.support.teacher_double import TeacherServer

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = [VLLMScores(), SGLangScores()]
ARGUMENTS = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--model", "MODEL", "--max-logprobs", "5", "--enforce-eager",
             "--max-model-len", "64", "--no-enable-prefix-caching"],
    "sglang": ["-m", "sglang.launch_server", "--model-path", "MODEL", "--device", "cpu", "--attention-backend",
               "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--max-total-tokens",
               "2048", "--context-length", "64", "--mem-fraction-static", "0.3",
               "--skip-tokenizer-init"],
}  # fmt: skip
VARIABLES = {
    "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "OMP_WAIT_POLICY": "PASSIVE", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}  # fmt: skip
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


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def server(request, model):
    """It on a server of each kind."""
    with TeacherServer(model, program=request.param) as running:
        yield running


def teacher_at(url, **options):
    return ServedTeacher(url, programs=PROGRAMS, **options)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Repeat at once."""
    waited = asyncio.sleep
    monkeypatch.setattr("areal.engine.server.teacher.asyncio.sleep", lambda _: waited(0))


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
    found = teacher_at(server.url, k=k).score(batch, [0, 1, 2, 3])
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
    found = teacher_at(server.url).score(batch, [1])
    (body,) = server.bodies
    assert body.get("prompt", body.get("input_ids")) == batch.tokens[1, :12].tolist()
    assert body.get("model") == ("teacher" if server.program == "vllm" else None)
    assert not found.logp[[0, 2, 3]].any()


@pytest.mark.parametrize("fault", ["status:503", "html", "short", "foreign"])
def test_a_failed_request_is_repeated_and_then_an_error(server, batch, fault):
    teacher = teacher_at(server.url)
    good = teacher.score(batch, [0])
    server.faults = [fault] * 2
    assert torch.equal(teacher.score(batch, [0]).logp, good.logp)
    server.faults = [fault] * 3
    with pytest.raises(EngineError, match="could not score"):
        teacher.score(batch, [0])


def test_the_last_token_of_the_vocabulary_is_scored_too(server, model, batch):
    batch.tokens[:, 4] = 28
    found = teacher_at(server.url, k=3).score(batch, [0, 1])
    expected = FrozenModel.copy_of(model).forward_logp(batch, only_masked=True)
    torch.testing.assert_close(found.logp[:2], expected[:2], rtol=1e-5, atol=1e-5)


def test_a_vllm_server_that_lists_too_few_says_how_to_start_it(model, batch):
    with TeacherServer(model) as server:
        with pytest.raises(EngineError, match="max allowed: 20") as caught:
            teacher_at(server.url, k=21).score(batch, [0])
        assert "--max-logprobs 21" in (caught.value.fix or "")
        assert len(server.bodies) == 1  # a refusal is not repeated


def test_wrong_models_and_dead_servers_are_named(server):
    with pytest.raises(EngineError, match="serves teacher, not 'other'"):
        teacher_at(server.url, model="other")
    with pytest.raises(EngineError, match="does not answer"):
        teacher_at("http://127.0.0.1:9")


@contextlib.contextmanager
def real_server(program, folder):
    """Serve the model in `folder` with a real server; yields its address."""
    python = ROOT / f".venv-{program}/bin/python"
    if not python.is_file():
        pytest.skip(f"no {program} here: bash scripts/setup_{program}.sh")
    port = free_port()
    command = [str(python), *(str(folder) if part == "MODEL" else part for part in ARGUMENTS[program]),
               "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    log = folder / "server.log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=os.environ | VARIABLES, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 400
        while not is_healthy(f"http://127.0.0.1:{port}", 2.0):
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)
            server.wait(60)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["vllm", "sglang"])
def test_a_real_server_says_what_the_model_says_here(tmp_path, batch, monkeypatch, program):
    monkeypatch.undo()
    model = from_config(CONFIG | {"hidden_size": 64, "head_dim": 32, "eos_token_id": 1}, seed=3)
    save_pretrained(model, tmp_path)
    character_tokenizer("0123456789+-*/=abcdefghijkl").save_pretrained(tmp_path)
    batch.tokens[0, 5] = 28
    local = FrozenModel(model)
    with real_server(program, tmp_path) as url:
        found = teacher_at(url, k=5).score(batch, [0, 1, 2, 3])
        alone = teacher_at(url).score(batch, [0, 1, 2, 3])
    expected = local.forward_top(batch, Top(k=5, below=29))
    torch.testing.assert_close(found.logp, expected.logp, rtol=0, atol=1e-3)
    torch.testing.assert_close(alone.logp, expected.logp, rtol=0, atol=1e-3)
    assert torch.equal(found.candidates, expected.candidates)
    torch.testing.assert_close(found.candidate_logp, expected.candidate_logp, rtol=0, atol=1e-3)
