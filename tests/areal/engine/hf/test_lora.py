"""Adapters: nothing changes before the first update, only they are trained, merged they are the same function."""

import asyncio
import copy
import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal.api import (
    ConfigError,
    EngineError,
    GenerationConfig,
    LossOutput,
    ModelRequest,
    PaddedBatch,
    WeightUpdateMeta,
)
from areal.engine.config import EmbeddedEngineConfig, LoraConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config, from_pretrained
from areal.models.value_head import ValueModel

VOCAB = 31
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
MODELS = {
    "native": lambda seed=0: from_config(QWEN3, seed=seed),
    "transformers": lambda seed=0: loading.from_config(QWEN3, seed=seed),
    "transformers-gpt2": lambda seed=0: loading.from_config(GPT2, seed=seed),
}


def make_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(5, 11, generator=generator) < 0.7).float()
    mask[:, 0] = 0
    zeros = torch.zeros(5, 11)
    return PaddedBatch(
        tokens=torch.randint(0, VOCAB, (5, 11), generator=generator),
        lengths=torch.tensor([11, 7, 9, 11, 4]),
        loss_mask=mask * (torch.arange(11) < torch.tensor([11, 7, 9, 11, 4])[:, None]),
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.randn(5, generator=generator),
        groups=torch.arange(5),
        truncated=torch.zeros(5, dtype=torch.bool),
    )


def loss_of(batch):
    total = batch.loss_mask.sum()

    def loss_fn(logp, _, part):
        return LossOutput(loss=-(logp * part.rewards[:, None] * part.loss_mask).sum() / total)

    return loss_fn


def engine_of(model, *, lora=None, **changes):
    lora = lora or LoraConfig(rank=4, alpha=8)
    return TrainingEngine(model, config=TrainEngineConfig(**{"lr": 1e-2, "device": "cpu", "lora": lora, **changes}))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_only_adapters_are_trained_and_they_change_nothing_at_first(name):
    batch = make_batch()
    plain = TrainingEngine(MODELS[name](), config=TrainEngineConfig(device="cpu"))
    engine = engine_of(MODELS[name]())
    torch.testing.assert_close(engine.forward_logp(batch), plain.forward_logp(batch), rtol=0, atol=0)
    before = {key: value.clone() for key, value in engine.model.state_dict().items()}
    engine.train_batch(batch, loss_of(batch))
    engine.train_batch(batch, loss_of(batch))
    changed = {key for key, value in engine.model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == set(engine.weights())
    assert all(".lora_" in key for key in changed)
    assert not torch.equal(engine.forward_logp(batch), plain.forward_logp(batch))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_merged_and_alone_they_are_the_same_function(tmp_path, name):
    batch = make_batch()
    base = tmp_path / "base"
    MODELS[name](3).save_pretrained(base)
    engine = engine_of(MODELS[name](3), lora=LoraConfig(rank=3, alpha=7, rank_stabilized=True))
    for _ in range(3):
        engine.train_batch(batch, loss_of(batch))
    logp = engine.forward_logp(batch)
    engine.save_pretrained(tmp_path / "merged")
    engine.save_adapter(tmp_path / "adapter", base=str(base))
    torch.testing.assert_close(engine.forward_logp(batch), logp, rtol=0, atol=0, msg="saving changes nothing")

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    on_top = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    ids = batch.tokens[:1]
    for theirs in (merged, on_top):
        found = theirs(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(found, logp[0, 1:], atol=1e-5, rtol=1e-5)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base
    )
    sizes = [sum(tensor.numel() for tensor in load_file(tmp_path / folder).values())
             for folder in ("adapter/adapter_model.safetensors", "merged/model.safetensors")]  # fmt: skip
    assert sizes[0] < sizes[1]
    if name == "native":
        ours = TrainingEngine(from_pretrained(tmp_path / "merged"), config=TrainEngineConfig(device="cpu"))
        torch.testing.assert_close(ours.forward_logp(batch), logp, atol=1e-5, rtol=1e-5)


def test_a_layer_of_full_rank_learns_what_its_matrix_would():
    # With rank as large as the matrix and B = 0, the first update of A is nothing and that of B is the gradient by A.
    batch = make_batch()
    engine = engine_of(MODELS["native"](), lora=LoraConfig(rank=16, alpha=16, targets=["q_proj"]), optimizer="sgd",
                       momentum=0.0, max_grad_norm=0.0, lr=0.1)  # fmt: skip
    plain = TrainingEngine(MODELS["native"](), config=TrainEngineConfig(device="cpu", optimizer="sgd", momentum=0.0,
                                                                         max_grad_norm=0.0, lr=0.1))  # fmt: skip
    before = {key: value.clone() for key, value in plain.weights().items()}
    for each in (engine, plain):
        each.train_batch(batch, loss_of(batch))
    for layer in range(2):
        name = f"layers.{layer}.self_attn.q_proj"
        gradient = (before[f"{name}.weight"] - plain.weights()[f"{name}.weight"]) / 0.1
        first, second = (engine.weights()[f"{name}.lora_{side}.default.weight"] for side in "AB")
        torch.testing.assert_close(second, -0.1 * gradient @ first.T, atol=1e-6, rtol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_hold_adapters_only_and_come_back_bit_by_bit(dtype):
    batch = make_batch()
    engine = engine_of(MODELS["native"](), dtype=dtype)
    engine.train_batch(batch, loss_of(batch))
    state = copy.deepcopy(engine.state_dict())
    assert set(state["parameters"]) == set(engine.weights())
    assert {parameter.dtype for parameter in engine.model.parameters()} == {getattr(torch, dtype)}
    results = []
    for each in (engine, engine_of(MODELS["native"](), dtype=dtype)):
        each.load_state_dict(state)
        stats = [each.train_batch(batch, loss_of(batch)) for _ in range(2)]
        results.append((stats, each.state_dict()["parameters"], each.forward_logp(batch)))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1:], results[1][1:], rtol=0, atol=0)
    with pytest.raises(EngineError, match="another base model"):
        engine_of(MODELS["native"](1), dtype=dtype).load_state_dict(state)
    with pytest.raises(EngineError, match="other adapters"):
        TrainingEngine(MODELS["native"](), config=TrainEngineConfig(dtype=dtype)).load_state_dict(state)


