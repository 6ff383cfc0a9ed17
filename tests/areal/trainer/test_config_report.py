"""Checks before a run starts, and the dry-run report: sizes, memory, notes."""

from __future__ import annotations

import json
import sys

import pytest

from areal.api import ConfigError
from areal.trainer.configuration import validation
from areal.trainer.configuration.memory import MemoryItem, estimate, model_shape
from areal.trainer.configuration.mixture import count_rows
from areal.trainer.configuration.report import build_report, derive, format_bytes, render_report
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import validate_run

TINY = {
    "model_type": "qwen3", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    return folder


@pytest.fixture
def good(tokenizer):
    return [
        f"model.init={json.dumps(TINY)}", f"model.tokenizer_path={tokenizer}", "train_dataset.name=gsm8k_rl",
        "reward=gsm8k", "gconfig.max_new_tokens=32", "engine.max_seq_len=96",
    ]  # fmt: skip


def refusal(overrides):
    def load_and_validate():
        resolved = load_config(None, overrides)
        validate_run(resolved.config, resolved.provenance)

    with pytest.raises(ConfigError) as caught:
        load_and_validate()
    return str(caught.value)


def test_a_complete_configuration_passes(good):
    assert validate_run(load_config(None, good).config) is None


def test_everything_required_is_named_at_once():
    message = refusal([])
    for part in ("model.path: required", "train_dataset.name: required", "reward: required"):
        assert part in message


@pytest.mark.fault(
    row=33,
    injected="contradicting or impossible values",
    seen="refused with path, value and fix before anything is loaded",
)
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("reward=gsm8", "reward (command line): unknown reward 'gsm8': did you mean 'gsm8k'?"),
        ("train_dataset.name=gsm8k_sft", "has rows for another kind of training than 'rl'; use 'gsm8k_rl'"),
        ("eval_sets.test.dataset.name=gsm8krl", "eval_sets.test.dataset.name (command line): unknown dataset"),
        ("workflow=rlrv", "did you mean 'rlvr'?"),
        ("reward=no_such_package_anywhere.rewards:mine", "there is no package 'no_such_package_anywhere'"),
        ("reward=not a path", "unknown reward"),
        ("engine.max_seq_len=32", "32 leaves no room for a prompt in engine.max_seq_len 32"),
        ("train_dataset.max_length=80", "is less than train_dataset.max_length 80 + gconfig.max_new_tokens 32 = 112"),
        ("eval_sets.test.gconfig.max_new_tokens=500", "eval_sets.test.gconfig.max_new_tokens"),
        ("eval_sets.test.reward=gsm8", "eval_sets.test.reward (command line): unknown reward"),
        ("eval_sets.test.sampels=8", "did you mean eval_sets.test.samples"),
        ("eval_sets.test.samples=0", "expected >= 1"),
        ("workflow=outside_sessions", "eval_sets.test.workflow: required: an evaluation would wait"),
        ("early_stop.metric=eval/tset/avg@1", "did you mean 'eval/test/avg@1'"),
        ("objective.preset=grp", "did you mean 'grpo'"),
        ("objective.surrogate.clip_hi=1", "did you mean 'clip_high'"),
        ("objective.surrogate.clip_high=-1", "expected > 0"),
        ("objective.preset=ppo", "critic: required"),
        ("critic.lr=1e-4", "uses no values; remove the section"),
        ("rollout.group_size=1", "rollout.group_size (command line): 1 leaves nothing to compare: advantage 'grpo' of"),
        ("model.path=/no/such/folder", "no such folder '/no/such/folder'"),
        ("model.init.model_type=gpt_neo", "model_type is 'gpt_neo'; supported are"),
        ("model.tokenizer_path=''", "required with model.init"),
        ("total_train_steps=0", "expected at least 1, got 0"),
        ("train_dataset.max_length=0", "expected null or at least 1, got 0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(good, override, expected):
    assert expected in refusal([*good, "eval_sets.test.dataset.name=gsm8k_rl", override])


def test_a_group_of_one_is_for_advantages_without_groups(good):
    alone = [*good, "rollout.group_size=1"]
    validate_run(load_config(None, [*alone, "objective.advantage=reinforce_pp"]).config)
    for preset in ("rloo", "dapo", "drgrpo"):
        assert "nothing is learned" in refusal([*alone, f"objective.preset={preset}"])


def test_servers_with_rounded_weights_need_importance_weights_and_vllm(good):
    rounded = [*good, "rollout.engine=vllm", f"vllm.python={sys.executable}", "servers.quantization=fp8"]
    validate_run(load_config(None, [*rounded, "objective.correction=tis"]).config)
    validate_run(load_config(None, [*rounded, "objective.correction=icepop"]).config)
    validate_run(load_config(None, [*good, "servers.quantization=fp8"]).config)  # of servers that there are none of
    for correction in ("none", "kpop"):
        found = refusal([*rounded, f"objective.correction={correction}"])
        assert f"objective.correction (command line): '{correction}', and with servers.quantization fp8" in found
        assert "use tis" in found
    sglang = [*rounded, "rollout.engine=sglang", f"sglang.python={sys.executable}", "objective.correction=tis"]
    assert "sglang cannot quantize weights that arrive later" in refusal(sglang)


def test_adapters_without_their_package_are_refused(good, monkeypatch):
    real = validation.importlib.util.find_spec
    monkeypatch.setattr(validation.importlib.util, "find_spec", lambda name: None if name == "peft" else real(name))
    assert "actor.lora (command line): needs the package peft" in refusal([*good, "actor.lora.rank=4"])


def test_an_importable_path_is_accepted_without_importing_it(good, tmp_path, monkeypatch):
    (tmp_path / "user_rewards_for_test.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    validate_run(load_config(None, [*good, "reward=user_rewards_for_test:score"]).config)
    assert "user_rewards_for_test" not in sys.modules


def test_a_checkpoint_folder_without_config_is_refused(good, tmp_path):
    assert "expected a Hugging Face checkpoint folder" in refusal([*good, f"model.path={tmp_path}"])


def test_derived_sizes_count_in_prompts(good, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n" * 103 + "\n")
    sizes = derive(
        load_config(
            None,
            [*good, "rollout.batch_size=10", "rollout.group_size=4", "rollout.max_head_offpolicyness=2",
             "objective.num_minibatches=3", "total_train_epochs=2", f"train_dataset.path={rows}"],
        ).config
    )  # fmt: skip
    assert sizes == {
        "prompts_per_step": 10, "samples_per_prompt": 4, "samples_per_step": 40, "minibatches_per_step": 3,
        "prompts_per_minibatch": 4, "max_live_prompts": 30, "max_live_samples": 120,
        "max_generated_tokens_per_step": 1280, "processes": 1, "optimizer_steps_per_step": 3, "train_rows": 103,
        "steps_per_epoch": 10, "optimizer_steps_per_epoch": 30, "total_steps": 20, "total_optimizer_steps": 60,
    }  # fmt: skip


def test_a_limit_on_concurrency_lowers_what_is_live_but_never_raises_it(good):
    def live(limit):
        return derive(load_config(None, [*good, f"rollout.max_concurrent_prompts={limit}"]).config)["max_live_prompts"]

    assert (live(5), live(100000)) == (5, 128)


def test_rows_are_counted_in_the_split_of_a_folder_and_unknown_otherwise(good, tmp_path):
    (tmp_path / "train.jsonl").write_text("{}\n{}")
    dataset = load_config(None, [*good, f"train_dataset.path={tmp_path}"]).config.train_dataset
    assert count_rows(dataset) == 2
    assert count_rows(load_config(None, good).config.train_dataset) is None


@pytest.mark.parametrize(
    "extra",
    [
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 16},
        {"model_type": "qwen3", "tie_word_embeddings": True},
        {"model_type": "qwen3_moe", "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 24, "mlp_only_layers": [1], "decoder_sparse_step": 1},
        {"model_type": "qwen3_moe", "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 24, "decoder_sparse_step": 2},
    ],
    ids=lambda extra: extra["model_type"],
)  # fmt: skip
def test_the_parameter_formula_agrees_with_the_models_of_transformers(extra):
    torch = pytest.importorskip("torch", reason="needs the train extra")
    transformers = pytest.importorskip("transformers", reason="needs the train extra")
    config = {
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2,
    } | extra  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert model_shape(config).num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_configuration_without_a_formula_is_said_to_be_unknown_instead_of_guessed(good):
    assert "no parameter formula" in model_shape({"model_type": "mamba"})
    assert "hidden_size" in model_shape({**TINY, "hidden_size": None})
    report = build_report(load_config(None, [*good, "model.init.vocab_size=null"]))
    assert report["memory"]["total_bytes"] is None
    assert "not estimated, the model configuration has no vocab_size" in render_report(report)


def memory(overrides) -> dict[str, MemoryItem]:
    config = load_config(None, overrides).config
    return {item.name: item for item in estimate(config, model_shape(TINY))}


def test_memory_follows_dtypes_and_what_the_run_keeps(good):
    count = model_shape(TINY).num_parameters
    plain = memory(good)
    assert plain["actor weights"].num_bytes == plain["actor gradients"].num_bytes == 4 * count
    assert plain["actor optimizer"].num_bytes == 8 * count
    # 128 sequences x 96 tokens x (keys and values) x 2 layers x 2 heads x 8 x 4 bytes
    assert plain["engine KV cache"].num_bytes == 128 * 96 * 2 * 2 * 16 * 4
    assert plain["logits"].num_bytes == 2 * 1024 * 96 * 4
    assert "reference weights" not in plain

    half = memory([*good, "actor.dtype=bfloat16", "objective.kl.coef=0.1"])
    assert half["actor weights"].num_bytes == half["engine weights"].num_bytes == 2 * count
    assert half["actor optimizer"].num_bytes == 12 * count
    assert half["reference weights"].num_bytes == 2 * count
    assert memory([*good, "critic={}"])["critic optimizer"].num_bytes == 8 * count
    recomputed = memory([*good, "actor.gradient_checkpointing=true"])["activations"].num_bytes
    assert recomputed < plain["activations"].num_bytes
    sft = memory(["kind=sft"])
    assert not any(name.startswith("engine") for name in sft)


def test_the_activation_estimate_is_near_what_autograd_really_saves():
    torch = pytest.importorskip("torch", reason="needs the train extra")
    transformers = pytest.importorskip("transformers", reason="needs the train extra")
    shape_config = {**TINY, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "head_dim": 16}
    config = transformers.AutoConfig.for_model(**shape_config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").model
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = 96
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False).last_hidden_state
    assert output.requires_grad
    settings = load_config(None, [f"actor.max_tokens_per_micro_batch={tokens}", "kind=sft"]).config
    items = {item.name: item.num_bytes for item in estimate(settings, model_shape(shape_config))}
    assert 0.4 < items["activations"] / sum(saved.values()) < 1.6


def test_the_dry_run_text_shows_values_origins_sizes_memory_and_notes(good):
    text = render_report(build_report(load_config(None, good)))
    assert "* reward" in text
    assert "command line" in text
    assert "samples per step" in text
    assert "Memory estimate for" in text
    assert "the run will report no evaluation" in text
    assert "up to 1024 samples are live but engine.max_batch_size is 128" in text


def test_the_report_is_plain_json(good):
    report = build_report(load_config(None, good))
    assert json.loads(json.dumps(report)) == report
    assert report["memory"]["total_bytes"] == sum(item["bytes"] for item in report["memory"]["items"])


def test_bytes_are_shown_in_binary_units():
    assert [format_bytes(n) for n in (12, 2048, 5 * 1024**3)] == ["12 B", "2.0 KiB", "5.0 GiB"]


@pytest.mark.parametrize("program", ["vllm", "sglang"])
def test_servers_are_asked_for_before_anything_starts(good, program):
    message = refusal([*good, f"rollout.engine={program}", f"{program}.python=no-such-folder/bin/python"])
    assert f"{program}.python" in message
    assert f"bash scripts/setup_{program}.sh" in message


def test_with_servers_their_lengths_count_and_their_memory_does_not(good):
    vllm = [*good, "rollout.engine=vllm", f"vllm.python={sys.executable}"]
    assert "servers.max_seq_len 8" in refusal([*vllm, "servers.max_seq_len=8"])
    names = [item["name"] for item in build_report(load_config(None, vllm))["memory"]["items"]]
    assert "weights on their way" in names
    assert "engine KV cache" not in names


def test_of_adapters_that_travel_alone_the_base_is_held_once(good):
    settings = [*good, "rollout.engine=vllm", f"vllm.python={sys.executable}", "servers.dtype=bfloat16"]

    def held(*more):
        memory = build_report(load_config(None, [*settings, *more]))["memory"]
        return memory["parameters"], {item["name"]: item["bytes"] for item in memory["items"]}

    count, whole = held()
    assert whole["weights on their way"] == 2 * 2 * count
    _, alone = held("actor.lora.rank=2")
    assert alone["base for servers"] == 4 * count
    assert alone["weights on their way"] < whole["weights on their way"]
    _, merged = held("actor.lora.rank=2", "weights.adapters=merged")
    assert "base for servers" not in merged
    _, kept = held("weights.deltas=true", "servers.num_servers=3", "vllm.tensor_parallel_size=2")
    assert kept["versions kept by servers"] == 3 * 2 * 2 * count
    assert "versions kept by servers" not in alone | merged
    turns = ("servers.sleep_level=1", "rollout.max_head_offpolicyness=0")
    assert "learner asleep" not in held(*turns)[1]
    _, asleep = held(*turns, "servers.sleep_learner=true")
    assert asleep["learner asleep"] == asleep["actor weights"] + asleep["actor optimizer"]
    assert merged["weights on their way"] == whole["weights on their way"]
