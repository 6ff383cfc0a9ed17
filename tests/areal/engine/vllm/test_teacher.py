"""A teacher on a server says what the same model says here; what it cannot say is an error, never a number."""

from __future__ import annotations

import asyncio

import pytest
import torch

from areal.api import EngineError, PaddedBatch
from areal.engine.train.candidates import Top
from areal.engine.train.runner import FrozenModel
from areal.engine.vllm.teacher import ServedTeacher
from areal.models import from_config
from tests.support.teacher_double import TeacherServer

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