def test_the_embedded_engine_follows_updates_of_adapters_alone():
    batch = make_batch()
    actor = engine_of(MODELS["native"](), lr=0.1)
    engine = EmbeddedEngine(actor.model, config=EmbeddedEngineConfig(max_seq_len=32), eos_token_id=None)

    def sample():
        request = ModelRequest(
            input_ids=batch.tokens[0, :4].tolist(), gconfig=GenerationConfig(max_new_tokens=6, greedy=True)
        )
        return asyncio.run(engine.agenerate(request))

    try:
        before = sample()
        for _ in range(4):
            actor.train_batch(batch, loss_of(batch))
        engine.update_weights(WeightUpdateMeta(kind="memory", version=1, state_dict=actor.weights()))
        after = sample()
        partial = dict(list(actor.weights().items())[1:])
        with pytest.raises(EngineError, match="missing"):
            engine.update_weights(WeightUpdateMeta(kind="memory", version=2, state_dict=partial))
    finally:
        engine.close()
    assert after.output_logprobs != before.output_logprobs
    tokens = [*batch.tokens[0, :4].tolist(), *after.output_tokens]
    bounds = torch.tensor([0, len(tokens)], dtype=torch.int32)
    with torch.no_grad():
        logits = actor.model(torch.tensor(tokens), torch.arange(len(tokens)), bounds, len(tokens))
    expected = logits.argmax(-1)[3:-1].tolist()
    assert after.output_tokens == expected


def test_a_value_head_is_trained_together_with_adapters_under_it(tmp_path):
    model = ValueModel(MODELS["native"](), bias=False)
    engine = TrainingEngine(
        model, config=TrainEngineConfig(device="cpu", lora=LoraConfig(rank=2, alpha=4)), is_critic=True
    )
    names = set(engine.weights())
    assert "head.weight" in names
    assert all(name == "head.weight" or ".lora_" in name for name in names)
    with pytest.raises(EngineError, match="nothing without its head"):
        engine.save_adapter(tmp_path / "adapter", base="")
    assert not list(tmp_path.iterdir())


def test_unusable_adapters_are_refused():
    with pytest.raises(ConfigError, match=r"name no linear layer; there are down_proj, gate_proj, .*q_proj"):
        engine_of(MODELS["native"](), lora=LoraConfig(targets=["query"]))
    with pytest.raises(ConfigError, match=r"rank is 0"):
        LoraConfig(rank=0)
    with pytest.raises(EngineError, match="no adapter to save"):
        TrainingEngine(MODELS["native"](), config=TrainEngineConfig(device="cpu")).save_adapter(None, base="")
