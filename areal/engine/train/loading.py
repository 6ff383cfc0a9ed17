"""Reads models from a checkpoint folder without any process holding a whole one: every rank reads its shards, no more.

The model is made without memory, split, given memory for what is left of it, and filled tensor by tensor from slices of
the safetensors files. What comes out is what loading the whole model and splitting it gives, bit by bit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import ModelError
from areal.engine.train.ranks import box_of, local_data, shard_of
from areal.models.adapter import EMBEDDING, TableAdapter, untied
from areal.models.loading import SafetensorsFolder, SlicedFolder, blank_model, read_config, with_code_of
from areal.models.registry import get_spec
from areal.models.value_head import ValueModel
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.engine.train.ranks import Ranks

_logger = getLogger(__name__)

_BACKBONE: Final = "backbone."
_MEBIBYTE: Final = 2**20


class ShardSource:
    """A checkpoint folder from which split models are filled. A `source` of a TrainingEngine or a FrozenModel."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """device: of the shards. Raises ModelError when the folder is not a checkpoint."""
        self.path = path
        self.device = device
        self.bytes_read = 0
        """By this process, in all calls of `fill`."""
        self._config = read_config(path)

    def blank(self) -> Any:
        """Build the model without memory: parameters have shapes only."""
        try:
            return with_code_of(self.path, blank_model(self._config, source=self.path))
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from error

    def fill(self, model: nn.Module, adapters: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Give `model`, a DecoderModel or a ValueModel that was made by `blank` and split, its memory and its values.

        adapters: whole values of those parameters that the folder does not have. Called by all ranks. Raises ModelError
        on all of them when the folder does not hold this model or a file fails.
        """
        started = time.perf_counter()
        model.to_empty(device=self.device)
        failure: str | None = None
        try:
            self._read(model, adapters)
        except ModelError as error:
            failure = str(error)
        if failed := ranks.failures(failure):
            raise ModelError(f"{self.path}: {'; '.join(dict.fromkeys(failed.values()))}")
        seconds = time.perf_counter() - started
        _logger.info("read %.0f MiB of %s in %.1f s", self.bytes_read / _MEBIBYTE, self.path, seconds)

    @torch.no_grad()
    def _read(self, model: nn.Module, adapters: Mapping[str, Tensor]) -> None:
        """Values of the checkpoint, those of adapters, and zeros for a head that it does not have."""
        is_critic = isinstance(model, ValueModel)
        wanted: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            if name in adapters:
                local_data(tensor).copy_(shard_of(adapters[name].to(tensor.device, tensor.dtype), tensor))
            elif is_critic and not name.startswith(_BACKBONE):
                local_data(tensor).zero_()
            else:
                # A layer that got an adapter lies inside of what took its place.
                wanted[name.removeprefix(_BACKBONE).replace(".base_layer.", ".")] = tensor
        args: Any = model.args
        adapter = get_spec(args.model_type).state_dict_adapter(args)
        if isinstance(adapter, TableAdapter):
            self._read_parts(adapter, wanted)
            return
        # Nothing is known of where parts are. What is stored as ours is mapped, not copied, before it is cut.
        whole = adapter.from_hf(SafetensorsFolder(self.path))
        for name, tensor in wanted.items():
            local_data(tensor).copy_(shard_of(whole[name], tensor))
        self.bytes_read += sum(tensor.nbytes for tensor in whole.values())

    def _read_parts(self, adapter: TableAdapter, wanted: Mapping[str, Tensor]) -> None:
        folder = SlicedFolder(self.path)
        located = adapter.locate(folder)
        for unit in located.units:
            for name in unit.ours:
                tensor = wanted.get(name)
                local = None if tensor is None else local_data(tensor)
                if tensor is None or local is None or not local.numel():
                    continue
                box = box_of(tensor)
                part = unit.read_part(folder, name, box)
                if name == EMBEDDING and located.tied_head is not None:
                    head = folder[located.tied_head]
                    if head.shape != tensor.shape or not torch.equal(head.read(box), part):
                        raise ModelError(untied(located.tied_head))
                local.copy_(part)
        self.bytes_read += folder.bytes_read
