"""Random initialisation, critics, plans, and the cost of importing."""

from __future__ import annotations

import fnmatch
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from areal.api import ModelError
from areal.models import from_config, from_pretrained
from areal.models.loading import initialize
from areal.models.parallel import ParallelDims, ParallelPlan
from areal.models.registry import get_spec
from areal.models.value_head import ValueModel

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONFIGS = {
    "qwen2": {**SIZES, "model_type": "qwen2"},
    "qwen3": {**SIZES, "model_type": "qwen3"},
    "qwen3_moe": {
        **SIZES,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    },
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_weights_depend_on_the_seed_alone(config):
    torch.manual_seed(1)
    first = from_config(config, seed=7).state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = from_config(config, seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    other = from_config(config, seed=8).state_dict()
    narrow = from_config(config, seed=7, dtype=torch.bfloat16).state_dict()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
        assert torch.equal(tensor.bfloat16(), narrow[name]), name
        if tensor.dim() > 1:
            assert not torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_weights_have_the_configured_spread(config):
    for name, tensor in from_config({**config, "initializer_range": 0.3}).state_dict().items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        else:
            assert tensor.std().item() == pytest.approx(0.3, rel=0.15), name
            assert abs(tensor.mean().item()) < 0.05, name


def test_a_parameter_without_a_rule_is_an_error():
    model = torch.nn.Sequential(torch.nn.Bilinear(2, 2, 2))
    with pytest.raises(TypeError, match=r"no initialisation rule for 0\.weight of Bilinear"):
        initialize(model, std=0.02, seed=0)


def test_tied_models_have_one_vocabulary_matrix_and_it_gets_both_gradients(run, tokens):
    tied = from_config({**CONFIGS["qwen3"], "tie_word_embeddings": True, "initializer_range": 0.2})
    untied = from_config({**CONFIGS["qwen3"], "initializer_range": 0.2})
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"lm_head.weight"}
    untied.load_state_dict({**tied.state_dict(), "lm_head.weight": tied.embed_tokens.weight})
    for model in (tied, untied):
        run(model, tokens).logsumexp(-1).sum().backward()
    both = untied.embed_tokens.weight.grad + untied.lm_head.weight.grad
    torch.testing.assert_close(tied.embed_tokens.weight.grad, both, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [CONFIGS["qwen2"], CONFIGS["qwen3_moe"]], ids=["qwen2", "qwen3_moe"])
def test_a_critic_starts_at_zero_learns_and_ignores_the_vocabulary(config, run, tokens):
    critic = ValueModel(from_config({**config, "initializer_range": 0.2}))
    first, second = tokens[:15], tokens[15:]
    values = run(critic, first, second)
    assert values.shape == (40,)
    assert values.dtype == torch.float32
    assert not values.any()

    target = torch.linspace(-1, 1, 40)
    optimizer = torch.optim.AdamW([p for p in critic.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(40):
        loss = (run(critic, first, second) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    unused = {name for name, parameter in critic.named_parameters() if parameter.grad is None}
    assert unused == {"backbone.lm_head.weight"}
    torch.testing.assert_close(run(critic, second), run(critic, first, second)[15:], rtol=1e-4, atol=1e-5)


def test_a_critic_forwards_gradient_checkpointing(run, tokens):
    critic = ValueModel(from_config(CONFIGS["qwen2"]))
    torch.nn.init.ones_(critic.head.weight)
    calls = []
    critic.backbone.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    critic.set_gradient_checkpointing(True)
    run(critic, tokens).sum().backward()
    assert len(calls) == 2


def test_a_plan_that_splits_nothing_leaves_the_model_alone_and_others_are_refused():
    for config in CONFIGS.values():
        model = from_config(config)
        parallelize = get_spec(config["model_type"]).parallelize
        assert parallelize(model, None) is model
        assert parallelize(model, ParallelPlan()) is model
        with pytest.raises(ModelError, match="the plan asks for pp=10 tp=2 without meshes"):
            parallelize(model, ParallelPlan(dims=ParallelDims(tp=2, pp=10)))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_tensor_parallel_table_covers_exactly_the_matrices(model_type):
    spec = get_spec(model_type)
    table = importlib.import_module(spec.parallelize.__module__).TENSOR_PARALLEL
    names = from_config(CONFIGS[model_type]).state_dict()
    owners = {name.removesuffix(".weight").removesuffix(".bias") for name in names}
    matched = {owner for owner in owners if any(fnmatch.fnmatchcase(owner, pattern) for pattern in table)}
    replicated = {owner for owner in owners if "norm" in owner or owner.endswith("router")}
    assert matched | replicated == owners
    assert not matched & replicated


def test_importing_the_package_and_the_arguments_does_not_load_torch():
    code = (
        "import sys, areal.models, areal.models.registry, areal.models.decoder_args, areal.models.decoder_args, "
        "areal.models.config_fields; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_loading_and_saving_do_not_load_transformers(tmp_path, monkeypatch):
    sources = Path(importlib.import_module("areal.models").__file__).parent.rglob("*.py")
    assert [path for path in sources if re.search(r"^(from|import) transformers", path.read_text(), re.MULTILINE)] == []
    monkeypatch.setitem(sys.modules, "transformers", None)  # an import inside a function fails
    from_config(CONFIGS["qwen2"]).save_pretrained(tmp_path / "m")
    assert from_pretrained(tmp_path / "m").args.model_type == "qwen2"
