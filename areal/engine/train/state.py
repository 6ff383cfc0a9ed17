"""Reads and writes the state of an engine as whole tensors: weights for rollouts, checkpoints of one file, Hugging Face
folders.

Where ranks share the model, tensors are gathered one at a time, by all ranks together; `areal.engine.train.checkpoint`
saves shards instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.distributed as dist

from areal.api import EngineError
from areal.engine.hf.lora import fingerprint_of
from areal.engine.hf.on_disk import merged_tensors, names_for_peft, transposed_layers, write_adapter
from areal.engine.train.ranks import as_sharded, local_data, shard_of, whole
from areal.models.parallel.data import give_back
from areal.models.saving import save_tensors
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from areal.engine.hf.lora import Adapters
    from areal.engine.train.optimizer import ModelOptimizer
    from areal.engine.train.ranks import Ranks

STATE_SCHEMA: Final = 1
Key = TypeVar("Key", bound="Hashable")


class EngineState:
    """Reads and writes the parameters and moments of an engine. All ranks call its methods together."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: ModelOptimizer,
        ranks: Ranks,
        *,
        dtype: torch.dtype,
        adapters: Adapters | None = None,
    ) -> None:
        """dtype: that of the weights that are handed out; shards are float32 where it is smaller. adapters: what is
        trained, in place of all parameters."""
        self._model = model
        self._optimizer = optimizer
        self._ranks = ranks
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

    def _give_back(self) -> None:
        if not self._ranks.is_alone:
            give_back(self._model)

    def own(self) -> dict[str, Tensor]:
        """Return this rank's parts of what training changes: of the whole model, or of the adapters of a frozen one."""
        self._give_back()
        state = self._model.state_dict()
        return state if self._lora is None else {name: state[name] for name in self._optimizer.parameters}

    def handed_out(self) -> dict[str, tuple[Tensor, torch.dtype]]:
        """Return this rank's parts of `weights`, live, each with the dtype that it is rounded to."""
        return {name: (tensor, self._dtype_of(name, tensor)) for name, tensor in self.own().items()}

    def exact(self) -> dict[str, Tensor]:
        """`own` with what checkpoints of shards hold in place of rounded parameters."""
        found = self.own()
        for name, tensor in found.items():
            first = self._first_names.get(name, "")
            if first in self._optimizer.parameters:
                found[name] = as_sharded(self._optimizer.exact(first), tensor)
        return found

    def refresh(self) -> None:
        """Have what is derived from parameters follow what somebody wrote to `own` or `exact` tensors."""
        self._optimizer.refresh()
        decoder: Any = getattr(self._model, "backbone", self._model)
        if getattr(decoder, "tower", None) is not None:
            decoder.tower.forget()

    def weights(self) -> dict[str, Tensor]:
        """See `TrainingEngine.weights`."""
        # Every rank takes part in gathering, and holds no more than one whole tensor at a time.
        return {name: tensor for name, tensor in self._handed_out(self.own()) if self._ranks.rank == 0}

    def whole_state(self) -> dict[str, Any]:
        """Everything but counters, as copies in host memory, on every rank."""
        parameters, optimizer = self._optimizer.parameters, self._optimizer
        moments: dict[str, dict[str, Tensor]] = {name: {} for name, _ in self._owners(list(parameters))}
        own_moments = {
            (name, key): value if key == "step" else as_sharded(value, parameter)
            for name, parameter in parameters.items()
            for key, value in optimizer.moments(name).items()
        }
        for (name, key), moment in self._gathered(own_moments):
            moments[name][key] = moment.to("cpu", copy=True)
        masters = {}
        if self._has_masters:
            masters = {name: as_sharded(optimizer.exact(name), parameter) for name, parameter in parameters.items()}
        return {
            "schema": STATE_SCHEMA,
            "parameters": {name: tensor.to("cpu", copy=True) for name, tensor in self._handed_out(self.own())},
            **({} if self.base is None else {"base": self.base}),
            "optimizer": {
                "moments": moments,
                "masters": {name: tensor.to("cpu", copy=True) for name, tensor in self._gathered(masters)},
            },
        }

    @torch.no_grad()
    def load_whole_state(self, state: Mapping[str, Any]) -> None:
        """Inverse of `whole_state`: each rank takes its parts. Raises EngineError, before anything is changed, when it
        belongs to another model."""
        own, optimizer = self.own(), self._optimizer
        self._check(state, own)
        moments, masters = state["optimizer"]["moments"], state["optimizer"]["masters"]
        for name, tensor in own.items():
            local_data(tensor).copy_(shard_of(state["parameters"][name].to(tensor.device, tensor.dtype), tensor))
        for name, parameter in optimizer.parameters.items():
            if self._has_masters:
                optimizer.exact(name).copy_(shard_of(masters[name].to(parameter.device), parameter))
            parts = {
                key: value if key == "step" else shard_of(value, parameter) for key, value in moments[name].items()
            }
            optimizer.set_moments(name, parts)
        self.refresh()
        optimizer.zero_grad()

    def _check(self, state: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
        """Raise EngineError unless `state` is of this model and its optimizer."""
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
        optimizer = self._optimizer
        moments, masters = state["optimizer"]["moments"], state["optimizer"]["masters"]
        _check_names("parameters", state["parameters"], {name for name, _ in self._owners(list(own))})
        for name, tensor in own.items():
            stored, dtype = state["parameters"][name], self._dtype_of(name, tensor)
            if stored.shape != tensor.shape or stored.dtype != dtype:
                raise EngineError(
                    f"parameter {name} is {stored.dtype} {tuple(stored.shape)} in the state and {dtype} "
                    f"{tuple(tensor.shape)} in the model; use the configuration the state was saved with"
                )
        trained = {name for name, _ in self._owners(list(optimizer.parameters))}
        _check_names("optimizer state", moments, trained)
        expected = trained if self._has_masters else set()
        _check_names("master weights (they exist only when dtype is bfloat16)", masters, expected)
        for name, parameter in optimizer.parameters.items():
            optimizer.check_moments(name, moments[name])
            for key, value in moments[name].items():
                if key != "step" and value.shape != parameter.shape:
                    raise EngineError(
                        f"optimizer state {key} of {name} has shape {tuple(value.shape)}, expected "
                        f"{tuple(parameter.shape)}: it belongs to another model"
                    )

    def save_pretrained(self, path: Path, *, is_critic: bool) -> None:
        """See `TrainingEngine.save_pretrained`."""
        self._give_back()
        tensors: dict[str, Tensor] = {}
        head: dict[str, Tensor] = {}
        everything = self._handed_out(self._model.state_dict())
        if self._lora is not None:
            everything = merged_tensors(everything, self._lora, transposed=transposed_layers(self._model))
        for name, tensor in everything:
            kind, _, rest = name.partition(".")
            if self._ranks.rank == 0 and is_critic and kind == "head":
                head[rest] = tensor.cpu().contiguous()
            elif self._ranks.rank == 0:
                tensors[rest if is_critic else name] = tensor.cpu()
        model: Any = self._model
        decoder = model.backbone if is_critic else model

        def write() -> None:
            if hasattr(decoder, "save_tensors"):
                decoder.save_tensors(tensors, path)
            else:
                save_tensors(decoder.args, tensors, path)
            if head:
                from safetensors.torch import save as serialize

                atomic_write(path / "value_head.safetensors", serialize(head))

        self._ranks.on_first(write)

    def save_adapter(self, path: Path, *, base: str) -> None:
        """See `TrainingEngine.save_adapter`."""
        config = self._lora
        if config is None:
            raise EngineError("no adapter to save: the engine was configured without lora; use save_pretrained")
        own = {name: tensor.shape for name, tensor in self._model.state_dict().items()}
        shapes = {name: shape for piece in self._ranks.gather(own, "pp") for name, shape in piece.items()}
        # Every rank gathers, and raises what cannot be named.
        names = names_for_peft(self._model, shapes)
        tensors = {name: tensor.cpu() for name, tensor in self._handed_out(self.own()) if ".lora_" in name}
        # The halves of an image-text model have layers of the same last names.
        whole = getattr(self._model, "vision", None) is not None
        self._ranks.on_first(lambda: write_adapter(tensors, names, config, path, base=base, whole_names=whole))

    def _fingerprint(self) -> str:
        self._give_back()
        frozen = {name: parameter for name, parameter in self._model.named_parameters() if not parameter.requires_grad}
        return fingerprint_of(self._handed_out(frozen))

    def _handed_out(self, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Gather parameters and buffers in the engine's dtype."""
        return self._gathered(own, {name: self._dtype_of(name, tensor) for name, tensor in own.items()})

    def _gathered(
        self, own: Mapping[Key, Tensor], dtypes: Mapping[Key, torch.dtype] | None = None
    ) -> Iterator[tuple[Key, Tensor]]:
        """Names and whole tensors, in the order of the ranks of a pipeline and of `own`, on every rank, which has to
        take all of them."""
        ranks, dtypes = self._ranks, dtypes or {name: tensor.dtype for name, tensor in own.items()}
        pieces = ranks.gather({name: (tuple(own[name].shape), dtypes[name]) for name in own}, "pp")
        for name, owner in _owners(pieces):
            shape, dtype = pieces[owner][name]
            if owner == ranks.place("pp"):
                tensor = whole(own[name]).to(dtype)
            else:
                tensor = torch.empty(shape, dtype=dtype, device=ranks.device)
            if len(pieces) > 1:
                tensor = tensor.to(ranks.device).contiguous()
                dist.broadcast(tensor, group=ranks.group("pp"), group_src=owner)
            yield name, tensor

    def _owners(self, names: list[str]) -> list[tuple[str, int]]:
        return _owners(self._ranks.gather(names, "pp"))

    def _dtype_of(self, name: str, tensor: Tensor) -> torch.dtype:
        """Return the dtype that a tensor is handed out in: the engine's if it is trained, else its own."""
        is_trained = self._first_names.get(name) in self._optimizer.parameters
        return self._dtype if self._has_masters and is_trained else tensor.dtype


def _owners(pieces: Sequence[Iterable[Key]]) -> list[tuple[Key, int]]:
    """List all names of the model, in its order, with the rank of the pipeline whose piece has them."""
    # A tied embedding is on the first and on the last rank.
    owners = {name: rank for rank, names in reversed([*enumerate(pieces)]) for name in names}
    return [(name, rank) for rank, names in enumerate(pieces) for name in names if owners[name] == rank]


def _check_names(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    """Raise EngineError unless the keys of `found` are exactly `expected`."""
    missing, surplus = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or surplus:
        raise EngineError(
            f"{what} do not fit this model: {len(missing)} missing {missing[:3]}, {len(surplus)} unknown "
            f"{surplus[:3]}; load a state that was saved with the same model and the same dtype"
        )
