"""Updates of named parameters: decay groups, float32 master weights, gradient norm and clipping, exact state.

It does not decide when to step or what the learning rate is: the engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from areal.api import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.engine.train.config import TrainEngineConfig


_ADAM_STATE: Final = frozenset({"exp_avg", "exp_avg_sq", "step"})
_MOMENTUM: Final = frozenset({"momentum_buffer"})


class MasterOptimizer:
    """Updates the trainable parameters of a model by what the configuration names.

    Parameters in float32 or float64 are updated directly. A parameter in a smaller dtype has a float32 master copy: its
    gradients are added up in float32 as they appear, the update happens there, and the result is rounded into the
    model.
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
        self._masters: dict[str, Tensor] = {}
        small = torch.finfo(dtype).bits < 32
        for name, parameter in named.items():
            if small:
                self._masters[name] = parameter.detach().to(torch.float32, copy=True)
                parameter.register_post_accumulate_grad_hook(_GradientToMaster(self._masters[name]))
            parameter.data = parameter.data.to(dtype)
            if not small:
                self._masters[name] = parameter
        self._kind = config.optimizer
        self._optimizers = _build(self._masters, config, tokens=_token_parameters(model))
        self._owners = {
            id(master): optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for master in group["params"]
        }

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def gradient_norm(self) -> float:
        """L2 norm over all gradients; NaN or inf when any entry is, 0 when there are none."""
        gradients = self._gradients()
        if not gradients:
            return 0.0
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))

    def step(self, lr: float, gradient_norm: float) -> None:
        """Clip by the given norm of the current gradients, update with learning rate `lr`, and forget the gradients."""
        if 0 < self._max_grad_norm < gradient_norm:
            torch._foreach_mul_(self._gradients(), self._max_grad_norm / gradient_norm)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.data.copy_(self._masters[name])
        self.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Moments and masters by parameter name, as copies on the CPU."""
        state: dict[str, Any] = {"moments": {}, "masters": {}}
        for name, master in self._masters.items():
            moments = self._owners[id(master)].state.get(master, {})
            state["moments"][name] = {
                key: value.detach().to("cpu", copy=True) for key, value in moments.items() if value is not None
            }
            if master is not self._parameters[name]:
                state["masters"][name] = master.detach().to("cpu", copy=True)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises EngineError, before anything is changed, when parameters, dtypes or the kind
        of optimizer differ."""
        expected_masters = {name for name, master in self._masters.items() if master is not self._parameters[name]}
        check_names("optimizer state", state["moments"], set(self._masters))
        check_names("master weights (they exist only when dtype is bfloat16)", state["masters"], expected_masters)
        for name, moments in state["moments"].items():
            kept = _ADAM_STATE if isinstance(self._owners[id(self._masters[name])], torch.optim.AdamW) else _MOMENTUM
            if not moments.keys() <= kept:
                raise EngineError(
                    f"optimizer state of {name} has {', '.join(sorted(moments))}, but optimizer {self._kind!r} keeps "
                    f"{', '.join(sorted(kept))}: it was saved with another optimizer"
                )
            for key, value in moments.items():
                if key != "step" and value.shape != self._masters[name].shape:
                    raise EngineError(
                        f"optimizer state {key} of {name} has shape {tuple(value.shape)}, expected "
                        f"{tuple(self._masters[name].shape)}: it belongs to another model"
                    )
        for name, master in self._masters.items():
            moments = state["moments"][name]
            # The fused kernel wants its step counter on the parameter's device, like the moments.
            restored = {key: value.to(master.device, copy=True) for key, value in moments.items()}
            owner = self._owners[id(master)]
            if restored:
                owner.state[master] = restored
            else:
                owner.state.pop(master, None)
            if name in state["masters"]:
                master.data.copy_(state["masters"][name])
        self.zero_grad()

    def _gradients(self) -> list[Tensor]:
        return [master.grad for master in self._masters.values() if master.grad is not None]


def _build(
    masters: Mapping[str, Tensor], config: TrainEngineConfig, *, tokens: set[str]
) -> list[torch.optim.Optimizer]:
    """The optimizers that share the parameters, each with those that are decayed and those that are not."""
    turned = set()
    if config.optimizer == "muon":
        # Not stacks of matrices, which torch's Muon does not take.
        turned = {
            name
            for name, master in masters.items()
            if master.ndim == 2 and is_matrix(name, master) and name not in tokens
        }
    rest = {name: master for name, master in masters.items() if name not in turned}
    built: list[torch.optim.Optimizer] = []
    if turned:
        built.append(
            torch.optim.Muon(
                [masters[name] for name in masters if name in turned],
                lr=config.lr,
                weight_decay=config.weight_decay,
                momentum=config.momentum,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    groups = [
        {
            "params": [master for name, master in rest.items() if is_matrix(name, master)],
            "weight_decay": config.weight_decay,
        },
        {"params": [master for name, master in rest.items() if not is_matrix(name, master)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        return built
    # The fused kernels are 3 to 4 times as fast as the others, on the CPU too, and bit-deterministic.
    if config.optimizer == "sgd":
        return [*built, torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)]
    betas = (config.beta1, config.beta2)
    return [*built, torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)]


def _token_parameters(model: nn.Module) -> set[str]:
    """Names of matrices whose rows are tokens or scores, embeddings and heads: orthogonalising them mixes what has
    nothing to do with each other."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    heads = {"embed_out", "head", "lm_head", "score"}
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in embeddings or not heads.isdisjoint(name.split("."))
    }


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies; biases of stacked experts and norms with a weight per head are only vectors."""
    owner = name.split(".")[-2:-1]
    return parameter.ndim >= 2 and not name.endswith("bias") and not any(part.endswith("norm") for part in owner)


class _GradientToMaster:
    """Adds each new gradient of a small-dtype parameter to the gradient of its float32 master."""

    def __init__(self, master: Tensor) -> None:
        self._master = master

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        parameter.grad = None
        if gradient is None:
            return
        if self._master.grad is None:
            self._master.grad = gradient.to(torch.float32)
        else:
            self._master.grad += gradient


def check_names(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    """Raise EngineError unless the keys of `found` are exactly `expected`."""
    missing, surplus = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or surplus:
        raise EngineError(
            f"{what} do not fit this model: {len(missing)} missing {missing[:3]}, {len(surplus)} unknown "
            f"{surplus[:3]}; load a state that was saved with the same model and the same dtype"
        )
