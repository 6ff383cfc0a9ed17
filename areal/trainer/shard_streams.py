"""Streams the actor's weights from the shards of all ranks to servers (`weights.carrier: shards`).

`RankStreams` is on every rank; rank 0 leads them (`areal.trainer.learner.LedStreams`). What travels when is decided in
`areal.infra.weights.layout`; which parameters are stored together is said by the family's table of names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from areal.api import NO_VERSION, ConfigError
from areal.engine.server.publishing import serving_tensors
from areal.engine.train.ranks import box_of, local_data
from areal.infra.weights.layout import ParameterLayout, TransferUnit, merge_holdings, plan_stream
from areal.infra.weights.stream import GroupLinks, OwnPart, ShardStream, StreamModel
from areal.models.adapter import TableAdapter
from areal.models.registry import get_spec
from areal.utils.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.engine.train.engine import TrainingEngine
    from areal.infra.weights.config import WeightTransferConfig
    from areal.infra.weights.layout import Bounds
    from areal.infra.weights.stream import StreamOrder, StreamOutcome
    from areal.models.adapter import StoredUnit

    Held = Mapping[str, tuple[tuple[int, ...], torch.dtype, torch.dtype, Bounds]]
    """Parameter to its shape, the dtypes that it is held and handed out in, and a rank's part."""


class RankStreams:
    """The streams of one rank: plans once, keeps its groups as long as the same servers take part."""

    def __init__(self, actor: TrainingEngine, config: WeightTransferConfig, *, served_dtype: str) -> None:
        """Agree with all ranks on the plan. Raises ConfigError for a model whose names are not in a table."""
        self._actor = actor
        self._at = (actor.version, actor.num_steps)
        everywhere = actor.ranks.gather(_held(actor))
        units = stored_units(actor.model)
        self.model, self.outline = stream_model(
            units,
            everywhere,
            served_dtype=served_dtype,
            bucket_bytes=int(config.bucket_mb * 2**20),
            max_collectors=config.collectors,
        )
        self._session = 0
        self._handed_out: tuple[int, Mapping[str, str]] = (NO_VERSION, {})
        """The version that was streamed last, and the digests of what this rank handed out of it."""
        self._links: GroupLinks | None = None
        self.store: Any = None
        """On rank 0, where the groups of the next stream meet."""

    def published(self, version: int) -> None:
        """Note that the present weights are this version."""
        self._at = (version, self._actor.num_steps)

    def is_at(self, version: int) -> bool:
        """Whether the present weights are this version."""
        return self._at == (version, self._actor.num_steps)

    def stream(self, order: StreamOrder) -> StreamOutcome | None:
        """Do this rank's part; see `areal.infra.weights.shards.StreamingRanks`."""
        rank = self._actor.ranks.rank
        if order.session != self._session or self._links is None:
            self._links, self._session = None, order.session
            self._links = GroupLinks(order, self.model.layout, rank, store=self.store)
        if not self.is_at(order.version):
            if rank == 0:
                self._links.announce(json.dumps({"failed": "training has gone on"}))
            self._links = None
            return None
        parts = {
            name: OwnPart(tensor=local_data(tensor), bounds=_bounds(tensor), dtype=dtype)
            for name, (tensor, dtype) in self._actor.state.handed_out().items()
        }
        version, digests = self._handed_out
        # A rank that handed out another version than the workers keep hands out everything.
        known = None if order.since == NO_VERSION else digests if order.since == version else {}
        outcome = ShardStream(self.model, parts, self._links, rank=rank, device=order.device, known=known).run()
        if outcome.failure:
            self._links = None
        else:
            self._handed_out = (order.version, outcome.digests)
        return outcome


def stored_units(model: Any) -> tuple[StoredUnit, ...]:
    """Return which parameters of a model are stored together. Raises ConfigError for one without a table of names."""
    kind = model.args.model_type
    adapter = get_spec(kind).state_dict_adapter(model.args) if not hasattr(model, "inner") else None
    if not isinstance(adapter, TableAdapter):
        raise ConfigError(
            f"weights.carrier shards needs a model of one of our families with a table of names, {kind!r} has none; "
            "use broadcast"
        )
    return adapter.units


def stream_model(
    units: Sequence[StoredUnit],
    everywhere: Sequence[Held],
    *,
    served_dtype: str,
    bucket_bytes: int,
    max_collectors: int,
) -> tuple[StreamModel, dict[str, Tensor]]:
    """Plan the streams of a model; everywhere: what each rank has of it. Also returns the parameters without memory."""
    known = {name: entry for held in reversed(everywhere) for name, entry in held.items()}
    used = [unit for unit in units if any(name in known for name in unit.ours)]
    transfers: list[TransferUnit] = []
    wire: list[tuple[torch.dtype, ...]] = []
    entries: dict[str, dict[str, Any]] = {}
    outline: dict[str, Tensor] = {}
    for unit in used:
        blanks = {
            name: torch.empty(known[name][0], dtype=known[name][2], device="meta")
            for name in unit.ours
            if name in known
        }
        outline |= blanks
        served = serving_tensors(unit.write(blanks), served_dtype)
        entries |= {name: {"dtype": dtype_name(tensor), "shape": list(tensor.shape)} for name, tensor in served.items()}
        # Converted before it travels, where all that is stored together is served alike: layouts do not compute.
        kinds = {tensor.dtype for tensor in served.values()}
        dtypes = tuple(kinds) * len(unit.ours) if len(kinds) == 1 else tuple(known[name][2] for name in unit.ours)
        wire.append(dtypes)
        transfers.append(_transfer_unit(unit, known, dtypes, served))
    layout = plan_stream(
        transfers,
        merge_holdings({name: entry[3] for name, entry in held.items()} for held in everywhere),
        num_ranks=len(everywhere),
        bucket_bytes=bucket_bytes,
        max_collectors=max_collectors,
    )
    model = StreamModel(
        layout=layout,
        wire=tuple(wire),
        convert=lambda number, values: used[number].write(values),
        entries=entries,
    )
    return model, outline


def _transfer_unit(
    unit: StoredUnit,
    known: Held,
    dtypes: Sequence[torch.dtype],
    served: Mapping[str, Tensor],
) -> TransferUnit:
    parameters = []
    for name, dtype in zip(unit.ours, dtypes, strict=True):
        shape, held, handed, _ = known[name]
        between = handed.itemsize if handed not in (held, dtype) else 0
        parameters.append(ParameterLayout(name=name, shape=shape, width=dtype.itemsize, cast_width=between))
    values = {
        name: torch.empty(known[name][0], dtype=dtype, device="meta")
        for name, dtype in zip(unit.ours, dtypes, strict=True)
    }
    places = {tensor.untyped_storage()._cdata for tensor in values.values()}
    stored = unit.write(values)
    first = stored[unit.on_disk[0]]
    in_place = len(values) == 1 and first is values[unit.ours[0]] and first.dtype == served[unit.on_disk[0]].dtype
    return TransferUnit(
        parameters=tuple(parameters),
        stored=tuple(served),
        stored_bytes=tuple(tensor.nbytes for tensor in served.values()),
        in_place=in_place,
        copied_bytes=sum(each.nbytes for each in stored.values() if each.untyped_storage()._cdata not in places),
    )


def _held(actor: TrainingEngine) -> Held:
    return {
        name: (tuple(tensor.shape), local_data(tensor).dtype, dtype, _bounds(tensor))
        for name, (tensor, dtype) in actor.state.handed_out().items()
    }


def _bounds(tensor: Tensor) -> Bounds:
    return tuple((part.start, part.stop) for part in box_of(tensor))
