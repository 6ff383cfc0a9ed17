"""Models of transformers, and adapters, over several ranks: the numbers, states and folders of one process."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from areal.engine.hf import loading
from areal.engine.hf.parallel import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("foreign")


@pytest.fixture(scope="module")
def found(folder, request, fork_server):
    """What two gloo processes saw; one start for all tests here, with the cases of those that were asked for."""
    own = [item for item in request.session.items if item.path == Path(__file__)]
    quick = not any(item.get_closest_marker("exhaustive") for item in own)
    arguments = [f"--folder={folder}", *(["--quick"] if quick else [])]
    return fork_server.run_ranks(Path(__file__).with_name("foreign_worker.py"), 2, arguments, timeout_seconds=240)[0]


def _rarely(case):
    return pytest.param(case, marks=pytest.mark.exhaustive)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["rectangles", "listed experts"])
def test_ranks_with_unequal_work_for_a_model_of_transformers_agree_with_one_process(found, case):
    result = found["unequal work"][case]
    assert result["all used"]
    assert result["loss"] < 1e-9
    assert result["parameters"] < 1e-9
    (runs, rows), (other_runs, other_rows) = result["runs and rows"]
    assert runs == other_runs, "a body that communicates is run equally often"
    if case == "rectangles":
        assert (rows, other_rows) == (1, 5)
        assert runs > 2, "rows of another length have a rectangle of their own"


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [_rarely("tied"), "tied in bfloat16", "adapters", _rarely("adapters in bfloat16")])
def test_one_process_and_many_continue_each_others_states(found, case):
    result = found["states"][case]
    low = case.endswith("bfloat16")
    assert result["loss"] < (0.02 if low else 1e-9)
    assert (result["reloaded"], result["masters"], result["continued"]) == (0.0, 0.0, 0.0)
    assert result["dtypes"] == ["torch.bfloat16" if low else "torch.float64"]
    for refusal in result.get("refused", []):
        assert "other adapters or on top of another base model" in refusal


@pytest.mark.exhaustive
def test_a_frozen_base_stays_in_its_low_precision_in_shards_without_gradients_and_moments(found):
    assert found["frozen base"] == {
        "frozen": ["torch.bfloat16"],
        "trained": ["torch.float32"],
        "whole": [],
        "gradients": [True],
        "moments": [True],
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["transformers", "adapters"])
def test_a_sharded_checkpoint_goes_on_in_another_arrangement(found, case):
    result = found["checkpoints"][case]
    assert result["parameters"] == 0.0
    assert result["loss"] < 1e-9


@pytest.mark.exhaustive
def test_a_checkpoint_of_adapters_has_no_base_and_goes_on_top_of_no_other(found):
    adapters, whole = found["checkpoints"]["adapters"], found["checkpoints"]["transformers"]
    assert adapters["bytes"] < whole["bytes"] / 2
    assert len(adapters["refused"]) == 2
    for refusal in adapters["refused"]:
        assert "other adapters or on top of another base model" in refusal


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case",
    [
        _rarely("gpt2"), _rarely("mixtral"), "gpt2 adapters", "dense adapters", _rarely("pipeline adapters"),
        _rarely("mixture adapters in bfloat16"),
    ],
)  # fmt: skip
def test_folders_from_shards_are_those_of_one_process_and_other_libraries_read_them(found, folder, case):
    one, many = folder / case / "one", folder / case / "many"
    files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert files
    assert files == sorted(path.relative_to(many) for path in many.rglob("*.safetensors"))
    for file in files:
        first, second = load_file(one / file), load_file(many / file)
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert tensor.dtype == second[name].dtype
            torch.testing.assert_close(tensor, second[name], rtol=0, atol=0, msg=f"{file}: {name}")
    for file in one.rglob("*.json"):
        assert file.read_text() == (many / file.relative_to(one)).read_text(), file.name
    if "bfloat16" in case:
        return
    read = [AutoModelForCausalLM.from_pretrained(many / "whole", dtype=torch.float64, experts_implementation="eager")]
    if (many / "adapter").is_dir():
        base = AutoModelForCausalLM.from_pretrained(folder / case / "base", dtype=torch.float64)
        read.append(PeftModel.from_pretrained(base, many / "adapter"))
    ids = torch.tensor([found["exports"][case]["tokens"]])
    expected = torch.tensor(found["exports"][case]["logp"][1:], dtype=torch.float64)
    for model in read:
        logp = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(logp, expected, rtol=0, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("tp", "'gpt2' does not say how its matrices, tokens and layers may be split"),
        ("cp", "'gpt2' does not say how its matrices, tokens and layers"),
        ("ep", "parallel.ep=2: a model of transformers does not say how its experts"),
        ("pp", "'gpt2' does not say how its matrices, tokens and layers"),
        ("sequence_parallel", "norms of a model of transformers are computed for all tokens"),
        ("compile", "blocks of a model of transformers are not compiled"),
        ("no adapter", "no adapter to save"),
        ("targets", "name no linear layer; there are down_proj, gate_proj"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(found, what, expected):
    assert expected in found["refusals"][what]


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({**SMALL, "model_type": "llama"}, 3),
        ({**SMALL, "model_type": "mixtral", "num_local_experts": 8}, 3),
        ({"model_type": "gpt2", "vocab_size": 31, "n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 64}, 4),
        ({"model_type": "opt", "vocab_size": 31, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
          "num_attention_heads": 4, "word_embed_proj_dim": 16, "max_position_embeddings": 64}, 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)  # fmt: skip
def test_blocks_are_found_by_structure(config, number):
    inner = loading.from_config(config).inner
    blocks = blocks_of(inner)
    assert len(blocks) == number
    assert len({type(block) for block in blocks}) == 1
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    assert id(inner.get_input_embeddings().weight) not in inside


def test_blocks_that_share_parameters_are_left_to_the_whole_model():
    inner = loading.from_config({**SMALL, "model_type": "llama"}).inner
    layers = inner.model.layers
    layers[1].mlp.down_proj.weight = layers[0].mlp.down_proj.weight
    assert blocks_of(inner) == [layers[2]]
    inner.model.layers = nn.ModuleList([layers[0], layers[2], layers[2]])
    assert blocks_of(inner) == [layers[0]]
