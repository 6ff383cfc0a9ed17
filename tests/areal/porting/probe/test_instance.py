"""Tiny instances: the same weights in every process, nothing left at a value that hides a feature, real files."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from areal.porting.probe.instance import build, export, logits, make_tokens
from areal.porting.probe.subject import resolve
from areal.porting.records import SubjectError

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
DEEPSEEK = LLAMA | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 4,
    "topk_group": 2,
}

DIGEST = """
import hashlib
from areal.porting.probe.instance import build
from areal.porting.probe.subject import resolve
model = build(resolve("llama"), {config!r}).model
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_another_process_makes_the_same_weights():
    code = DIGEST.format(config=LLAMA)
    here = {}
    exec(code, here)
    run = [sys.executable, "-c", f"{code}\nprint(digest)"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == here["digest"]


def test_seeds_make_different_models():
    first, second = (build(resolve("llama"), LLAMA, seed=seed) for seed in (0, 1))
    tokens = make_tokens(first, batch=1, length=8, seed=0)
    assert (logits(first, tokens) - logits(second, tokens)).abs().max() > 0.1


def test_norms_biases_and_sinks_are_random_and_tables_are_not():
    config = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "head_dim": 8}
    model = build(resolve("gpt_oss"), config).model
    for name, parameter in model.named_parameters():
        assert parameter.std() > 0.01, name
    fresh = resolve("gpt_oss").model_class._from_config(model.config)
    tables = dict(fresh.named_buffers())
    assert tables
    for name, table in model.named_buffers():
        assert torch.equal(table, tables[name])


def test_selection_biases_that_are_buffers_are_random():
    model = build(resolve("deepseek_v3"), DEEPSEEK).model
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    assert biases
    assert all(bias.std() > 0.1 for bias in biases)


def test_single_numbers_that_checkpoints_hold_are_random():
    model = build(resolve("apertus"), LLAMA | {"hidden_act": "xielu"}).model
    numbers = [float(value) for name, value in model.state_dict().items() if value.numel() == 1]
    assert len(set(numbers)) == len(numbers) == 4 * LLAMA["num_hidden_layers"]


def test_one_plus_weight_norms_stay_around_their_initial_value():
    gemma = build(resolve("gemma"), LLAMA | {"head_dim": 8}).model
    llama = build(resolve("llama"), LLAMA).model
    assert gemma.model.norm.weight.mean().abs() < 0.3
    assert (llama.model.norm.weight.mean() - 1).abs() < 0.3


def test_tied_weights_stay_tied():
    model = build(resolve("llama"), LLAMA | {"tie_word_embeddings": True}).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3"])
def test_the_export_loads_in_transformers_with_equal_logits(tmp_path, model_type):
    instance = build(resolve(model_type), DEEPSEEK if model_type == "deepseek_v3" else LLAMA)
    instance.model.save_pretrained(tmp_path)
    tokens = make_tokens(instance, batch=2, length=12, seed=0)
    with torch.no_grad():
        reloaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()(tokens).logits
    torch.testing.assert_close(reloaded, logits(instance, tokens), atol=1e-5, rtol=1e-5)
    written, files = export(instance), load_file(tmp_path / "model.safetensors")
    assert written.keys() == files.keys()
    assert all(torch.equal(tensor, files[name]) for name, tensor in written.items())
    experts = [name for name in written if ".experts." in name]
    assert bool(experts) == (model_type == "deepseek_v3")
    assert all(name.count(".experts.") == 1 and name.endswith("_proj.weight") for name in experts)


def test_what_is_saved_elsewhere_meanwhile_is_written(tmp_path):
    instance, save = build(resolve("llama"), LLAMA), PreTrainedModel.save_pretrained

    def save_both(folder):
        save(instance.model, tmp_path)
        save(instance.model, folder)

    instance.model.save_pretrained = save_both
    assert export(instance).keys() == load_file(tmp_path / "model.safetensors").keys()


def test_eager_and_sdpa_instances_agree():
    subject = resolve("llama")
    eager, fused = (build(subject, LLAMA, attention=attention) for attention in ("eager", "sdpa"))
    tokens = make_tokens(eager, batch=2, length=12, seed=3)
    torch.testing.assert_close(logits(eager, tokens), logits(fused, tokens), atol=1e-5, rtol=1e-5)


def test_special_tokens_are_not_drawn():
    instance = build(resolve("llama"), LLAMA | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": [2, 3]})
    tokens = make_tokens(instance, batch=8, length=200, seed=0)
    assert tokens.min() > 3
    assert tokens.max() < LLAMA["vocab_size"]


def test_a_config_that_the_class_refuses_says_why():
    with pytest.raises(SubjectError, match="LlamaForCausalLM"):
        build(resolve("llama"), LLAMA | {"num_attention_heads": 5})
