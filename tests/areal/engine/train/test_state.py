"""Saving and loading: bit-exact continuation, live weights, Hugging Face folders, refusal of foreign states."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal.api import EngineError
from areal.models import from_pretrained
from areal.utils.seeding import rng_state, set_rng_state

_PROGRAM = Path(__file__).parent / "continue_run.py"


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=1,
    injected="SIGKILL of a training process right after optimizer step 5, with the last checkpoint after step 3; "
    "float32 and bfloat16 with master weights",
    seen="parameters, moments, master weights and losses of the continued run equal those of one that was left alone",
)
def test_a_run_killed_after_an_optimizer_step_continues_bit_by_bit_in_another_process(tmp_path, fork_server):
    program = importlib.util.spec_from_file_location("continue_run", _PROGRAM)
    module = importlib.util.module_from_spec(program)
    program.loader.exec_module(module)
    done = fork_server.start(_PROGRAM, [str(tmp_path)])
    assert done.wait(240) == 0, done.stderr
    before = rng_state()
    try:
        for line, dtype in zip(done.stdout.splitlines(), module.DTYPES, strict=True):
            expected = json.loads(line)[dtype]
            found = module.run(dtype, tmp_path / "killed" / dtype, resume=True, kill=False)
            assert expected.pop("killed")
            assert (expected.pop("steps"), found.pop("steps")) == (6, 3)
            assert set(found) == {"losses", "final.json", "final.safetensors"}
            assert found == expected
    finally:
        set_rng_state(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_is_a_snapshot_that_brings_everything_back(make_engine, make_batch, policy_loss, dtype):
    engine = make_engine(dtype=dtype, lr_schedule="linear", total_steps=8)
    batches = [make_batch(seed=seed) for seed in range(4)]
    engine.train_batch(batches[0], policy_loss(batches[0]))
    engine.set_version(7)
    state = engine.state_dict()
    untouched = copy.deepcopy(state)
    results = []
    for attempt in range(2):
        if attempt:
            engine.load_state_dict(state)
            assert (engine.version, engine.num_steps) == (7, 1)
        stats = [engine.train_batch(batch, policy_loss(batch)) for batch in batches]
        engine.set_version(8)
        results.append((stats, engine.state_dict()))
    torch.testing.assert_close(state, untouched, rtol=0, atol=0)
    (first, first_state), (second, second_state) = results
    assert first == second
    torch.testing.assert_close(first_state, second_state, rtol=0, atol=0)


def test_loading_into_a_fresh_engine_works_before_any_step(make_engine):
    engine, other = make_engine(), make_engine()
    engine.load_state_dict(other.state_dict())
    assert engine.state_dict()["optimizer"]["moments"]["norm.weight"] == {}


def test_weights_are_live_and_have_the_model_s_names(make_engine, make_batch, policy_loss):
    engine, batch = make_engine(), make_batch()
    weights = engine.weights()
    before = weights["norm.weight"].clone()
    engine.train_batch(batch, policy_loss(batch))
    assert not torch.equal(weights["norm.weight"], before)
    assert set(weights) == set(engine.model.state_dict())


def test_versions_only_grow(make_engine):
    engine = make_engine()
    assert engine.version == 0
    engine.set_version(3)
    with pytest.raises(EngineError, match="version 2 is older than the current 3"):
        engine.set_version(2)


def test_states_of_another_model_dtype_or_program_are_refused_and_change_nothing(make_engine, make_batch, policy_loss):
    engine, batch = make_engine(), make_batch()
    engine.train_batch(batch, policy_loss(batch))
    state, before = engine.state_dict(), engine.state_dict()
    renamed = {**state, "parameters": {**state["parameters"]}}
    renamed["parameters"]["other"] = renamed["parameters"].pop("norm.weight")
    reshaped = {**state, "parameters": {**state["parameters"], "norm.weight": torch.zeros(3, dtype=torch.float64)}}
    moments = {**state["optimizer"]["moments"], "norm.weight": {"exp_avg": torch.zeros(3)}}
    odd_moments = {**state, "optimizer": {**state["optimizer"], "moments": moments}}
    missing = {**state, "optimizer": {**state["optimizer"], "moments": {}}}
    for wrong, message in (
        (renamed, r"parameters do not fit this model: 1 missing \['norm.weight'\], 1 unknown \['other'\]"),
        (reshaped, r"norm.weight is torch.float64 \(3,\) in the state"),
        (odd_moments, r"optimizer state exp_avg of norm.weight has shape \(3,\)"),
        (missing, "optimizer state do not fit"),
        (make_engine(dtype="float32").state_dict(), "torch.float32"),
        ({**state, "schema": 99}, "schema 99"),
    ):
        with pytest.raises(EngineError, match=message):
            engine.load_state_dict(wrong)
    torch.testing.assert_close(engine.state_dict(), before, rtol=0, atol=0)


def test_a_saved_model_loads_as_the_same_model(make_engine, make_batch, policy_loss, tmp_path):
    engine, batch = make_engine(dtype="float32"), make_batch()
    for _ in range(2):
        engine.train_batch(batch, policy_loss(batch))
        engine.save_pretrained(tmp_path / "model")
    loaded = from_pretrained(tmp_path / "model")
    torch.testing.assert_close(dict(loaded.state_dict()), dict(engine.weights()), rtol=0, atol=0)


def test_a_critic_is_saved_as_backbone_and_head(make_engine, make_batch, tmp_path):
    engine = make_engine(is_critic=True, dtype="float32")
    with torch.no_grad():
        engine.model.head.weight.fill_(0.5)
    for _ in range(2):
        engine.save_pretrained(tmp_path / "critic")
    backbone = from_pretrained(tmp_path / "critic")
    torch.testing.assert_close(dict(backbone.state_dict()), dict(engine.model.backbone.state_dict()), rtol=0, atol=0)
    head = load_file(tmp_path / "critic" / "value_head.safetensors")
    assert torch.equal(head["weight"], torch.full((1, 16), 0.5))
    assert torch.equal(head["bias"], torch.zeros(1))
