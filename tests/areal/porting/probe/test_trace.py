"""Traces: every module call with what it took and gave, and the scores of every attention."""

import pytest
import torch

from areal.porting.probe.instance import build, logits, make_tokens
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config
from areal.porting.probe.trace import record


@pytest.fixture(scope="module")
def traced():
    subject = resolve("qwen3")
    instance = build(subject, tiny_config(subject), attention="eager")
    return instance, record(instance, make_tokens(instance, batch=2, length=20, seed=0))


def test_the_trace_changes_nothing(traced):
    instance, trace = traced
    assert torch.equal(trace.logits, logits(instance, trace.tokens))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in instance.model.modules())


def test_calls_can_be_replayed(traced):
    instance, trace = traced
    for name in ("model.norm", "model.layers.1.mlp", "model.layers.0.self_attn.q_norm", "lm_head"):
        (call,) = trace.calls[name]
        with torch.no_grad():
            assert torch.equal(instance.model.get_submodule(name)(call.input), call.output)


def test_calls_are_numbered_by_when_they_begin(traced):
    _, trace = traced
    first = [trace.calls[f"model.layers.{layer}.self_attn"][0].order for layer in range(4)]
    assert first == sorted(first)
    assert trace.calls["model.layers.0"][0].order < first[0] < trace.calls["model.layers.0.mlp"][0].order


def test_all_tensor_arguments_are_kept_by_name(traced):
    _, trace = traced
    inputs = trace.calls["model.layers.0.self_attn"][0].inputs
    assert {"hidden_states", "position_embeddings.0", "position_embeddings.1"} <= set(inputs)


def test_scores_are_causal_and_belong_to_their_attention(traced):
    _, trace = traced
    assert [call.module for call in trace.softmaxes] == [f"model.layers.{layer}.self_attn" for layer in range(4)]
    scores = trace.softmaxes[0].scores
    assert scores.shape == (2, 4, 20, 20)
    future = torch.ones(20, 20, dtype=torch.bool).triu(1)
    assert (scores[..., future] < -1e30).all()
    assert scores[..., ~future].abs().max() < 1e3


def test_sinks_are_one_column_more():
    subject = resolve("gpt_oss")
    instance = build(subject, tiny_config(subject), attention="eager")
    trace = record(instance, make_tokens(instance, batch=1, length=12, seed=0))
    assert {tuple(call.scores.shape) for call in trace.softmaxes} == {(1, 4, 12, 13)}


def test_fused_attention_gives_the_same_scores_as_eager():
    subject = resolve("llama")
    config = tiny_config(subject)
    eager, fused = (build(subject, config, attention=attention) for attention in ("eager", "sdpa"))
    tokens = make_tokens(eager, batch=2, length=12, seed=0)
    expected, found = record(eager, tokens).softmaxes, record(fused, tokens).softmaxes
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one.scores.softmax(-1), other.scores.softmax(-1), atol=1e-5, rtol=1e-4)


def test_a_router_shows_all_that_it_returned():
    subject = resolve("qwen3_moe")
    instance = build(subject, tiny_config(subject), attention="eager")
    trace = record(instance, make_tokens(instance, batch=2, length=8, seed=0))
    (call,) = trace.calls["model.layers.0.mlp.gate"]
    assert [tuple(tensor.shape) for tensor in call.outputs] == [(16, 8), (16, 2), (16, 2)]


def test_code_of_a_folder_is_traced_too(novel):
    subject = resolve(str(novel("cirrus")), trust=True)
    instance = build(subject, tiny_config(subject), attention="eager")
    trace = record(instance, make_tokens(instance, batch=2, length=10, seed=0))
    assert [call.module for call in trace.softmaxes] == [f"h.{layer}.attn" for layer in range(4)]
    assert trace.softmaxes[0].scores.shape == (2, 4, 10, 11)
