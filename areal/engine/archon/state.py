"""State of a sharded engine as whole tensors: weights for rollouts, checkpoints of one file, Hugging Face folders.

Tensors are gathered one at a time, by all ranks together. `areal.engine.archon.checkpoint` saves shards instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from areal.api import EngineError
from areal.engine.archon.gather import shard_of, whole, whole_of_shard
from areal.engine.archon.optimizer import local_data
from areal.engine.hf.adapter_files import merged_tensors, names_for_peft, transposed_layers, write_adapter
from areal.engine.hf.lora import BaseModel
from areal.engine.train.optimizer import check_names
from areal.models.parallel.data import give_back
from areal.models.saving import save_tensors
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.engine.archon.optimizer import ShardedOptimizer
    from areal.engine.hf.lora import Adapters
    from areal.models.parallel.meshes import Meshes

STATE_SCHEMA: Final = 1
"""That of `TrainingEngine.state_dict`."""


class EngineState:
    """Reads and writes the parameters and moments of an engine."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: ShardedOptimizer,
        meshes: Meshes,
        *,
        dtype: torch.dtype,
        adapters: Adapters | None = None,
    ) -> None:
        """dtype: that of the weights that are handed out; the shards are float32 where it is smaller. adapters: what is
        trained, in place of all parameters."""
        self._model = model
        self._optimizer = optimizer
        self._meshes = meshes
        self._dtype = dtype
        self._has_masters = torch.finfo(dtype).bits < 32
        self._lora = None if adapters is None else adapters.config
        named = list(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        for name, parameter in named:
            first.setdefault(id(parameter), name)
        self._first_names = {name: first[id(parameter)] for name, parameter in named}
        """A parameter may have several names; the optimizer knows the first."""
        self.base = None if adapters is None else adapters.base or self._fingerprint()
        """Fingerprint of the frozen model that adapters are trained on top of."""

    def own(self) -> dict[str, Tensor]:
        """This rank's parts of what changes in a run: of the whole model, or of what is trained beside a frozen one."""
        state = self._model.state_dict()
        return state if self._lora is None else {name: state[name] for name in self._optimizer.parameters}

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole tensors, in the order of the ranks of a pipeline and of the model, on every rank; each has to
        take all of them."""
        give_back(self._model)
        return self._gathered(self.own())

    def whole_state(self) -> dict[str, Any]:
        """What `TrainingEngine.state_dict` has beside its counters, as copies in host memory, on every rank."""
        parameters = {name: tensor.to("cpu", copy=True) for name, tensor in self.stream()}
        moments: dict[str, dict[str, Tensor]] = {}
        masters: dict[str, Tensor] = {}
        for name, owner in self._owners(list(self._optimizer.parameters)):
            found = self._whole_moments(name)
            for key in self._sent_names(list(found), owner):
                moments.setdefault(name, {})[key] = self._sent(found.get(key), owner).to("cpu", copy=True)
            moments.setdefault(name, {})
            if self._has_masters:
                parameter = self._optimizer.parameters.get(name)
                master = None if parameter is None else whole(parameter)
                masters[name] = self._sent(master, owner).to("cpu", copy=True)
        return {
            "schema": STATE_SCHEMA,
            "parameters": parameters,
            **({} if self.base is None else {"base": self.base}),
            "optimizer": {"moments": moments, "masters": masters},
        }

    @torch.no_grad()
    def load_whole_state(self, state: Mapping[str, Any]) -> None:
        """Inverse of `whole_state`: each rank takes its parts. Raises EngineError when it belongs to another model."""
        if state.get("schema") != STATE_SCHEMA:
            raise EngineError(
                f"engine state has schema {state.get('schema')!r}, this program reads {STATE_SCHEMA}; use the "
                f"version of areal that wrote it"
            )
        if state.get("base") != self.base:
            raise EngineError(
                "the state was saved with other adapters or on top of another base model; use the same model.path and "
                "lora settings as when it was saved"
            )
        give_back(self._model)
        own, optimizer = self.own(), state["optimizer"]
        check_names("parameters", state["parameters"], {name for name, _ in self._owners(list(own))})
        trained = {name for name, _ in self._owners(list(self._optimizer.parameters))}
        check_names("optimizer state", optimizer["moments"], trained)
        expected = trained if self._has_masters else set()
        check_names("master weights (they exist only when dtype is bfloat16)", optimizer["masters"], expected)
        for name in self._optimizer.parameters:
            self._optimizer.check_moments(name, optimizer["moments"][name])
        for name, tensor in own.items():
            stored = state["parameters"][name]
            if stored.shape != tensor.shape:
                raise EngineError(
                    f"parameter {name} is {tuple(stored.shape)} in the state and {tuple(tensor.shape)} in the model; "
                    f"use the configuration the state was saved with"
                )
        for name, tensor in own.items():
            stored = optimizer["masters"].get(self._first_names.get(name), state["parameters"][name])
            local_data(tensor).copy_(shard_of(stored.to(tensor.device, tensor.dtype), tensor))
        self._optimizer.follow()
        for name, parameter in self._optimizer.parameters.items():
            moments = optimizer["moments"][name].items()
            self._optimizer.set_moments(
                name, {key: value if key == "step" else shard_of(value, parameter) for key, value in moments}
            )
        self._optimizer.zero_grad()

    def save_pretrained(self, path: Path, *, is_critic: bool) -> None:
        """See `ArchonEngine.save_pretrained`."""
        tensors: dict[str, Tensor] = {}
        head: dict[str, Tensor] = {}
        for name, tensor in self._merged():
            kind, _, rest = name.partition(".")
            if dist.get_rank() != 0:
                continue
            if is_critic and kind == "head":
                head[rest] = tensor.cpu().contiguous()
            else:
                tensors[rest if is_critic else name] = tensor.to("cpu", copy=True)
        model: Any = self._model
        _on_first_rank(lambda: _write(model.backbone if is_critic else model, tensors, head, path))

    def save_adapter(self, path: Path, *, base: str) -> None:
        """See `ArchonEngine.save_adapter`."""
        config = self._lora
        assert config is not None, "the engine has looked"
        shapes: list[dict[str, torch.Size]] = [{}] * self._meshes.pp.size()
        own = {name: tensor.shape for name, tensor in self._model.state_dict().items()}
        dist.all_gather_object(shapes, own, group=self._meshes.group("pp"))
        everything = {name: shape for piece in shapes for name, shape in piece.items()}
        # Every rank gathers, and raises what cannot be named.
        names = names_for_peft(self._model, everything)
        tensors = {name: tensor.cpu() for name, tensor in self.stream() if ".lora_" in name}
        _on_first_rank(lambda: write_adapter(tensors, names, config, path, base=base))

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole tensors of a model without adapters."""
        give_back(self._model)
        everything = self._gathered(self._model.state_dict())
        if self._lora is None:
            return everything
        return merged_tensors(everything, self._lora, transposed=transposed_layers(self._model))

    def _fingerprint(self) -> str:
        give_back(self._model)
        frozen = {name: parameter for name, parameter in self._model.named_parameters() if not parameter.requires_grad}
        return BaseModel.of_tensors(self._gathered(frozen)).fingerprint

    def _gathered(self, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, owner in self._owners(list(own)):
            tensor = self._published(name, whole(own[name])) if name in own else None
            yield name, self._sent(tensor, owner)

    def _whole_moments(self, name: str) -> dict[str, Tensor]:
        """Of a parameter of this rank's piece; {} of others."""
        parameter = self._optimizer.parameters.get(name)
        if parameter is None:
            return {}
        return {
            key: value.to(parameter.device) if key == "step" else whole_of_shard(value, parameter)
            for key, value in self._optimizer.moments(name).items()
        }

    def _owners(self, names: list[str]) -> list[tuple[str, int]]:
        """All names of the model, in its order, with the rank of the pipeline whose piece has them."""
        if self._meshes.pp.size() == 1:
            return [(name, 0) for name in names]
        found: list[list[str]] = [[] for _ in range(self._meshes.pp.size())]
        dist.all_gather_object(found, names, group=self._meshes.group("pp"))
        # A tied embedding is on the first and on the last rank.
        owners = {name: rank for rank, names in reversed([*enumerate(found)]) for name in names}
        return [(name, rank) for rank, others in enumerate(found) for name in others if owners[name] == rank]

    def _sent(self, tensor: Tensor | None, owner: int) -> Tensor:
        """A tensor that one rank of the pipeline has, on all of them."""
        if self._meshes.pp.size() == 1:
            assert tensor is not None, "without a pipeline every rank has everything"
            return tensor
        form: list[Any] = [None if tensor is None else (tuple(tensor.shape), tensor.dtype)]
        group = self._meshes.group("pp")
        dist.broadcast_object_list(form, group=group, group_src=owner)
        shape, dtype = form[0]
        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype, device=self._meshes.device)
        tensor = tensor.to(self._meshes.device).contiguous()
        dist.broadcast(tensor, group=group, group_src=owner)
        return tensor

    def _sent_names(self, names: list[str], owner: int) -> list[str]:
        if self._meshes.pp.size() == 1:
            return names
        found: list[Any] = [names]
        dist.broadcast_object_list(found, group=self._meshes.group("pp"), group_src=owner)
        return list(found[0])

    def _published(self, name: str, tensor: Tensor) -> Tensor:
        """In the engine's dtype; buffers keep theirs."""
        if self._has_masters and self._first_names.get(name) in self._optimizer.parameters:
            return tensor.to(self._dtype)
        return tensor


def _write(decoder: Any, tensors: Mapping[str, Tensor], head: Mapping[str, Tensor], path: Path) -> None:
    if hasattr(decoder, "save_tensors"):
        decoder.save_tensors(tensors, path)
    else:
        save_tensors(decoder.args, tensors, path)
    if head:
        from safetensors.torch import save as serialize

        atomic_write(path / "value_head.safetensors", serialize(dict(head)))


def _on_first_rank(work: Callable[[], None]) -> None:
    """Run `work` on rank 0; every rank gets its error."""
    outcome: list[Exception | None] = [None]
    if dist.get_rank() == 0:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again, on all ranks
            outcome[0] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]
