"""Weights straight from shards: every receiver gets every byte, whatever parts the trainer's ranks have; what breaks on
the way is refused as a whole.

Ranks and workers are threads here, with real process groups between them.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from dataclasses import replace

import pytest
import torch

from areal.api import NO_VERSION, EngineError, ServerInstance
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver
from areal.infra.weights.layout import (
    ParameterLayout,
    Piece,
    TransferUnit,
    merge_holdings,
    plan_stream,
)
from areal.infra.weights.shards import ShardCarrier
from areal.infra.weights.stream import GroupLinks, OwnPart, ShardStream, StreamModel
from areal.utils.tensors import digest

BUCKET = 4096
SERVERS = [ServerInstance(name=f"server-{index}", incarnation=f"life-{index}", url="") for index in range(3)]


def matrix(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cut_rows(shape, ranks):
    """Like FSDP2: some ranks may have nothing."""
    share = math.ceil(shape[0] / ranks)
    starts = [min(rank * share, shape[0]) for rank in range(ranks + 1)]
    return [(run, *((0, size) for size in shape[1:])) for run in itertools.pairwise(starts)]


def cut_columns(shape, ranks):
    """Like tensor parallelism of rows: no rank's part is one run in memory."""
    share = shape[1] // ranks
    return [((0, shape[0]), (rank * share, (rank + 1) * share)) for rank in range(ranks)]


def whole(shape, ranks):
    return [tuple((0, size) for size in shape)] * ranks


class Trainer:
    """Ranks that hold parts of float32 parameters, served in bfloat16 but for vectors; `fused` are stored as one."""

    def __init__(self, ranks, *, max_collectors=8, layers=4):
        self.num_ranks = ranks
        shapes, cuts = {}, {}
        for layer in range(layers):
            shapes |= {
                f"{layer}.up": (24, 32),
                f"{layer}.gate": (24, 32),
                f"{layer}.down": (32, 24),
                f"{layer}.norm": (30,),
            }
            cuts |= {f"{layer}.up": cut_rows, f"{layer}.gate": cut_rows, f"{layer}.down": cut_columns}
        shapes |= {"embed": (70, 32), "scale": (), "none": (0, 5)}
        cuts |= {"embed": cut_rows}
        self.values = {name: matrix(number, *shape) for number, (name, shape) in enumerate(shapes.items())}
        self.parts = {name: cuts.get(name, whole)(shape, ranks) for name, shape in shapes.items()}
        pairs = [(f"{layer}.up", f"{layer}.gate") for layer in range(layers)]
        self.groups = pairs + [(name,) for name in shapes if not name.endswith(("up", "gate"))]
        units, wire, self.entries = [], [], {}
        for group in self.groups:
            unit, served = self.unit(group, [shapes[name] for name in group])
            units.append(unit)
            wire.append((served,) * len(group))
        holdings = merge_holdings({name: parts[rank] for name, parts in self.parts.items()} for rank in range(ranks))
        layout = plan_stream(units, holdings, num_ranks=ranks, bucket_bytes=BUCKET, max_collectors=max_collectors)
        self.model = StreamModel(layout=layout, wire=tuple(wire), convert=self.convert, entries=self.entries)
        self.version, self.links, self.session = 0, {}, 0
        self.outcomes, self.handed_out = {}, {}

    def unit(self, group, shapes):
        """Matrices are served in bfloat16; those of a group are stored one below the other."""
        served = torch.bfloat16 if len(shapes[0]) > 1 else torch.float32
        shape = (sum(each[0] for each in shapes), *shapes[0][1:]) if len(group) > 1 else shapes[0]
        self.entries["+".join(group)] = {"dtype": str(served).removeprefix("torch."), "shape": list(shape)}
        size = math.prod(shape) * served.itemsize
        return TransferUnit(
            parameters=tuple(
                ParameterLayout(name=name, shape=each, width=served.itemsize)
                for name, each in zip(group, shapes, strict=True)
            ),
            stored=("+".join(group),),
            stored_bytes=(size,),
            copied_bytes=size if len(group) > 1 else 0,
            in_place=len(group) == 1 and group[0] != "embed",
        ), served

    def convert(self, number, values):
        group = self.groups[number]
        return {"+".join(group): torch.cat([values[name] for name in group]) if len(group) > 1 else values[group[0]]}

    @property
    def served(self):
        """What workers are to have."""
        found = {}
        for number, group in enumerate(self.groups):
            for name, tensor in self.convert(number, {name: self.values[name] for name in group}).items():
                found[name] = tensor.to(torch.bfloat16) if tensor.dim() > 1 else tensor
        return found

    # `StreamingRanks`

    def layout(self):
        return self.model.layout

    def is_at(self, version):
        return version == self.version

    def stream(self, order, store):
        if not self.is_at(order.version):
            GroupLinks(order, self.model.layout, 0, store=store).announce('{"failed": "training has gone on"}')
            return None
        failures = []

        def work(rank):
            if order.session != self.session or rank not in self.links:
                self.links[rank] = GroupLinks(order, self.model.layout, rank, store=store if rank == 0 else None)
            own = {}
            for name, value in self.values.items():
                bounds = self.parts[name][rank]
                part = value[tuple(slice(*run) for run in bounds)]
                own[name] = OwnPart(tensor=part, bounds=bounds, dtype=torch.float32)
            try:
                version, digests = self.handed_out.get(rank, (NO_VERSION, {}))
                known = None if order.since == NO_VERSION else digests if order.since == version else {}
                stream = ShardStream(self.model, own, self.links[rank], rank=rank, device="cpu", known=known)
                self.outcomes[rank] = stream.run()
                if not self.outcomes[rank].failure:
                    self.handed_out[rank] = (order.version, self.outcomes[rank].digests)
            except RuntimeError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.session = order.session
        assert failures == []
        if self.outcomes[0].failure:
            self.links = {}
        return self.outcomes[0]


