"""Weights on their way: every carrier delivers the same bytes to every receiver; a wrong byte is refused by name."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal.api import EngineError, ServerInstance, WeightManifest
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver, verify
from areal.infra.weights.broadcast import BroadcastCarrier
from areal.infra.weights.building import build_carrier
from areal.infra.weights.config import WeightTransferConfig
from areal.infra.weights.files import FileCarrier
from areal.infra.weights.manifest import manifest_of
from areal.utils.tensors import bit_sums, bucket_bytes, buckets, digest, views

TENSORS = {
    "embed.weight": torch.arange(12.0).reshape(3, 4),
    "norm.weight": torch.tensor([1.0, -0.5, 3.25], dtype=torch.bfloat16),
    "router.bias": torch.tensor(2.5),
    "table": torch.arange(7, dtype=torch.int64),
    "empty": torch.zeros(0, 5),
}
SERVERS = [ServerInstance(name=f"server-{index}", incarnation=f"life-{index}", url="") for index in range(2)]


def receiver(index=0):
    return WeightReceiver(worker_index=index, device=torch.device("cpu"))


def deliver(carrier, published, receivers):
    """Send to receivers in threads of their own, grouped as one worker per server; returns what each got."""
    routes = carrier.routes(published, SERVERS[: len(receivers)], [1] * len(receivers))
    manifest, failures = published.manifest.to_json(), []

    def stage(target, route):
        try:
            target.stage(manifest, dict(route.source))
        except RefusedWeightsError as error:
            failures.append(error)

    threads = [
        threading.Thread(target=stage, args=(target, route)) for target, route in zip(receivers, routes, strict=True)
    ]
    for thread in threads:
        thread.start()
    carrier.send()
    for thread in threads:
        thread.join(60)
    assert failures == []
    return [target.take(published.manifest.version) for target in receivers]


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.fixture(params=["disk", "shared_memory", "broadcast"])
def carrier(request, tmp_path):
    config = WeightTransferConfig(
        carrier=request.param, shared_memory_folder=str(tmp_path), bucket_mb=1, timeout_seconds=30
    )
    built = build_carrier(config, run_directory=tmp_path, device="cpu", model_config={"model_type": "qwen3"})
    yield built
    built.close()


def test_every_receiver_gets_every_byte(carrier):
    for found in deliver(carrier, carrier.publish(3, TENSORS), [receiver(), receiver()]):
        assert_equal(found, TENSORS)


def test_bytes_of_accelerators_are_compared_by_sums_that_every_device_can_make(carrier, monkeypatch):
    """What is published from a GPU, whose sums are made here by the same function."""

    def summed(tensors):
        return dict(zip(tensors, bit_sums(list(tensors.values())), strict=True))

    monkeypatch.setattr("areal.infra.weights.manifest.digests", summed)
    published = carrier.publish(3, TENSORS)
    assert {entry.digest[:5] for entry in published.manifest.entries} == {"sums:"}
    for found in deliver(carrier, published, [receiver(), receiver()]):
        assert_equal(found, TENSORS)
    entries = published.manifest.to_json()["tensors"]
    damaged = {name: tensor.clone() for name, tensor in TENSORS.items()}
    damaged["norm.weight"][1] = -damaged["norm.weight"][1]
    with pytest.raises(RefusedWeightsError, match=r"norm\.weight has other bytes than announced"):
        verify({"version": 3, "tensors": entries}, damaged)


def test_versions_follow_each_other_over_the_same_carrier(carrier):
    targets = [receiver(), receiver()]
    for version in (1, 2, 3):
        tensors = {name: tensor + version for name, tensor in TENSORS.items()}
        published = carrier.publish(version, tensors)
        for found in deliver(carrier, published, targets):
            assert_equal(found, tensors)
        carrier.keep_only(version)


def test_a_server_that_comes_later_gets_what_was_published_not_what_is_trained_now(carrier):
    live = {name: tensor.clone() for name, tensor in TENSORS.items()}
    published = carrier.publish(1, live)
    deliver(carrier, published, [receiver(), receiver()])
    for tensor in live.values():
        tensor.zero_()
    (found,) = deliver(carrier, published, [receiver()])
    assert_equal(found, TENSORS)


def test_closing_leaves_no_files(tmp_path):
    carrier = FileCarrier.in_memory(str(tmp_path))
    carrier.publish(1, TENSORS)
    assert list(tmp_path.iterdir())
    carrier.close()
    assert list(tmp_path.iterdir()) == []


def test_only_the_version_in_use_stays_on_disk(tmp_path):
    carrier = FileCarrier(tmp_path / "weights")
    for version in (1, 2):
        carrier.publish(version, TENSORS)
    carrier.keep_only(2)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version-2"]


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "weights").write_text("a file is in the way")
    with pytest.raises(EngineError, match="version 1"):
        FileCarrier(tmp_path / "weights").publish(1, TENSORS)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t["embed.weight"].view(torch.uint8)[0, 3].bitwise_xor_(1), "embed.weight has other bytes"),
        (lambda t: t.pop("router.bias"), "router.bias is missing"),
        (lambda t: t.update(extra=torch.ones(1)), "extra was not announced"),
        (lambda t: t.update(table=t["table"].to(torch.int32)), "table is int32"),
        (lambda t: t.update({"norm.weight": t["norm.weight"][:2].clone()}), "announced bfloat16"),
    ],
)
def test_what_differs_from_the_manifest_is_refused_by_name(tmp_path, damage, message):
    carrier = FileCarrier(tmp_path / "weights")
    published = carrier.publish(1, TENSORS)
    file = published.folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    damage(tensors)
    save_file(tensors, file)
    (route,) = carrier.routes(published, SERVERS[:1], [1])
    target = receiver()
    with pytest.raises(RefusedWeightsError, match=message):
        target.stage(published.manifest.to_json(), dict(route.source))
    with pytest.raises(RefusedWeightsError, match="none is staged"):
        target.take(1)


def test_a_truncated_file_is_refused(tmp_path):
    published = FileCarrier(tmp_path / "weights").publish(1, TENSORS)
    file = Path(published.folder / "model.safetensors")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RefusedWeightsError, match="cannot read"):
        receiver().stage(published.manifest.to_json(), {"kind": "file", "path": str(file)})


def test_another_version_than_the_staged_one_is_not_switched_to(tmp_path):
    carrier = FileCarrier(tmp_path / "weights")
    published = carrier.publish(1, TENSORS)
    target = receiver()
    target.stage(published.manifest.to_json(), dict(carrier.routes(published, SERVERS[:1], [1])[0].source))
    with pytest.raises(RefusedWeightsError, match="version 1 is staged"):
        target.take(2)


def test_a_broadcast_that_nobody_takes_ends_in_time_and_can_be_repeated():
    carrier = BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=64, timeout_seconds=1.0)
    published = carrier.publish(1, TENSORS)
    carrier.routes(published, SERVERS[:1], [1])
    with pytest.raises(EngineError, match="broadcast"):
        carrier.send()
    carrier._timeout_seconds = 30.0
    (found,) = deliver(carrier, published, [receiver()])
    assert_equal(found, TENSORS)


def test_manifests_survive_the_trip_to_a_server():
    manifest = manifest_of(4, TENSORS)
    assert WeightManifest.from_json(manifest.to_json()) == manifest


def test_digests_depend_on_every_byte_and_not_on_strides():
    base = torch.randn(8, 6)
    assert digest(base) == digest(base.t().contiguous().t())
    for position in range(0, 48, 7):
        other = base.clone()
        other.view(-1)[position] += 1e-3
        assert digest(other) != digest(base)


@pytest.mark.parametrize("limit", [1, 40, 10**6])
def test_buckets_hold_every_tensor_once_and_in_order(limit):
    entries = manifest_of(1, TENSORS).to_json()["tensors"]
    runs = list(buckets(entries, limit))
    assert [entry["name"] for run in runs for entry in run] == list(TENSORS)
    for run in runs:
        assert len(run) == 1 or bucket_bytes(run) <= limit
        buffer = torch.zeros(bucket_bytes(run), dtype=torch.uint8)
        for entry, view in zip(run, views(buffer, run), strict=True):
            view.copy_(TENSORS[entry["name"]])
            assert torch.equal(view, TENSORS[entry["name"]])


def test_a_broadcast_that_one_server_refuses_ends_at_once_and_the_next_one_reaches_the_others():
    """Nobody can leave a collective call before its time: it does not begin until all are there."""
    carrier, good = BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=64, timeout_seconds=60.0), receiver()
    (first,) = deliver(carrier, carrier.publish(1, TENSORS), [good])
    assert_equal(first, TENSORS)
    published, said = carrier.publish(2, TENSORS), []
    routes = carrier.routes(published, SERVERS, [1, 1])

    def stage():
        try:
            good.stage(published.manifest.to_json(), dict(routes[0].source))
        except RefusedWeightsError as error:
            said.append(str(error))

    thread, begun = threading.Thread(target=stage), time.monotonic()
    thread.start()
    threading.Timer(0.1, carrier.call_off, ["server-1 does not take part: its trainer is another one"]).start()
    with pytest.raises(EngineError, match="its trainer is another one"):
        carrier.send()
    stage()  # one that comes late
    thread.join(60)
    assert time.monotonic() - begun < 40
    assert len(said) == 2
    assert all("called off: server-1 does not take part" in text for text in said)
    (second,) = deliver(carrier, published, [good])
    assert_equal(second, TENSORS)
    carrier.close()


def test_a_broadcast_names_the_ranks_that_do_not_come():
    carrier = BroadcastCarrier(backend="gloo", device="cpu", bucket_bytes=64, timeout_seconds=0.2)
    carrier.routes(carrier.publish(1, TENSORS), SERVERS, [1, 2])
    with pytest.raises(EngineError, match=r"ranks \[1, 2, 3\] did not come in 0\.1 s"):
        carrier.send()
    carrier.close()
