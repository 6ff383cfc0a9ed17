"""Weight versions that are adapters: what a server makes of base and factors is, bit for bit, what it would have been
sent as a whole; what does not fit is refused by name, and the version in use stays."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from areal import models
from areal.api import EngineError, ServerInstance, WeightManifest, WeightUpdateMeta
from areal.engine.config import LoraConfig, TrainEngineConfig
from areal.engine.hf import loading as hf_loading
from areal.engine.hf.on_disk import AdaptersOnDisk, base_tensors, checkpoint_tensors, merged_tensors, transposed_layers
from areal.engine.server.adapters import to_reload, unwrapped
from areal.engine.server.publishing import AdapterBase, WeightPublisher, serving_tensors
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver
from areal.engine.train.engine import TrainingEngine
from areal.infra.weights.broadcast import BroadcastCarrier
from areal.infra.weights.files import FileCarrier

QWEN3 = {
    "model_type": "qwen3", "vocab_size": 20, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 20, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
SERVER = [ServerInstance(name="server-0", incarnation="life-0", url="")]


class World:
    """A model with adapters, and a receiver that gets its versions through files."""

    def __init__(self, folder, *, library=models, config=QWEN3, dtype="float32", actor_dtype="float32", **lora):
        settings = TrainEngineConfig(lora=LoraConfig(rank=3, alpha=5, **lora), dtype=actor_dtype)
        self.dtype = dtype
        self.actor = TrainingEngine(library.from_config(config, seed=1), config=settings, total_steps=4)
        self.carrier = FileCarrier(folder / "weights")
        adapters = AdaptersOnDisk.of(self.actor.model)
        self.publisher = WeightPublisher(
            self.carrier,
            dtype=dtype,
            to_hf=adapters.factors,
            weights=adapters.factors(self.actor.weights()),
            base=AdapterBase(tensors=base_tensors(self.actor.model), changes=adapters.changes),
        )
        self.receiver = WeightReceiver(worker_index=0, device=torch.device("cpu"))

    def train(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.actor.weights().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)

    def publish(self, version):
        return self.publisher.publish(WeightUpdateMeta(kind="memory", version=version, state_dict=self.actor.weights()))

    def stage(self, published):
        (route,) = self.carrier.routes(published, SERVER, [1])
        self.receiver.stage(json.loads(json.dumps(published.manifest.to_json())), dict(route.source))

    def deliver(self, version):
        published = self.publish(version)
        if self.receiver.base != published.base.manifest.identity:
            self.stage(published.base)
        self.stage(published)
        return self.receiver.take(version)

    def whole(self):
        """What a server is sent without this."""
        model = self.actor.model
        tensors = merged_tensors(
            model.state_dict().items(), self.actor.config.lora, transposed=transposed_layers(model)
        )
        return serving_tensors(checkpoint_tensors(model, dict(tensors)), self.dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "actor_dtype": "bfloat16"},
        {"targets": ["q_proj", "down_proj"], "rank_stabilized": True},
        {"library": hf_loading},
        {"library": hf_loading, "config": GPT2},
        {"library": hf_loading, "config": GPT2, "dtype": "bfloat16"},
    ],
    ids=lambda options: ", ".join(f"{key}" for key in options) or "plain",
)
def test_base_and_factors_make_bit_for_bit_the_merged_model(tmp_path, options):
    world = World(tmp_path, **options)
    for version in (1, 2, 3):
        world.train(version)
        found, expected = world.deliver(version), world.whole()
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(found[name], tensor), name


def test_only_factors_travel_after_the_first_version(tmp_path):
    world = World(tmp_path)
    base = world.publisher.tally["base_bytes"]
    world.deliver(1)
    factors = sum(tensor.numel() * 4 for tensor in world.actor.weights().values())
    assert world.publisher.tally["published_bytes"] == factors
    assert base == sum(tensor.numel() * 4 for tensor in base_tensors(world.actor.model).values())
    world.carrier.keep_only(1)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["base", "version-1"]


def test_a_server_that_comes_later_gets_base_and_present_factors(tmp_path):
    world = World(tmp_path)
    world.train(1)
    world.deliver(1)
    world.train(2)
    published = world.publish(2)
    world.carrier.keep_only(2)
    world.receiver = WeightReceiver(worker_index=0, device=torch.device("cpu"))
    with pytest.raises(RefusedWeightsError, match="but the base here is none"):
        world.stage(published)
    world.stage(published.base)
    world.stage(published)
    found = world.receiver.take(2)
    assert all(torch.equal(found[name], tensor) for name, tensor in world.whole().items())


def test_a_whole_version_in_between_changes_nothing_for_those_after_it(tmp_path):
    world = World(tmp_path)
    world.train(1)
    world.deliver(1)
    folder = tmp_path / "checkpoint"
    models.save_pretrained(models.from_config(QWEN3, seed=7), folder)
    published = world.publisher.publish(WeightUpdateMeta(kind="disk", version=2, path=folder))
    assert published.base is None
    world.stage(published)
    other = world.receiver.take(2)
    assert torch.equal(other["model.norm.weight"], load_file(folder / "model.safetensors")["model.norm.weight"])
    found = world.deliver(3)
    assert all(torch.equal(found[name], tensor) for name, tensor in world.whole().items())


def test_another_base_is_not_what_factors_go_on_top_of(tmp_path):
    world, other = World(tmp_path / "one"), World(tmp_path / "other", config={**QWEN3, "rms_norm_eps": 1e-5})
    assert world.publish(1).base.manifest.identity == other.publish(1).base.manifest.identity
    different = World(tmp_path / "different", config={**QWEN3, "initializer_range": 0.3})
    world.deliver(1)
    with pytest.raises(RefusedWeightsError, match="is adapters on top of base"):
        world.stage(different.publish(2))
    assert world.deliver(3) is not None


def test_a_damaged_factor_or_base_is_refused_by_name(tmp_path):
    world = World(tmp_path)
    world.deliver(1)
    for published, name in ((world.publish(2), "lora_A"), (world.publish(3).base, "embed_tokens")):
        file = published.folder / "model.safetensors"
        tensors = {key: tensor.clone() for key, tensor in load_file(file).items()}
        victim = next(key for key in tensors if name in key)
        tensors[victim].view(torch.uint8).reshape(-1)[3].bitwise_xor_(1)
        save_file(tensors, file)
        with pytest.raises(RefusedWeightsError, match=f"{name}.* has other bytes"):
            world.stage(published)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda change: {"down": change["up"]}, "cannot be changed by factors"),
        (lambda change: {"up": "nothing"}, "nothing is missing"),
        (lambda change: {"target": "model.nothing"}, "it is missing"),
    ],
)
def test_changes_that_do_not_fit_are_refused_before_anything_is_used(tmp_path, damage, message):
    world = World(tmp_path)
    world.deliver(1)
    published = world.publish(2)
    content = published.manifest.to_json()
    content["changes"][0] |= damage(content["changes"][0])
    (route,) = world.carrier.routes(published, SERVER, [1])
    with pytest.raises(RefusedWeightsError, match=message):
        world.receiver.stage(content, dict(route.source))
    with pytest.raises(RefusedWeightsError, match="none is staged"):
        world.receiver.take(2)


def test_factors_of_another_shape_are_refused_before_anything_travels(tmp_path):
    world = World(tmp_path)
    state = dict(world.actor.weights())
    name = next(iter(state))
    state[name] = state[name][:1]
    with pytest.raises(EngineError, match="of the wrong shape"):
        world.publisher.publish(WeightUpdateMeta(kind="memory", version=1, state_dict=state))


def test_adapters_of_tensors_the_base_has_not_are_refused(tmp_path):
    world = World(tmp_path)
    base = world.publish(1).base
    (change, *_) = AdaptersOnDisk.of(world.actor.model).changes
    from dataclasses import replace

    with pytest.raises(EngineError, match="which is not a tensor of the base"):
        world.carrier.publish(2, {}, base=base, changes=[replace(change, target="lm_head.weight")])


def test_manifests_of_adapters_survive_the_trip_to_a_server(tmp_path):
    published = World(tmp_path).publish(4)
    for manifest in (published.manifest, published.base.manifest):
        assert WeightManifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_a_broadcast_carries_base_and_factors_too(tmp_path):
    import threading

    world = World(tmp_path)
    carrier = BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=4096, timeout_seconds=60)
    adapters = AdaptersOnDisk.of(world.actor.model)
    publisher = WeightPublisher(
        carrier,
        dtype="float32",
        to_hf=adapters.factors,
        weights=adapters.factors(world.actor.weights()),
        base=AdapterBase(tensors=base_tensors(world.actor.model), changes=adapters.changes),
    )
    for version in (1, 2):
        world.train(version)
        published = publisher.publish(
            WeightUpdateMeta(kind="memory", version=version, state_dict=world.actor.weights())
        )
        for part in [published.base, published] if version == 1 else [published]:
            (route,) = carrier.routes(part, SERVER, [1])
            thread = threading.Thread(target=world.receiver.stage, args=(part.manifest.to_json(), dict(route.source)))
            thread.start()
            carrier.send()
            thread.join(60)
        carrier.keep_only(version)
        found = world.receiver.take(version)
        assert all(torch.equal(found[name], tensor) for name, tensor in world.whole().items())
    carrier.close()


NAMES = [
    "embed.weight",
    *(f"layers.{layer}.{part}" for layer in range(2) for part in (
        "attn.q.weight", "attn.q.bias", "attn.k.weight", "attn.k.bias", "attn.v.weight", "attn.o.weight", "norm.weight",
        "mlp.experts.0.up.weight", "mlp.experts.1.up.weight",
    )),
]  # fmt: skip
MODULES = {"embed", *(f"layers.{layer}.{part}" for layer in range(2) for part in ("attn.qkv", "attn.o", "norm", "mlp"))}
FUSED = {"qkv": ["q", "k", "v"]}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["layers.0.attn.o.weight"], {"layers.0.attn.o.weight"}),
        (
            ["layers.1.attn.q.weight"],
            {f"layers.1.attn.{name}" for name in ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight")},
        ),
        # The server keeps all experts in one layer of another name: the block is the least that is surely whole.
        (["layers.1.mlp.experts.0.up.weight"], {name for name in NAMES if name.startswith("layers.1.")}),
        (["strange.weight"], set(NAMES)),
        ([], set()),
    ],
)
def test_layers_are_loaded_whole(changed, expected):
    found = to_reload(NAMES, changed, modules=MODULES, fused=FUSED)
    assert set(found) == expected
    assert found == [name for name in NAMES if name in expected]


class Wrapper(nn.Module):
    """As servers put one around a layer, for adapters of their own."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer


def test_layers_that_a_server_wraps_for_adapters_are_loaded_as_if_it_did_not():
    block = nn.ModuleDict({"qkv": Wrapper(nn.Linear(2, 6)), "norm": nn.LayerNorm(2)})
    model = nn.ModuleDict({"embed": Wrapper(nn.Embedding(3, 2)), "layers": nn.ModuleList([block])})
    model["head"] = model["embed"]
    before = [name for name, _ in model.named_modules(remove_duplicate=False)]
    seen = []

    def load():
        with unwrapped(model):
            seen.extend(name for name, _ in model.named_parameters(remove_duplicate=False))
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        load()
    inner = ("qkv.weight", "qkv.bias", "norm.weight", "norm.bias")
    assert sorted(seen) == sorted(["embed.weight", "head.weight", *(f"layers.0.{name}" for name in inner)])
    assert [name for name, _ in model.named_modules(remove_duplicate=False)] == before
