"""`areal plan`: memory and communication of a rank for models and meshes far larger than this machine."""

import json
import re

import pytest

from areal.cli.main import main

MIXTURE = """\
kind: sft
actor: {dtype: bfloat16, gradient_checkpointing: true, max_tokens_per_micro_batch: 8192}
model:
  init: {model_type: qwen3_moe, vocab_size: 151936, hidden_size: 4096, intermediate_size: 12288, head_dim: 128,
         moe_intermediate_size: 1536, num_hidden_layers: 94, num_attention_heads: 64, num_key_value_heads: 4,
         num_experts: 128, num_experts_per_tok: 8, norm_topk_prob: true, max_position_embeddings: 40960}
"""
"""Sizes of a published mixture with 235 B parameters."""
SHALLOW = MIXTURE.replace("num_hidden_layers: 94", "num_hidden_layers: 12")
DENSE = """\
kind: sft
actor: {dtype: float32, max_tokens_per_micro_batch: 1024, logprob_chunk_size: 128}
model:
  init: {model_type: qwen3, vocab_size: 1000, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4,
         num_attention_heads: 8, num_key_value_heads: 4, head_dim: 8, max_position_embeddings: 128}
"""


@pytest.fixture
def plan(tmp_path, capsys):
    """`plan(yaml, *arguments)`: exit code and the JSON object."""

    def run(text, *arguments):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        code = main(["plan", str(path), "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def bytes_of(found, part, name):
    return next((item["bytes"] for item in found[part] if item["name"] == name), 0)


@pytest.mark.exhaustive
def test_a_mixture_of_235_billion_parameters_fits_on_64_ranks_of_80_gib(plan):
    code, found = plan(MIXTURE, "--parallel", "dp_shard=-1 tp=8 ep=8 etp=8", "--world-size", "64")
    assert code == 0, found
    assert found["parallel"]["dp_shard"] == 8
    assert 234e9 < found["parameters"] < 237e9
    # All experts are split over 64 ranks, the rest over tp and dp_shard but for small norms and routers.
    assert found["parameters"] / 64 <= found["parameters_per_rank"] < 1.02 * found["parameters"] / 64
    assert bytes_of(found, "memory", "moments") == 8 * found["parameters_per_rank"]
    assert found["memory_bytes"] == sum(item["bytes"] for item in found["memory"]) <= found["limit_bytes"]
    assert {item["name"] for item in found["communication"]} == {"fsdp", "tensor parallel", "expert parallel"}


@pytest.mark.exhaustive
def test_optimizers_hold_and_send_what_they_need(plan):
    arguments = ("--parallel", "dp_shard=8 tp=8 ep=8 etp=8")
    _, adamw = plan(SHALLOW, *arguments)
    _, muon = plan(SHALLOW, "actor.optimizer=muon", *arguments)
    _, host = plan(SHALLOW, "actor.offload_optimizer=true", *arguments)
    parameters, vectors_and_tokens = adamw["parameters_per_rank"], 2 * 151936 * 4096 / 64
    held = bytes_of(muon, "memory", "moments")
    assert held == pytest.approx(4 * (parameters + vectors_and_tokens), rel=1e-3)
    # Features are split over tp: no rank has a whole matrix.
    assert bytes_of(muon, "communication", "muon") == pytest.approx(2 * 2 * (parameters - vectors_and_tokens), rel=1e-3)
    assert bytes_of(adamw, "communication", "muon") == 0
    assert bytes_of(host, "memory", "moments") == 0
    assert adamw["memory_bytes"] - host["memory_bytes"] == 8 * parameters
    _, parameters_on_host = plan(SHALLOW, "archon.offload_parameters=true", *arguments)
    assert adamw["memory_bytes"] - parameters_on_host["memory_bytes"] == 16 * parameters
    # Where ranks have whole experts, only the other matrices are sent.
    _, whole = plan(SHALLOW, "actor.optimizer=muon", "--parallel", "dp_shard=64 ep=64")
    assert bytes_of(whole, "communication", "muon") < bytes_of(muon, "communication", "muon") / 10


@pytest.mark.exhaustive
def test_adapters_have_gradients_and_moments_and_their_base_has_none(plan):
    code, found = plan(DENSE, "actor.lora.rank=16", "actor.dtype=bfloat16", "--parallel", "dp_shard=2 tp=2")
    assert code == 0, found
    # One factor of each matrix of 4 layers is split over tp: q, k and v, o, gate and up, down.
    sizes = (64 + 32) + 2 * (64 + 16) + (32 + 64) + 2 * (64 + 64) + (64 + 64)
    trained = 4 * 16 * sizes // 2
    assert bytes_of(found, "memory", "gradients") == 4 * trained
    assert bytes_of(found, "memory", "moments") == 8 * trained
    frozen = found["parameters_per_rank"] - trained
    assert bytes_of(found, "memory", "parameters") == 2 * frozen + 4 * trained


def test_what_does_not_fit_is_refused_with_what_would_help(plan):
    code, found = plan(SHALLOW, "--parallel", "dp_shard=2 tp=2")
    assert code == 2
    message = found["error"]
    assert "this does not fit" in message
    assert "raise dp_shard, tp or ep" in message
    code, found = plan(
        SHALLOW, "actor.gradient_checkpointing=false", "actor.max_tokens_per_micro_batch=524288",
        "--parallel", "dp_shard=64 tp=8", "--memory", "141",
    )  # fmt: skip
    assert code == 2
    assert "try actor.gradient_checkpointing=true, --sequence-parallel" in found["error"]


def test_every_way_of_splitting_costs_what_its_formula_says(plan):
    _, one = plan(DENSE)
    assert one["communication_bytes"] == 0
    assert bytes_of(one, "memory", "gathered") == 0
    _, sharded = plan(DENSE, "--parallel", "dp_shard=4", "--micro-batches", "3")
    total = 4 * one["parameters"]
    outside = 4 * (2 * 1000 * 64 + 64)
    expected = 3 * (2 * (total - outside) + outside + total) * 3 // 4
    assert bytes_of(sharded, "communication", "fsdp") == pytest.approx(expected, rel=1e-3)
    _, kept = plan(DENSE, "--parallel", "dp_shard=4", "--micro-batches", "3", "--no-reshard")
    assert bytes_of(kept, "communication", "fsdp") == pytest.approx(3 * 2 * total * 3 // 4, rel=1e-3)
    assert bytes_of(kept, "memory", "gathered") > bytes_of(sharded, "memory", "gathered")
    _, tensor = plan(DENSE, "--parallel", "tp=2")
    assert bytes_of(tensor, "communication", "tensor parallel") == 4 * 2 * 2 * (1024 * 64 * 4)
    _, context = plan(DENSE, "--parallel", "cp=2")
    assert bytes_of(context, "communication", "context parallel") == 4 * 2 * (512 * (16 + 8) * 8 * 4) // 2
    assert bytes_of(context, "memory", "activations") == bytes_of(one, "memory", "activations") // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parallel", "tq=2"], "'tq=2' is not a size"),
        (["--parallel", "tp=x"], "'tp=x' is not a size"),
        (["--parallel", "dp_shard=3", "--world-size", "4"], "need 3 processes and there are 4"),
        (["--parallel", "dp_shard=-1"], "dp_shard is -1"),
        (["--parallel", "tp=16"], "8 heads; tp \\* cp has to divide them"),
        (["--micro-batches", "0"], "at least 1"),
    ],
)
def test_wrong_arguments_are_refused_naming_them(plan, arguments, message):
    code, found = plan(DENSE, *arguments)
    assert code == 2
    assert re.search(message, found["error"])


def test_a_pipeline_is_planned_for_its_larger_end(plan):
    _, one = plan(DENSE)
    code, cut = plan(DENSE, "--parallel", "pp=4", "--micro-batches", "8")
    assert code == 0
    # The last piece has a layer, the final norm and the head.
    layer = (one["parameters"] - 2 * 1000 * 64 - 64) // 4
    assert cut["parameters_per_rank"] == layer + 64 + 1000 * 64
    assert bytes_of(cut, "communication", "pipeline") == 16 * 1024 * 64 * 4
    assert bytes_of(cut, "memory", "activations") == bytes_of(one, "memory", "activations")  # a quarter, of 4 at once


@pytest.mark.exhaustive
def test_schedules_are_compared_by_what_they_wait_hold_and_send(plan):
    def cut(name, *more):
        code, found = plan(DENSE, "--parallel", "pp=2", "--micro-batches", "8", "--pp-schedule", name, *more)
        assert code == 0
        return found

    plain, woven, back = cut("1F1B"), cut("Interleaved1F1B"), cut("ZBVZeroBubble")
    assert [found["pipeline"]["idle_share"] for found in (plain, woven)] == pytest.approx([1 / 9, 1 / 17])
    assert back["pipeline"]["idle_share"] < woven["pipeline"]["idle_share"]
    # One rank sends 8 times forwards, or backwards; with two pieces, three times as often.
    assert bytes_of(plain, "communication", "pipeline") == 8 * 1024 * 64 * 4
    assert bytes_of(woven, "communication", "pipeline") == 3 * 8 * 1024 * 64 * 4
    assert bytes_of(woven, "memory", "activations") > bytes_of(plain, "memory", "activations")
    # Both ends are on one rank, which has two of four layers, the embedding and the head.
    assert back["parameters_per_rank"] > woven["parameters_per_rank"]
    blank = plan(DENSE, "--parallel", "pp=2", "--micro-batches", "3")[1]["pipeline"]
    assert (blank["blank_micro_batches"], blank["idle_share"]) == (1, pytest.approx(1 - 9 / 15))


def test_a_configuration_says_how_it_is_split_and_options_say_otherwise(plan):
    split = DENSE + "archon: {parallel: {pp: 2, tp: 2}, pp_schedule: ZBVZeroBubble}\n"
    code, found = plan(split, "--micro-batches", "4")
    assert code == 0
    assert (found["world_size"], found["parallel"]["tp"]) == (4, 2)
    assert found["pipeline"]["schedule"] == "ZBVZeroBubble"
    _, other = plan(split, "--micro-batches", "4", "--parallel", "pp=2", "--pp-schedule", "Interleaved1F1B")
    assert (other["world_size"], other["pipeline"]["schedule"]) == (2, "Interleaved1F1B")
    code, refused = plan(split, "--pp-pieces", "0")
    assert (code, "pp_pieces is 0" in refused["error"]) == (2, True)


SERVED = DENSE.replace("kind: sft", "kind: rl\nrollout: {engine: vllm}\nreward: exact\nservers: {dtype: bfloat16}")


@pytest.mark.exhaustive
def test_weights_that_are_streamed_from_shards_are_planned_too(plan, tmp_path, capsys):
    arguments = (
        "--parallel",
        "dp_shard=2 tp=2",
        "weights.carrier=shards",
        "weights.bucket_mb=1",
        "train_dataset.name=arithmetic",
    )
    code, found = plan(SERVED, *arguments)
    assert code == 0, found
    numbers = found["weights"]
    # Matrices in bfloat16, vectors as they are; buckets are filled to multiples of 16 bytes.
    assert 2 * found["parameters"] < numbers["stream_bytes"] < 2.1 * found["parameters"]
    assert numbers["collectors"] == [0, 1, 2, 3]
    assert numbers["broadcast_by_collector_bytes"] * 4 >= numbers["stream_bytes"]
    assert numbers["sent_between_ranks_bytes"] < numbers["stream_bytes"]
    assert numbers["collector_peak_bytes"] < 3 * 2**20
    assert numbers["other_peak_bytes"] == 0
    code, found = plan(SERVED, *arguments[:2], *arguments[4:])
    assert (code, found["weights"]) == (0, None)


def test_a_device_that_servers_and_learner_share_is_planned_for_both(plan):
    arguments = ("--parallel", "dp_shard=2", "train_dataset.name=arithmetic", "rollout.max_head_offpolicyness=0")
    _, apart = plan(SERVED, *arguments)
    code, found = plan(SERVED, *arguments, "servers.sleep_level=2")
    assert (code, apart["shared_device"]) == (0, None)
    numbers = found["shared_device"]
    stays = sum(bytes_of(found, "memory", name) for name in ("parameters", "gradients", "moments"))
    assert numbers["staying_bytes"] == stays < numbers["learning_bytes"] == apart["memory_bytes"]
    assert numbers["left_for_servers_bytes"] == found["limit_bytes"] - stays
    assert numbers["in_host_bytes"] == 0
    code, asleep = plan(SERVED, *arguments, "servers.sleep_level=2", "servers.sleep_learner=true")
    assert code == 0
    assert asleep["shared_device"] == {
        "learning_bytes": numbers["learning_bytes"],
        "staying_bytes": 0,
        "in_host_bytes": stays,
        "left_for_servers_bytes": found["limit_bytes"],
    }
    code, refused = plan(SERVED, *arguments[:-1], "servers.sleep_level=2", "rollout.max_head_offpolicyness=1")
    assert code == 2
    assert "take turns" in refused["error"]