def carrier_of(trainer, seconds=20.0, **options):
    return ShardCarrier(trainer, backend="gloo", device="cpu", timeout_seconds=seconds, **options)


def deliver(carrier, published, receivers):
    """Send to receivers, one worker per server; returns what each got, or why it refused."""
    routes = carrier.routes(published, SERVERS[: len(receivers)], [1] * len(receivers))
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
    try:
        carrier.send()
    finally:
        for thread in threads:
            thread.join(60)
    return found


def receivers(count):
    return [WeightReceiver(worker_index=0, device=torch.device("cpu")) for _ in range(count)]


def assert_all(found, trainer):
    for got in found:
        assert not isinstance(got, Exception), got
        assert got.keys() == trainer.served.keys()
        for name, tensor in trainer.served.items():
            assert got[name].dtype == tensor.dtype, name
            assert torch.equal(got[name], tensor), name


@pytest.mark.sample(2)
@pytest.mark.parametrize(("ranks", "collectors"), [(1, 8), (2, 8), (4, 8), (4, 2)])
def test_every_worker_gets_every_byte_of_every_version(ranks, collectors):
    trainer = Trainer(ranks, max_collectors=collectors)
    carrier, targets = carrier_of(trainer), receivers(2)
    for version in range(2):
        trainer.version = version
        for value in trainer.values.values():
            value.add_(version)
        assert_all(deliver(carrier, carrier.publish(version, trainer.served), targets), trainer)
    layout = trainer.model.layout
    assert len(layout.collectors) == min(ranks, collectors)
    assert {bucket.collector for bucket in layout.buckets} == set(layout.collectors)
    sent, broadcast = layout.sent_to_collectors(), layout.sent_to_workers()
    for rank, links in trainer.links.items():
        reports = links.bytes_to_peers - 2 * sent[rank] if rank in layout.collectors[1:] else 0
        assert links.bytes_to_peers == 2 * sent[rank] + reports
        assert 0 <= reports < 8192
        assert links.bytes_to_workers == 2 * broadcast[rank]
        assert trainer.outcomes[rank].peak_bytes == layout.peak_bytes(rank)
    assert sum(broadcast.values()) == layout.stream_bytes
    carrier.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("ranks", "collectors"), [(1, 8), (4, 2)])
