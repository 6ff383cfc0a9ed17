"""Checkpoints travel between us and `transformers` without loss, and a bad one is refused with its fault named."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal.api import CheckpointError, ModelError
from areal.models import from_config, from_pretrained, save_pretrained
from areal.models.registry import get_spec

VARIANTS = {
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen2-head-dim": ("qwen2", {"head_dim": 24}),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "qwen3-yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "attention_factor": 1.2,
            }
        },
    ),
    "qwen3_moe": ("qwen3_moe", {"mlp_only_layers": [1]}),
    "qwen3_moe-windows": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5, "norm_topk_prob": True}),
}


def on_disk(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def assert_byte_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def checkpoint(hf_model, tmp_path):
    """checkpoint(model_type, **overrides): a folder written by transformers."""

    def write(model_type="qwen3", **overrides):
        folder = tmp_path / "checkpoint"
        hf_model(model_type, **overrides).save_pretrained(folder)
        return folder

    return write


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_round_trip_keeps_every_byte_and_transformers_loads_it(variant, hf_model, tokens, tmp_path):
    from transformers import AutoModelForCausalLM

    model_type, overrides = variant
    reference = hf_model(model_type, **overrides)
    reference.save_pretrained(tmp_path / "theirs")
    from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")

    assert_byte_equal(on_disk(tmp_path / "ours"), on_disk(tmp_path / "theirs"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert torch.equal(again(tokens[None]).logits, reference(tokens[None]).logits)
    assert again.config.eos_token_id == 2


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_arguments_survive_their_own_config(variant, hf_config):
    model_type, overrides = variant
    args_class = get_spec(model_type).args_class
    args = args_class.from_hf_config(hf_config(model_type, **overrides).to_dict())
    assert args_class.from_hf_config(args.to_hf_config()) == args


def test_random_models_are_loaded_by_transformers_with_equal_logits(tokens, run, tmp_path, assert_same_logits):
    from transformers import AutoModelForCausalLM

    model = from_config(
        {
            "model_type": "qwen3_moe",
            "vocab_size": 128,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "initializer_range": 0.2,
        }
    )
    save_pretrained(model, tmp_path / "out")
    with torch.no_grad():
        reference = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()(tokens[None]).logits[0]
        assert_same_logits(run(model, tokens), reference)


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3_moe"])
def test_large_weights_are_sharded_with_an_index(model_type, hf_model, tokens, run, tmp_path):
    from transformers import AutoModelForCausalLM

    hf_model(model_type).save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    assert (tmp_path / "theirs/model.safetensors.index.json").is_file()
    ours = from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours", max_shard_bytes=50_000)

    files = list((tmp_path / "ours").glob("*.safetensors"))
    index = json.loads((tmp_path / "ours/model.safetensors.index.json").read_text())
    assert len(files) > 3
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in on_disk(tmp_path / "ours").values())
    assert_byte_equal(on_disk(tmp_path / "ours"), on_disk(tmp_path / "theirs"))
    with torch.no_grad():
        assert torch.equal(run(from_pretrained(tmp_path / "ours"), tokens), run(ours, tokens))
        AutoModelForCausalLM.from_pretrained(tmp_path / "ours")


def test_bfloat16_weights_keep_their_bytes(checkpoint, tmp_path):
    folder = checkpoint()
    narrow = from_pretrained(folder, dtype=torch.bfloat16)
    narrow.save_pretrained(tmp_path / "narrow")
    from_pretrained(tmp_path / "narrow", dtype=torch.bfloat16).save_pretrained(tmp_path / "again")
    assert_byte_equal(on_disk(tmp_path / "again"), on_disk(tmp_path / "narrow"))
    assert json.loads((tmp_path / "again/config.json").read_text())["dtype"] == "bfloat16"
    assert {parameter.dtype for parameter in from_pretrained(tmp_path / "narrow").parameters()} == {torch.float32}


def test_the_in_memory_layout_of_experts_is_read_as_well(hf_model, tokens, run, tmp_path):
    reference = hf_model("qwen3_moe")
    reference.save_pretrained(tmp_path)
    expected = from_pretrained(tmp_path)
    dumped = {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in dumped
    save_file(dumped, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert torch.equal(run(from_pretrained(tmp_path), tokens), run(expected, tokens))


def test_loaded_weights_do_not_alias_the_file(checkpoint, tokens, run):
    folder = checkpoint()
    model = from_pretrained(folder)
    with torch.no_grad():
        before = run(model, tokens)
        with (folder / "model.safetensors").open("r+b") as file:  # in place, where a mapping of the file would see it
            file.write(bytes((folder / "model.safetensors").stat().st_size))
        assert torch.equal(run(model, tokens), before)


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_rotary_frequencies_in_old_files_are_skipped(checkpoint):
    folder = checkpoint()
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(12)}))
    from_pretrained(folder)


def test_a_tied_head_on_disk_is_accepted_if_equal_and_refused_if_not(checkpoint):
    folder = checkpoint(tie_word_embeddings=True)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    from_pretrained(folder)
    rewrite(folder, lambda tensors: tensors["lm_head.weight"].add_(1))
    with pytest.raises(ModelError, match=r"tie_word_embeddings, but lm_head.weight in the checkpoint differs"):
        from_pretrained(folder)


def test_missing_and_unexpected_keys_are_all_named(checkpoint):
    folder = checkpoint()

    def change(tensors):
        del tensors["lm_head.weight"]
        del tensors["model.layers.1.self_attn.q_norm.weight"]
        tensors["model.layers.9.extra"] = torch.ones(1)

    rewrite(folder, change)
    with pytest.raises(ModelError) as caught:
        from_pretrained(folder)
    message = str(caught.value)
    assert "missing model.layers.1.self_attn.q_norm.weight, lm_head.weight" in message
    assert "unexpected model.layers.9.extra" in message
    assert str(folder) in message


def test_a_missing_expert_is_named(checkpoint):
    folder = checkpoint("qwen3_moe")
    rewrite(folder, lambda tensors: tensors.pop("model.layers.2.mlp.experts.5.up_proj.weight"))
    with pytest.raises(
        ModelError, match=r"missing model\.layers\.2\.mlp\.experts\.5\.up_proj\.weight; unexpected nothing"
    ):
        from_pretrained(folder)


def test_biases_that_the_config_does_not_announce_are_refused(checkpoint):
    folder = checkpoint(attention_bias=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_bias": False}))
    with pytest.raises(ModelError, match=r"unexpected .*self_attn\.q_proj\.bias.* and 8 more"):
        from_pretrained(folder)


def test_a_wrong_shape_is_named_with_both_shapes(checkpoint):
    folder = checkpoint()
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(ModelError, match=r"norm\.weight \(model\.norm\.weight\) is \[7\], expected \[64\]"):
        from_pretrained(folder)


def test_experts_of_the_wrong_number_are_refused_in_the_fused_layout_too(hf_model, tmp_path):
    reference = hf_model("qwen3_moe")
    reference.save_pretrained(tmp_path)
    dumped = {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}
    name = "model.layers.0.mlp.experts.down_proj"
    dumped[name] = dumped[name][:7].contiguous()
    save_file(dumped, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"layers\.0\.mlp\.experts\.down_proj .* is \[7, 64, 48\], expected \[8, 64, 48\]"
    ):
        from_pretrained(tmp_path)


def test_pickled_weights_are_refused_with_the_way_to_convert(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*convert"):
        from_pretrained(folder)


@pytest.mark.parametrize("keep", [4, 1000, -10])
def test_a_truncated_file_is_refused(checkpoint, keep):
    folder = checkpoint()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        from_pretrained(folder)


def test_an_index_may_only_name_files_of_its_folder(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    for name in ("../elsewhere.safetensors", "absent.safetensors"):
        index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelError, match="files that are not in its folder"):
            from_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="not a safetensors index"):
        from_pretrained(folder)


def test_folders_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no checkpoint folder at"):
        from_pretrained(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        from_pretrained(tmp_path)


def test_a_config_without_weights_is_refused(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights: expected model\.safetensors"):
        from_pretrained(folder)


@pytest.fixture
def model():
    return from_config(
        {
            "model_type": "qwen3",
            "vocab_size": 16,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
        }
    )


def test_saving_again_replaces_weights_and_keeps_the_files_beside_them(model, tmp_path):
    folder = tmp_path / "run/model"
    model.save_pretrained(folder, max_shard_bytes=300)
    (folder / "tokenizer.json").write_text("{}")
    with torch.no_grad():
        model.norm.weight.fill_(3.0)
    model.save_pretrained(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert torch.equal(from_pretrained(folder).norm.weight, model.norm.weight)
    assert [file.name for file in folder.parent.iterdir()] == ["model"]


def test_a_folder_that_is_not_a_checkpoint_is_never_overwritten(model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "results").mkdir()
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        model.save_pretrained(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_checkpoint(model, tmp_path):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    before = on_disk(folder)
    with torch.no_grad():
        model.norm.weight.fill_(3.0)
    # The kernel refuses to write beyond the limit, as it does when a disk is full.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*File too large"):
            model.save_pretrained(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_byte_equal(on_disk(folder), before)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_save_left_behind_is_removed_by_the_next_one(model, tmp_path):
    script = (
        "import os, sys; from areal.utils.atomic import atomic_directory\n"
        "with atomic_directory(__import__('pathlib').Path(sys.argv[1])) as folder:\n"
        "    (folder / 'model.safetensors').write_bytes(b'half'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".foreign.tmp-1").touch()
    model.save_pretrained(tmp_path / "model")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".foreign.tmp-1", "model"]


def test_native_names_can_be_translated_one_by_one_and_foreign_ones_are_refused(model):
    adapter = get_spec("qwen3").state_dict_adapter(model.args)
    assert list(adapter.to_hf({"norm.weight": model.norm.weight})) == ["model.norm.weight"]
    with pytest.raises(ModelError, match=r"not parameters of a model of type 'qwen3': norm\.scale"):
        adapter.to_hf({"norm.scale": model.norm.weight})
    everything = model.state_dict()
    assert_byte_equal(adapter.from_hf(adapter.to_hf(everything)), everything)
