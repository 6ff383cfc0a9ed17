"""One rank of the tests on streams from shards: what is planned without processes is what real ranks plan and do."""

import json
import threading

import torch
import torch.distributed as dist
from over_ranks import config_of, everywhere, run, weights_of

from areal.api import ServerInstance
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.config import ArchonConfig
from areal.engine.server.publishing import serving_tensors
from areal.engine.server.receiver import WeightReceiver
from areal.engine.train.engine import TrainingEngine
from areal.infra.weights.config import WeightTransferConfig
from areal.infra.weights.shards import ShardCarrier
from areal.models import from_config
from areal.models.parallel import ParallelDims
from areal.models.registry import get_spec
from areal.trainer.shard_streams import RankStreams

BUCKET_BYTES = 8192


class Ranks:
    """`StreamingRanks`: every rank calls `follow` once for each stream."""

    def __init__(self, streams):
        self.streams = streams
        self.is_at, self.layout = streams.is_at, lambda: streams.model.layout

    def stream(self, order, store):
        self.streams.store = store
        dist.broadcast_object_list([order])
        return self.streams.stream(order)

    def follow(self):
        order = [None]
        dist.broadcast_object_list(order)
        return self.streams.stream(order[0])


def compare(kind, dims, planned):
    engine = TrainingEngine(
        from_config(CONFIGS[kind], dtype=torch.float32, seed=2),
        config=config_of(dtype="bfloat16"),
        archon=ArchonConfig(parallel=ParallelDims(**dims)),
    )
    rank = dist.get_rank()
    transfer = WeightTransferConfig(bucket_mb=1, collectors=3)
    # Smaller than any setting allows: a tiny model in several buckets.
    object.__setattr__(transfer, "bucket_mb", BUCKET_BYTES / 2**20)
    streams = RankStreams(engine, transfer, served_dtype="bfloat16")
    expected = weights_of(engine)
    same, outcome = None, None
    if rank == 0:
        ranks, receiver = Ranks(streams), WeightReceiver(worker_index=0, device=torch.device("cpu"))
        carrier = ShardCarrier(ranks, backend="gloo", device="cpu", timeout_seconds=30)
        names = get_spec(engine.model.args.model_type).state_dict_adapter(engine.model.args)
        hf = serving_tensors(names.to_hf(expected), "bfloat16")
        published = carrier.publish(0, hf)
        (route,) = carrier.routes(published, [ServerInstance(name="s", incarnation="1", url="")], [1])
        thread = threading.Thread(target=lambda: receiver.stage(published.manifest.to_json(), dict(route.source)))
        thread.start()
        outcome = ranks.stream(carrier._order, carrier._store)
        thread.join()
        found = receiver.take(0)
        same = found.keys() == hf.keys() and all(torch.equal(found[key], hf[key]) for key in hf)
    else:
        outcome = Ranks(streams).follow()
    layout = streams.model.layout
    links = streams._links
    return {
        "same": same,
        "planned": planned == repr(layout),
        "peaks": everywhere((outcome.peak_bytes, layout.peak_bytes(rank))),
        "sent": everywhere((links.bytes_to_peers, layout.sent_to_collectors()[rank])),
        "broadcast": everywhere((links.bytes_to_workers, layout.sent_to_workers()[rank])),
        "failure": outcome.failure,
    }


def main(arguments):
    cases = json.loads((arguments.folder / "cases.json").read_text(encoding="utf-8"))
    return {name: compare(**case) for name, case in cases.items()}


if __name__ == "__main__":
    run(main)
