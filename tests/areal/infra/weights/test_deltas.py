"""Versions of which only what changed is sent: a receiver ends with every byte, or refuses and is sent everything."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal.api import EngineError, ServerInstance, WeightManifest
from areal.engine.server.changes import WholeVersion
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver
from areal.infra.weights.building import build_carrier
from areal.infra.weights.config import WeightTransferConfig
from areal.infra.weights.files import FileCarrier

FROZEN = {"embed.weight": torch.arange(1200.0).reshape(30, 40), "norm.weight": torch.tensor([1.0, -0.5]).bfloat16()}
TRAINED = {"layer.weight": torch.arange(12.0).reshape(3, 4), "empty": torch.zeros(0, 5)}
SERVERS = [ServerInstance(name=f"server-{index}", incarnation=f"life-{index}", url="") for index in range(3)]


def receiver():
    return WeightReceiver(worker_index=0, device=torch.device("cpu"))


def version(number):
    """A step trains one of the tensors."""
    return {**FROZEN, **TRAINED, "layer.weight": TRAINED["layer.weight"] + number}


def deliver(carrier, published, receivers, servers=SERVERS):
    """Send to receivers in threads of their own; returns what each got, or why it refused."""
    routes = carrier.routes(published, servers[: len(receivers)], [1] * len(receivers))
    found = [None] * len(receivers)

    def stage(index):
        try:
            receivers[index].stage(published.manifest.to_json(), dict(routes[index].source))
            found[index] = receivers[index].take(published.manifest.version)
        except RefusedWeightsError as error:
            found[index] = error

    threads = [threading.Thread(target=stage, args=(index,)) for index in range(len(receivers))]
    for thread in threads:
        thread.start()
    carrier.send()
    for thread in threads:
        thread.join(60)
    return found


def as_delta(published):
    return replace(published, manifest=published.delta)


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.fixture(params=["disk", "shared_memory", "broadcast"])
def carrier(request, tmp_path):
    config = WeightTransferConfig(
        carrier=request.param, shared_memory_folder=str(tmp_path), bucket_mb=1, timeout_seconds=30, deltas=True
    )
    built = build_carrier(config, run_directory=tmp_path, device="cpu", model_config={"model_type": "qwen3"})
    yield built
    built.close()


def test_after_the_first_version_only_what_changed_is_sent_and_everything_is_there(carrier):
    targets = [receiver(), receiver()]
    first = carrier.publish(1, version(1))
    assert first.delta is None
    for found in deliver(carrier, first, targets):
        assert_equal(found, version(1))
        assert found.since == ""
    everything = carrier.sent()
    assert (everything.num_bytes, everything.skipped_bytes) == (1200 * 4 + 2 * 2 + 12 * 4, 0)
    before = everything
    for number in (2, 3):
        published = carrier.publish(number, version(number))
        carrier.keep_only(number)
        assert (published.delta.since, published.delta.changed) == (before.identity, ("layer.weight",))
        for found in deliver(carrier, as_delta(published), targets):
            assert_equal(found, version(number))
            assert isinstance(found, WholeVersion)
            assert (found.since, found.changed) == (f"whole {before.identity}", ["layer.weight"])
        before = carrier.sent()
        assert (before.num_bytes, before.skipped_bytes) == (48, everything.num_bytes - 48)


def test_a_server_that_comes_later_is_sent_everything_and_goes_on_with_what_changes(carrier):
    old, late = receiver(), receiver()
    deliver(carrier, carrier.publish(1, version(1)), [old])
    second = carrier.publish(2, version(2))
    deliver(carrier, as_delta(second), [old])
    (found,) = deliver(carrier, second, [late], SERVERS[1:])
    assert_equal(found, version(2))
    for found in deliver(carrier, as_delta(carrier.publish(3, version(3))), [old, late]):
        assert_equal(found, version(3))


def test_a_version_in_which_nothing_changed_sends_nothing(carrier):
    target = receiver()
    deliver(carrier, carrier.publish(1, version(1)), [target])
    published = carrier.publish(2, version(1))
    (found,) = deliver(carrier, as_delta(published), [target])
    assert_equal(found, version(1))
    assert (found.changed, carrier.sent().num_bytes) == ([], 0)


def test_a_version_in_which_everything_changed_and_adapters_are_no_deltas(tmp_path):
    carrier = FileCarrier(tmp_path / "weights", deltas=True)
    carrier.publish(1, TRAINED | FROZEN)
    others = {name: torch.ones(2) for name in (*TRAINED, *FROZEN)}
    assert carrier.publish(2, others).delta is None
    base = carrier.publish(-1, FROZEN)
    assert not base.manifest.keep
    assert carrier.publish(3, TRAINED, base=base).delta is None


def test_without_the_setting_nothing_is_kept_and_nothing_left_out(tmp_path):
    carrier, target = FileCarrier(tmp_path / "weights"), receiver()
    for number in (1, 2):
        published = carrier.publish(number, version(number))
        assert (published.delta, published.manifest.keep) == (None, False)
        (found,) = deliver(carrier, published, [target])
        assert not isinstance(found, WholeVersion)
        assert carrier.sent().identity == ""


def test_a_receiver_that_keeps_another_version_refuses_and_takes_the_whole_one(tmp_path):
    carrier, target = FileCarrier(tmp_path / "weights", deltas=True), receiver()
    deliver(carrier, carrier.publish(1, version(1)), [target])
    carrier.publish(2, version(2))
    third = carrier.publish(3, version(3))
    (refused,) = deliver(carrier, as_delta(third), [target])
    assert "changes of version 3 do not fit: it goes on top of" in str(refused)
    (refused,) = deliver(carrier, as_delta(third), [receiver()])
    assert "but nothing is kept here" in str(refused)
    (found,) = deliver(carrier, third, [target])
    assert_equal(found, version(3))


def test_a_tensor_that_is_left_out_has_to_be_the_kept_one(tmp_path):
    carrier, target = FileCarrier(tmp_path / "weights", deltas=True), receiver()
    deliver(carrier, carrier.publish(1, version(1)), [target])
    published = carrier.publish(2, {**version(2), "norm.weight": FROZEN["norm.weight"] * 2})
    hidden = replace(published.delta, changed=("layer.weight",))
    (refused,) = deliver(carrier, replace(published, manifest=hidden), [target])
    assert "norm.weight is not sent, and not the one that is kept here" in str(refused)
    (found,) = deliver(carrier, as_delta(published), [target])
    assert_equal(found, {**version(2), "norm.weight": FROZEN["norm.weight"] * 2})


def test_a_wrong_byte_in_what_changed_is_refused_and_what_is_kept_stays(tmp_path):
    carrier, target = FileCarrier(tmp_path / "weights", deltas=True), receiver()
    deliver(carrier, carrier.publish(1, version(1)), [target])
    published = carrier.publish(2, version(2))
    file = published.folder / "model.safetensors"
    good = load_file(file)
    save_file({**good, "layer.weight": good["layer.weight"] + 1}, file)
    (refused,) = deliver(carrier, as_delta(published), [target])
    assert "layer.weight has other bytes than announced" in str(refused)
    save_file(good, file)
    (found,) = deliver(carrier, as_delta(published), [target])
    assert_equal(found, version(2))


def test_the_copy_is_written_in_place_and_given_back(tmp_path):
    carrier, target = FileCarrier(tmp_path / "weights", deltas=True), receiver()
    (found,) = deliver(carrier, carrier.publish(1, version(1)), [target])
    places = {name: tensor.data_ptr() for name, tensor in found.items()}
    for number in (2, 3):
        published = carrier.publish(number, version(number))
        carrier.keep_only(number)
        (found,) = deliver(carrier, published if number == 3 else as_delta(published), [target])
        assert {name: tensor.data_ptr() for name, tensor in found.items()} == places
    plain = FileCarrier(tmp_path / "plain")
    deliver(plain, plain.publish(4, version(4)), [target])
    (refused,) = deliver(carrier, as_delta(carrier.publish(5, version(5))), [target])
    assert "but nothing is kept here" in str(refused)


def test_manifests_of_changes_survive_the_trip_to_a_server(tmp_path):
    carrier = FileCarrier(tmp_path / "weights", deltas=True)
    for number in (1, 2):
        published = carrier.publish(number, version(number))
    for manifest in (published.manifest, published.delta):
        assert WeightManifest.from_json(manifest.to_json()) == manifest
    assert [entry.name for entry in published.delta.sent] == ["layer.weight"]


def test_a_broadcast_of_changes_that_nobody_takes_ends_in_time(tmp_path):
    config = WeightTransferConfig(carrier="broadcast", bucket_mb=1, timeout_seconds=1.0, deltas=True)
    carrier = build_carrier(config, run_directory=tmp_path, device="cpu", model_config={})
    carrier.publish(1, version(1))
    published = carrier.publish(2, version(2))
    carrier.routes(as_delta(published), SERVERS[:1], [1])
    with pytest.raises(EngineError, match="broadcast"):
        carrier.send()
    carrier.close()
