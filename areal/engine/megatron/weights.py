"""The parameters of a stage under our names, as tensors split over tp, beside those that megatron-core computes with.

What optimizers, checkpoints and exports of the training engine know is a part of our model whose parameters are
distributed tensors. Here such a part stands for megatron's parameters: where a parameter of ours is all of megatron's,
or its first rows, in the same dtype, both are the same memory; else (queries, keys, values and up, which are fused with
others; bfloat16, of which ours are the float32 masters) values are copied after each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from areal.engine.megatron.names import held, split_dimensions
from areal.engine.train.ranks import as_sharded, local_data
from areal.models.parallel.pipeline import is_tied, pieces_of, take_part

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

    from areal.engine.megatron.names import MegatronPart
    from areal.engine.train.ranks import Ranks


@dataclass(frozen=True)
class _MegatronWeight:
    """A parameter of megatron and what it holds of ours."""

    theirs: nn.Parameter
    held: MegatronPart
    owners: tuple[tuple[nn.Module, str], ...]
    """Modules of our part, and the names of the parameters in them: parameters are replaced when memory is joined."""
    head_dim: int

    @property
    def ours(self) -> list[nn.Parameter]:
        """Our parameters, in the order of their rows."""
        return [getattr(module, name) for module, name in self.owners]

    def parts(self, tensor: Tensor) -> list[Tensor]:
        """Return this rank's parts of ours in a tensor of the shape of `theirs`."""
        shapes = [local_data(parameter).shape for parameter in self.ours]
        return self.held.read(tensor, shapes, self.head_dim)


class StageWeights:
    """Our part of the model and megatron's, kept equal."""

    def __init__(self, model: nn.Module, ranks: Ranks, mesh: DeviceMesh) -> None:
        """model: a DecoderModel, with values or on the meta device. Its parameters are split in place. mesh: of tp."""
        whole: Any = model
        stage, stages = ranks.place("pp"), ranks.count("pp")
        self._is_tied = is_tied(model)
        self._first_layer = pieces_of(whole.args.num_layers, stages)[stage].start
        self._head_dim = int(whole.args.head_dim)
        self.part = take_part(model, [stage], stages)
        self._pairs: list[_MegatronWeight] = []
        dimensions = split_dimensions()
        for name, parameter in list(self.part.named_parameters()):
            pattern = ".".join("*" if piece.isdecimal() else piece for piece in name.split("."))
            dimension = dimensions[pattern]
            if dimension is not None:
                _replace(*_owner(self.part, name), _split(parameter, mesh, dimension))

    @torch.no_grad()
    def join(self, decoder: nn.Module) -> None:
        """Fill megatron's `decoder` of this stage from our part, and let both share memory where they can."""
        theirs = dict(decoder.named_parameters())
        found = held(theirs, first_layer=self._first_layer, is_tied=self._is_tied)
        for item in found:
            owners = tuple(_owner(self.part, name) for name in item.ours)
            self._pairs.append(_MegatronWeight(theirs[item.name], item, owners, self._head_dim))
        for pair in self._pairs:
            pair.held.write([local_data(parameter) for parameter in pair.ours], pair.theirs.data, pair.head_dim)
            parts = pair.parts(pair.theirs.data)
            for (module, name), parameter, part in zip(pair.owners, pair.ours, parts, strict=True):
                # torch cannot copy a distributed tensor whose memory begins inside of another tensor's.
                if part.dtype == parameter.dtype and not part.storage_offset() and _is_view(part, pair.theirs.data):
                    _replace(module, name, nn.Parameter(as_sharded(part, parameter)))
        covered = {id(module._parameters[name]) for pair in self._pairs for module, name in pair.owners}
        missing = [name for name, parameter in self.part.named_parameters() if id(parameter) not in covered]
        assert not missing, f"check_model lets nothing through that megatron has no place for: {missing}"

    @torch.no_grad()
    def push(self) -> None:
        """Copy what was written to our part to megatron, where the memory is not the same."""
        for pair in self._pairs:
            locals_ = [local_data(parameter) for parameter in pair.ours]
            if not all(_is_view(local, pair.theirs.data) for local in locals_):
                pair.held.write([local.to(pair.theirs.dtype) for local in locals_], pair.theirs.data, pair.head_dim)

    def pull_gradients(self) -> None:
        """Set the gradients of our part: those that megatron has added up."""
        for pair in self._pairs:
            gradient: Tensor = getattr(pair.theirs, "main_grad")  # noqa: B009 - an attribute that megatron adds
            for parameter, part in zip(pair.ours, pair.parts(gradient), strict=True):
                parameter.grad = as_sharded(part.to(parameter.dtype), parameter)


def _split(parameter: nn.Parameter, mesh: DeviceMesh, dimension: int) -> nn.Parameter:
    # Every rank has the same values, or none: nothing is sent.
    return nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(dimension)], src_data_rank=None))


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


def _replace(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    module._parameters[name] = parameter


def _is_view(part: Tensor, whole: Tensor) -> bool:
    local = part.to_local() if isinstance(part, DTensor) else part
    return local.is_contiguous() and local.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
