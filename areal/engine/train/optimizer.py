"""Updates the trained parameters of one process, which has all of them or its shards: decay groups, gradient norm and
clipping, master weights, moments.

AdamW and SGD update a value by nothing but its own gradient, so every rank updates its shards as plain tensors; Muon
needs whole matrices, which ranks compute for each other (`areal.engine.train.distributed_muon`). When to
step is the engine's decision; the learning rate is a pure function of the step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from areal.api import ConfigError, EngineError
from areal.engine.train.muon import Muon, OrthogonaliseHere
from areal.engine.train.ranks import local_data
from areal.models.blocks.short_convolution import DepthwiseConvolution
from areal.utils.transfers import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from areal.engine.config import TrainEngineConfig
    from areal.engine.train.muon import Orthogonalise
    from areal.engine.train.ranks import Ranks

_HOST: Final = torch.device("cpu")
_ADAM_STATE: Final = frozenset({"exp_avg", "exp_avg_sq", "step"})
_MOMENTUM: Final = frozenset({"momentum_buffer"})
_WAITING_BYTES: Final = 1 << 26
"""Of gradients that are added up together."""


class ModelOptimizer:
    """Updates the trainable parameters of a model by the optimizer that the configuration names.

    What is updated is the *master* of a parameter:

    dtype             a process that is alone                            ranks that share the model
    float32, float64  the parameter itself                               its shard
    bfloat16          a float32 copy; gradients are added up in float32  its shard, which is float32: FSDP2 rounds what
                      as they appear, the result is rounded into the     it gathers
                      model

    With `offload_optimizer` masters are copies in host memory, and moments are there too.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainEngineConfig,
        *,
        dtype: torch.dtype,
        ranks: Ranks,
        partial_over_tp: Iterable[str] = (),
        copies: Iterable[str] = (),
        home: torch.device | None = None,
    ) -> None:
        """Take over the parameters; a process that is alone turns them into `dtype`, in place.

        partial_over_tp: parameters whose gradients `sum_partial` completes. copies: those that another rank of the
        pipeline has as well, with the same gradients, and counts. home: where masters are; None for where the
        configuration says.
        """
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not self.parameters:
            raise EngineError(
                "the model has no trainable parameter on this rank; unfreeze some, use FrozenModel for inference only, "
                "or fewer pipeline ranks"
            )
        self._kind, self._max_grad_norm, self._ranks = config.optimizer, config.max_grad_norm, ranks
        self._partial = sorted(set(partial_over_tp) & set(self.parameters))
        self._copies = frozenset(copies)
        self.keeps_rounded = ranks.is_alone and torch.finfo(dtype).bits < 32
        """Whether parameters are rounded copies of their masters."""
        self._sums = _GradientSums()
        home = _HOST if home is None and config.offload_optimizer else home
        if self.keeps_rounded:
            self.masters = _copies(self.parameters, home, torch.float32)
            for name, parameter in self.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._sums.take, name))
        if ranks.is_alone:
            for parameter in model.parameters():  # frozen ones compute in it as well
                parameter.data = parameter.data.to(dtype)
        self.shards = {name: local_data(parameter) for name, parameter in self.parameters.items()}
        """What this process has of the parameters, sharing their memory."""
        if not self.keeps_rounded:
            self.masters = self.shards if home is None else _copies(self.shards, home)
        self._optimizers = self._build(config, token_parameters(model))
        self._owners = {
            id(master): optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for master in group["params"]
        }

    def _build(self, config: TrainEngineConfig, tokens: set[str]) -> list[torch.optim.Optimizer]:
        """Make the optimizers that share the masters; tokens: names that muon leaves to AdamW."""
        built: list[torch.optim.Optimizer] = []
        turned = {
            name: self.masters[name]
            for name, parameter in self.parameters.items()
            if config.optimizer == "muon" and is_turned(name, parameter, tokens)
        }
        if turned:
            muon = Muon(
                turned,
                shapes={name: self.parameters[name].shape for name in turned},
                orthogonalise=self._orthogonalise(list(turned)),
                lr=config.lr,
                weight_decay=config.weight_decay,
                momentum=config.momentum,
            )
            built.append(muon)
        groups: list[dict[str, Any]] = [
            {"params": [], "weight_decay": config.weight_decay},
            {"params": [], "weight_decay": 0.0},
        ]
        for name, parameter in self.parameters.items():
            if name not in turned:
                groups[0 if is_matrix(name, parameter) else 1]["params"].append(self.masters[name])
        if groups := [group for group in groups if group["params"]]:
            # The fused kernels are 3 to 4 times as fast as the others, on the CPU too, and bit-deterministic.
            if config.optimizer == "sgd":
                built.append(torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True))
            else:
                betas = (config.beta1, config.beta2)
                built.append(torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True))
        return built

    def _orthogonalise(self, names: Sequence[str]) -> Orthogonalise:
        meshes = self._ranks.meshes
        if meshes is None or self._ranks.size == 1:
            return OrthogonaliseHere(next(iter(self.parameters.values())).device if meshes is None else meshes.device)
        from areal.engine.train.distributed_muon import OrthogonaliseTogether

        # The ranks that share this rank's piece of the model.
        group = dist.group.WORLD
        if self._ranks.count("pp") > 1:
            assert meshes.root.mesh_dim_names is not None, "see build_meshes"
            others = tuple(name for name in meshes.root.mesh_dim_names if name != "pp")
            group = meshes.root[others]._flatten("piece").get_group()
        assert group is not None, "engines are made by connected processes"
        return OrthogonaliseTogether({name: self.parameters[name] for name in names}, group, device=meshes.device)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self._sums.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def sum_partial(self) -> None:
        """Complete gradients that are terms of a sum over tp; once, after all backward passes of a step."""
        if not self._partial:
            return
        terms = []
        for name in self._partial:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            terms.append(local_data(parameter.grad))
        summed = torch.cat([term.flatten() for term in terms]).to(self._ranks.device)
        self._ranks.sum(summed, "tp")
        for term, piece in zip(terms, summed.split([term.numel() for term in terms]), strict=True):
            term.copy_(piece.view_as(term))

    def gradient_norm(self) -> Tensor:
        """L2 norm over the gradients of the whole model, one number on the device; not finite when any entry is not, 0
        when there are none."""
        if self._ranks.is_alone:
            found = list(self._gradients().values())
            if not found:
                return torch.zeros((), device=self._ranks.device)
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found)))
        totals: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)
        for name, parameter in self.parameters.items():
            if name in self._copies:
                continue
            # A gradient exists on all ranks or on none, so that every rank adds up over the same groups.
            groups = _groups_of_shards(parameter)
            if parameter.grad is not None:
                totals[groups].append(local_data(parameter.grad))
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        # In the order of the parameters, which ranks of a group share: nobody may wait for another sum than the others.
        for groups, gradients in totals.items():
            square = torch.stack(torch._foreach_norm(gradients)).double().square().sum().to(self._ranks.device)
            for group in groups:
                dist.all_reduce(square, group=group)
            total += square
        if self._ranks.count("pp") > 1:
            self._ranks.sum(total, "pp")
        return total.sqrt()

    @torch.no_grad()
    def step(self, lr: float, gradient_norm: float) -> None:
        """Clip by the given norm of the current gradients, update with learning rate `lr`, and forget the gradients.

        A parameter that the step did not use (an expert without tokens, a tower without images) has a gradient of
        zeros, as FSDP2 gives it where ranks differ in what they use.
        """
        gradients = self._gradients()
        for name in self.parameters.keys() - gradients.keys():
            gradients[name] = torch.zeros_like(self.masters[name])
        if gradients and 0 < self._max_grad_norm < gradient_norm:
            torch._foreach_mul_(list(gradients.values()), self._max_grad_norm / gradient_norm)
        for name, gradient in gradients.items():
            self.masters[name].grad = _moved(gradient, self.masters[name])
        self._wait_for_copies()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        for master in self.masters.values():
            master.grad = None
        if apart := [name for name, master in self.masters.items() if master is not self.shards[name]]:
            shards, masters = ([each[name] for name in apart] for each in (self.shards, self.masters))
            torch._foreach_copy_(shards, masters, non_blocking=True)
        self._wait_for_copies()
        self.zero_grad()

    def exact(self, name: str) -> Tensor:
        """Return this process's part of a parameter, unrounded as in checkpoints. After writing to it: `refresh`."""
        return (self.masters if self.keeps_rounded else self.shards)[name]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy what somebody wrote to `exact` tensors to where else the same parameters are kept."""
        for name, master in self.masters.items():
            if self.keeps_rounded:
                self.shards[name].copy_(master)
            elif master is not self.shards[name]:
                master.copy_(self.shards[name])

    def tensors(self) -> list[Tensor]:
        """Return all that this has beside the parameters: parts of them, masters and moments. Sums of gradients are
        there during a step only."""
        moments = [value for name in self.parameters for value in self.moments(name).values()]
        return [*self.shards.values(), *self.masters.values(), *moments]

    def moments(self, name: str) -> dict[str, Tensor]:
        """State of one master; {} before the first step."""
        master = self.masters[name]
        state: Mapping[str, Tensor | None] = self._owners[id(master)].state.get(master, {})
        return {key: value for key, value in state.items() if value is not None}

    def set_moments(self, name: str, moments: Mapping[str, Tensor]) -> None:
        """Inverse of `moments`, from copies of them; {} forgets."""
        master = self.masters[name]
        state = self._owners[id(master)].state
        if moments:
            # The fused kernels want their step counter on the parameter's device, like the moments.
            state[master] = {key: value.to(master.device, copy=True) for key, value in moments.items()}
        else:
            state.pop(master, None)

    def check_moments(self, name: str, moments: Iterable[str]) -> None:
        """Raise EngineError when the moments of these names are those of another optimizer."""
        kept = _ADAM_STATE if isinstance(self._owners[id(self.masters[name])], torch.optim.AdamW) else _MOMENTUM
        if not kept.issuperset(moments):
            raise EngineError(
                f"optimizer state of {name} has {', '.join(sorted(moments))}, but optimizer {self._kind!r} keeps "
                f"{', '.join(sorted(kept))}: it was saved with another optimizer"
            )

    def _gradients(self) -> dict[str, Tensor]:
        if self.keeps_rounded:
            sums = self._sums.finished()
            return {name: sums[name] for name in self.parameters if name in sums}
        return {name: local_data(found.grad) for name, found in self.parameters.items() if found.grad is not None}

    def _wait_for_copies(self) -> None:
        """Wait for copies to and from locked memory, which run beside the program."""
        if any(master.is_pinned() for master in list(self.masters.values())[:1]):
            with WHOLE_DEVICE:
                torch.accelerator.synchronize()


class _GradientSums:
    """Adds gradients of parameters of a small dtype up in float32, many in one kernel. Those that wait for others are
    few: all at once would be half as much memory as the sums again."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._waiting: dict[str, Tensor] = {}
        self._waiting_bytes = 0

    def take(self, name: str, parameter: Tensor) -> None:
        """Take the gradient of a parameter over; a hook, called when it is there."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        if name in self._waiting:
            self._add_waiting()
        self._waiting[name] = gradient
        self._waiting_bytes += gradient.nbytes
        if self._waiting_bytes >= _WAITING_BYTES:
            self._add_waiting()

    def finished(self) -> dict[str, Tensor]:
        """Return the sums of all that was taken, by name."""
        self._add_waiting()
        return self._sums

    def clear(self) -> None:
        """Forget all gradients."""
        self._sums.clear()
        self._waiting.clear()
        self._waiting_bytes = 0

    @torch.no_grad()
    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        wide = {name: torch.empty_like(each, dtype=torch.float32) for name, each in self._waiting.items()}
        torch._foreach_copy_(list(wide.values()), list(self._waiting.values()))
        if known := [name for name in wide if name in self._sums]:
            torch._foreach_add_([self._sums[name] for name in known], [wide.pop(name) for name in known])
        self._sums |= wide
        self._waiting.clear()
        self._waiting_bytes = 0


def learning_rate(config: TrainEngineConfig, step: int, total_steps: int | None) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    Warm-up is linear from 0 (excluded, a step of rate 0 would be wasted) and reaches `lr` at its last step. Cosine and
    linear then fall to `min_lr_ratio * lr`, which they would reach at step `total_steps`, one after the last.

    Raises ConfigError when the schedule needs total_steps and it is None.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    if total_steps is None:
        raise ConfigError(
            f"lr_schedule {config.lr_schedule!r} needs the number of optimizer steps; set total_train_steps, "
            f'or use lr_schedule "constant"'
        )
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    remaining = 1.0 - progress if config.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * remaining)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies; biases of stacked experts and norms with a weight per head are only vectors, and
    rates of channels (Mamba-1) are exponents."""
    owner = name.split(".")[-2:-1]
    return (
        parameter.ndim >= 2
        and not name.endswith(("bias", "A_log"))
        and not any(part.endswith("norm") for part in owner)
    )