def test_workers_that_keep_the_version_before_are_sent_the_buckets_that_differ(ranks, collectors):
    trainer = Trainer(ranks, max_collectors=collectors)
    carrier, targets = carrier_of(trainer, deltas=True), receivers(2)
    layout = trainer.model.layout
    first = carrier.publish(0, trainer.served)
    assert first.delta is None
    assert_all(deliver(carrier, first, targets), trainer)
    assert (carrier.sent().num_bytes, carrier.sent().skipped_bytes) == (layout.stream_bytes, 0)
    trainer.version = 1
    trainer.values["embed"].add_(1)
    published = carrier.publish(1, trainer.served)
    found = deliver(carrier, replace(published, manifest=published.delta), targets)
    assert_all(found, trainer)
    holding = [
        bucket for bucket in layout.buckets if any("embed" in layout.units[unit].stored for unit in bucket.units)
    ]
    sent = carrier.sent()
    assert sent.num_bytes == sum(bucket.num_bytes for bucket in holding)
    assert sent.num_bytes + sent.skipped_bytes == layout.stream_bytes
    assert 0 < sent.num_bytes < layout.stream_bytes / 2
    assert all("embed" in each.changed and "0.norm" not in each.changed for each in found)
    # Nothing changed, then one that keeps nothing: it refuses, and takes everything.
    trainer.version = 2
    published = carrier.publish(2, trainer.served)
    assert_all(deliver(carrier, replace(published, manifest=published.delta), targets), trainer)
    assert carrier.sent().num_bytes == 0
    carrier.close()


def test_a_rank_that_handed_out_another_version_hands_out_everything():
    trainer = Trainer(2)
    carrier, targets = carrier_of(trainer, deltas=True), receivers(1)
    deliver(carrier, carrier.publish(0, trainer.served), targets)
    trainer.version, trainer.handed_out = 1, {}
    published = carrier.publish(1, trainer.served)
    assert_all(deliver(carrier, replace(published, manifest=published.delta), targets), trainer)
    assert carrier.sent().skipped_bytes == 0
    carrier.close()


def test_a_bucket_that_is_wrongly_left_out_is_refused_by_the_digests(monkeypatch):
    trainer = Trainer(2)
    carrier, targets = carrier_of(trainer, deltas=True), receivers(1)
    deliver(carrier, carrier.publish(0, trainer.served), targets)
    trainer.version = 1
    for value in trainer.values.values():
        value.add_(1)
    published = carrier.publish(1, trainer.served)
    with monkeypatch.context() as patched:
        hand_out = ShardStream._hand_out

        def leave_out(self, bucket, buffer):
            before = dict(self._known)
            self._known = {name: digest(tensor) for name, tensor in trainer.served.items()}
            hand_out(self, bucket, buffer)
            self._known = before

        patched.setattr(ShardStream, "_hand_out", leave_out)
        (found,) = deliver(carrier, replace(published, manifest=published.delta), targets)
    assert "is not sent, and not the one that is kept here" in str(found)
    whole = carrier.publish(1, trainer.served)
    assert_all(deliver(carrier, whole, targets), trainer)
    carrier.close()


def test_the_plan_covers_every_value_once_and_spreads_the_work():
    trainer = Trainer(4, layers=40)
    layout = trainer.model.layout
    for unit, pieces in zip(layout.units, layout.pieces, strict=True):
        for place, parameter in enumerate(unit.parameters):
            seen = torch.zeros(parameter.shape, dtype=torch.int64)
            for piece in pieces:
                if piece.parameter == place:
                    seen[tuple(slice(*part) for part in piece.bounds)] += 1
                    assert trainer.parts[parameter.name][piece.sender] == piece.bounds
            assert (seen == 1).all()
    loads = layout.sent_to_workers()
    assert max(loads.values()) <= 1.1 * min(loads.values())
    sent = layout.sent_to_collectors()
    assert max(sent.values()) <= 1.1 * min(sent.values())


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {((0, 2), (0, 4)): [0]},
        {((0, 2), (0, 4)): [0], ((1, 3), (0, 4)): [1]},
        {((0, 4), (0, 2)): [0], ((2, 4), (0, 4)): [1]},
        {((0, 5), (0, 4)): [0]},
    ],
)
def test_parts_that_do_not_cover_a_parameter_exactly_once_are_refused(parts):
    unit = TransferUnit(
        parameters=(ParameterLayout(name="w", shape=(4, 4), width=2),), stored=("w",), stored_bytes=(32,)
    )
    with pytest.raises(EngineError, match="do not cover it exactly once"):
        plan_stream([unit], {"w": parts}, num_ranks=2, bucket_bytes=64, max_collectors=2)
    with pytest.raises(EngineError, match="no rank has a part of w"):
        plan_stream([unit], {}, num_ranks=2, bucket_bytes=64, max_collectors=2)


