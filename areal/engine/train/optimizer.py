"""Updates of named parameters: decay groups, float32 master weights, gradient norm and clipping, exact state.

It does not decide when to step or what the learning rate is: the engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from areal.api import EngineError
from areal.engine.train.muon import OrthogonaliseHere
from areal.engine.train.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from areal.engine.train.config import TrainEngineConfig

HOST: Final = torch.device("cpu")


class MasterOptimizer:
    """Updates the trainable parameters of a model by what the configuration names.

    Parameters in float32 or float64 are updated directly. A parameter in a smaller dtype has a float32 master copy: its
    gradients are added up in float32 as they appear, the update happens there, and the result is rounded into the
    model. With `offload_optimizer`, masters and moments are in host memory, and updated there.
    """

    def __init__(self, model: nn.Module, config: TrainEngineConfig, *, dtype: torch.dtype) -> None:
        """Turn the model's parameters into `dtype`, in place; the masters keep the values they had before."""
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not named:
            raise EngineError(
                "the model has no trainable parameter; unfreeze some, or use FrozenModel for inference only"
            )
        self._max_grad_norm = config.max_grad_norm
        self._parameters: dict[str, nn.Parameter] = named
        self._has_masters = torch.finfo(dtype).bits < 32
        if not self._has_masters:
            _cast(named.values(), dtype)
        device = next(iter(named.values())).device
        self.updates = Updates(
            named,
            config,
            whole=named,
            tokens=token_parameters(model),
            orthogonalise=lambda names: OrthogonaliseHere(device),
            dtype=dtype,
            home=HOST if config.offload_optimizer else None,
        )
        self._sums: dict[str, Tensor] = {}
        if self._has_masters:
            for name, parameter in named.items():
                parameter.register_post_accumulate_grad_hook(_GradientToSum(self._sums, name))
            _cast(named.values(), dtype)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self._sums.clear()
        for parameter in self._parameters.values():
            parameter.grad = None

    def gradient_norm(self) -> float:
        """L2 norm over all gradients; NaN or inf when any entry is, 0 when there are none."""
        gradients = list(self._gradients().values())
        if not gradients:
            return 0.0
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))

    def step(self, lr: float, gradient_norm: float) -> None:
        """Clip by the given norm of the current gradients, update with learning rate `lr`, and forget the gradients."""
        gradients = self._gradients()
        if 0 < self._max_grad_norm < gradient_norm:
            torch._foreach_mul_(list(gradients.values()), self._max_grad_norm / gradient_norm)
        self.updates.step(gradients, lr)
        self.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Moments and masters by parameter name, as copies on the CPU; masters only where parameters are coarser."""
        masters = self.updates.masters if self._has_masters else {}
        return {
            "moments": {
                name: {key: value.detach().to("cpu", copy=True) for key, value in self.updates.moments(name).items()}
                for name in self._parameters
            },
            "masters": {name: master.detach().to("cpu", copy=True) for name, master in masters.items()},
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise EngineError when parameters, dtypes or the kind of optimizer are not those of `state`."""
        check_names("optimizer state", state["moments"], set(self._parameters))
        expected = set(self._parameters) if self._has_masters else set()
        check_names("master weights (they exist only when dtype is bfloat16)", state["masters"], expected)
        for name, moments in state["moments"].items():
            self.updates.check_moments(name, moments)
            for key, value in moments.items():
                if key != "step" and value.shape != self._parameters[name].shape:
                    raise EngineError(
                        f"optimizer state {key} of {name} has shape {tuple(value.shape)}, expected "
                        f"{tuple(self._parameters[name].shape)}: it belongs to another model"
                    )

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`, after the parameters were loaded. Raises what `check_state` does."""
        self.check_state(state)
        self.updates.follow()
        for name, moments in state["moments"].items():
            self.updates.set_moments(name, moments)
        for name, master in state["masters"].items():
            self.updates.masters[name].copy_(master)
        self.zero_grad()

    def _gradients(self) -> dict[str, Tensor]:
        if self._has_masters:
            return {name: self._sums[name] for name in self._parameters if name in self._sums}
        return {name: found.grad for name, found in self._parameters.items() if found.grad is not None}


def token_parameters(model: nn.Module) -> set[str]:
    """Names of matrices whose rows are tokens or scores, embeddings and heads: orthogonalising them mixes what has
    nothing to do with each other."""
    # Not by attribute: what a module reads under a parameter's name may be a part of it.
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    heads = {"embed_out", "head", "lm_head", "score"}
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in embeddings or not heads.isdisjoint(name.split("."))
    }


class _GradientToSum:
    """Adds each new gradient of a small-dtype parameter to a sum in float32."""

    def __init__(self, sums: dict[str, Tensor], name: str) -> None:
        self._sums = sums
        self._name = name

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        parameter.grad = None
        if gradient is None:
            return
        if self._name in self._sums:
            self._sums[self._name] += gradient
        else:
            self._sums[self._name] = gradient.to(torch.float32)


def _cast(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)


def check_names(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    """Raise EngineError unless the keys of `found` are exactly `expected`."""
    missing, surplus = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or surplus:
        raise EngineError(
            f"{what} do not fit this model: {len(missing)} missing {missing[:3]}, {len(surplus)} unknown "
            f"{surplus[:3]}; load a state that was saved with the same model and the same dtype"
        )