def is_turned(name: str, parameter: Tensor, tokens: set[str]) -> bool:
    """Whether muon takes it: matrices and stacks of experts' matrices, not other tensors of three dimensions."""
    is_stack = parameter.ndim == 3 and "experts" in name.split(".")
    return (parameter.ndim == 2 or is_stack) and is_matrix(name, parameter) and name not in tokens


def token_parameters(model: nn.Module) -> set[str]:
    """Names of matrices whose rows are tokens or scores, embeddings and heads, or filters of single channels:
    orthogonalising them mixes what has nothing to do with each other."""
    # Not by attribute: what a module reads under a parameter's name may be a part of it.
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | DepthwiseConvolution)
        for parameter in module.parameters(recurse=False)
    }
    heads = {"embed_out", "head", "lm_head", "score"}
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in embeddings or not heads.isdisjoint(name.split("."))
    }


def _copies(
    tensors: Mapping[str, Tensor], home: torch.device | None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Copy tensors to `home` or where they are; host memory is locked where an accelerator copies from it."""
    copies = {}
    for name, tensor in tensors.items():
        device = home or tensor.device
        pinned = _is_pinned(tensor.device, device)
        copy = torch.empty_like(tensor, dtype=dtype, device=device, pin_memory=pinned, requires_grad=False)
        copies[name] = copy if copy.is_meta else copy.copy_(tensor.detach())
    return copies


def _moved(gradient: Tensor, master: Tensor) -> Tensor:
    """Return a gradient on the device of its master."""
    if gradient.device == master.device:
        return gradient
    pinned = _is_pinned(gradient.device, master.device)
    return torch.empty_like(master, pin_memory=pinned).copy_(gradient, non_blocking=True)


def _is_pinned(source: torch.device, target: torch.device) -> bool:
    """Whether memory of `target` should be locked: for copies between the host and an accelerator."""
    return target.type == "cpu" and source.type not in {"cpu", "meta"}


def _groups_of_shards(parameter: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the groups over which squares of a parameter's gradient add up; () where every rank has all of it."""
    if not isinstance(parameter, DTensor):
        return ()
    placements = enumerate(parameter.placements)
    return tuple(
        parameter.device_mesh.get_group(dim) for dim, placement in placements if not isinstance(placement, Replicate)
    )