def test_a_byte_that_changes_on_the_way_is_refused_by_name(monkeypatch):
    trainer = Trainer(2)
    carrier, targets = carrier_of(trainer), receivers(1)
    hand_out = GroupLinks.hand_out

    def damage(self, buffer):
        buffer[5] ^= 1
        hand_out(self, buffer)

    monkeypatch.setattr(GroupLinks, "hand_out", damage)
    (found,) = deliver(carrier, carrier.publish(0, trainer.served), targets)
    assert isinstance(found, RefusedWeightsError)
    assert "has other bytes than announced" in str(found)
    monkeypatch.undo()
    assert_all(deliver(carrier, carrier.publish(0, trainer.served), targets), trainer)
    carrier.close()


def test_weights_that_have_moved_on_are_not_sent_under_an_old_version():
    trainer = Trainer(1)
    carrier = carrier_of(trainer)
    published = carrier.publish(0, trainer.served)
    assert carrier.can_send(published)
    trainer.version = 1
    assert not carrier.can_send(published)
    with pytest.raises(EngineError, match="training has gone on"):
        deliver(carrier, published, receivers(1))
    carrier.close()


def test_what_does_not_come_from_shards_is_refused():
    trainer = Trainer(1)
    carrier = carrier_of(trainer)
    with pytest.raises(EngineError, match="whole models only"):
        carrier.publish(-1, trainer.served)
    with pytest.raises(EngineError, match="stored tensors"):
        carrier.publish(0, {"other": torch.zeros(1)})


class Gone(Exception):
    """A worker's thread ends here, as if it had been killed."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("boundary", range(6))
def test_a_worker_that_goes_at_a_bucket_boundary_leaves_no_mixture(boundary, monkeypatch):
    """The other worker keeps what it had; a second attempt without the lost one brings everything."""
    trainer = Trainer(2)
    assert len(trainer.model.layout.buckets) >= 6
    carrier, targets = carrier_of(trainer, seconds=3.0), receivers(2)
    assert_all(deliver(carrier, carrier.publish(0, trainer.served), targets), trainer)
    trainer.version = 1
    for value in trainer.values.values():
        value.add_(1)
    from areal.engine.server import receiver as module

    counts, broadcast = {}, module.broadcast

    def leave(group, tensor):
        name = threading.current_thread().name
        if name.startswith("leaver"):
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > boundary:
                raise RuntimeError("killed")
        broadcast(group, tensor)

    monkeypatch.setattr(module, "broadcast", leave)
    stage = WeightReceiver.stage

    def named(self, *arguments, **options):
        if self is targets[1]:
            threading.current_thread().name = "leaver"
        stage(self, *arguments, **options)

    monkeypatch.setattr(WeightReceiver, "stage", named)
    began = time.monotonic()
    published = carrier.publish(1, trainer.served)
    with pytest.raises(EngineError, match="the stream of weights failed"):
        deliver(carrier, published, targets)
    assert time.monotonic() - began < 30
    for target in targets:
        with pytest.raises(RefusedWeightsError, match="none is staged"):
            target.take(1)
    monkeypatch.undo()
    assert_all(deliver(carrier, published, targets[:1]), trainer)
    carrier.close()


def test_pieces_say_whether_they_are_one_run():
    assert Piece(parameter=0, bounds=((2, 4), (0, 5)), sender=0).is_run((9, 5))
    assert not Piece(parameter=0, bounds=((0, 9), (0, 2)), sender=0).is_run((9, 5))
    assert Piece(parameter=0, bounds=(), sender=0).is_run(())
