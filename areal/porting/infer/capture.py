"""Captures every operand of one forward through an attention module: projections, products, softmaxes.

The trace of a model says what modules received and returned. How queries, keys and values were laid out is only visible
in the operands of the matrix products around the softmax, which no module returns. They are recorded here below the
level of Python spellings (`@`, `matmul`, `einsum`, `baddbmm` are one operation to the dispatcher).
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from areal.porting.infer.replay import first_tensor
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.probe.instance import call_options
from areal.porting.probe.trace import copied, fused_scores
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from areal.porting.records import ModuleCall


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One call of a linear layer, or one product with a bare parameter. `T` may be one dimension of several."""

    name: str
    """Qualified name of the module, or of the parameter."""
    weight: Tensor
    """[out, in], whatever the layout of the parameter."""
    bias: Tensor | None
    input: Tensor
    output: Tensor


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """left @ right of two activations: [N, M, D] and [N, D, K]."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """Over the last dimension."""

    scores: Tensor
    probabilities: Tensor


@dataclass(frozen=True, kw_only=True)
class Other:
    """One call of a submodule that is not a linear layer: a norm, an activation, a rotary table."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@dataclass(frozen=True, kw_only=True)
class Filtering:
    """A depthwise convolution over tokens: a filter [channels, taps] for each column of its input."""

    weight: Tensor
    bias: Tensor | None
    input: Tensor
    """[B, channels, T], or with tokens before the first."""


Event = Projection | MatrixProduct | Softmax | Filtering | Other


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What one attention module did with `tokens` [B, T]."""

    name: str
    batch: int
    length: int
    input: Tensor
    """[B, T, hidden]."""
    output: Tensor
    """[B, T, hidden]."""
    others: tuple[Tensor, ...]
    """Further arguments of the size of the output: a residual that the module adds itself would be among them."""
    events: tuple[Event, ...]
    """In the order in which they ended."""

    @property
    def calls(self) -> dict[int, Other]:
        """Calls of submodules that are no projections, by their index among the events."""
        return {index: event for index, event in enumerate(self.events) if isinstance(event, Other)}

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


class _CapturedError(Exception):
    """Ends the forward of the model once the module of interest has returned."""


@dataclass
class _Recording:
    batch: int
    length: int
    parameters: Mapping[int, str]
    """Address of a parameter's storage to its name."""
    events: list[Event] = field(default_factory=list)
    bare: Tensor | None = None
    """Result of the last product with a bare parameter."""
    inside: int = 0
    """How many linear modules are running: their products are reported as projections."""


class _ExplicitAttention(TorchFunctionMode):
    """Writes fused attention out as products and a softmax, so that its operands are seen."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            scores, value = fused_scores(*args, **(kwargs or {}))
            return scores.softmax(-1) @ value
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Notes products and softmaxes."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("bmm", "mm", "baddbmm", "addmm"):
            self._product(args, result)
        elif name in ("add", "add_"):
            self._bias(args, result)
        elif name == "convolution":
            self._filtering(args)
        elif name == "_softmax":
            scores = args[0].detach().clone()
            self._recording.events.append(Softmax(scores=scores, probabilities=result.detach().clone()))
        return result

    def _product(self, args: Sequence[Any], result: Tensor) -> None:
        recording = self._recording
        left, right = args[-2], args[-1]
        owner = recording.parameters.get(right.untyped_storage().data_ptr())
        if recording.inside:
            return
        if owner is not None and right.dim() == 2:
            bias = args[0] if len(args) == 3 and args[0].dim() == 1 else None
            bias = None if bias is None else bias.detach()
            projection = Projection(
                name=owner, weight=right.detach().t(), bias=bias, input=left.clone(), output=result.clone()
            )
            recording.events.append(projection)
            recording.bare = result
        elif left.dim() == 3:
            recording.events.append(MatrixProduct(left=left.detach().clone(), right=right.detach().clone()))
        elif left.dim() == 2:
            recording.events.append(MatrixProduct(left=left.detach().clone()[None], right=right.detach().clone()[None]))

    def _filtering(self, args: Sequence[Any]) -> None:
        inputs, weight, bias = args[:3]
        if weight.dim() == 3 and weight.shape[1] == 1 and args[8] == weight.shape[0] == inputs.shape[1]:
            found = Filtering(weight=weight[:, 0].detach().clone(), bias=bias, input=inputs.detach().clone())
            self._recording.events.append(found)

    def _bias(self, args: Sequence[Any], result: Tensor) -> None:
        """Record a vector parameter that is added to the last product with a bare parameter as its bias."""
        recording = self._recording
        if recording.bare is None or recording.inside or not all(isinstance(part, torch.Tensor) for part in args[:2]):
            return
        ours = [part.untyped_storage().data_ptr() == recording.bare.untyped_storage().data_ptr() for part in args[:2]]
        vector = args[0] if ours[1] else args[1]
        if any(ours) and vector.dim() == 1 and vector.untyped_storage().data_ptr() in recording.parameters:
            for place in reversed(range(len(recording.events))):
                projection = recording.events[place]
                if isinstance(projection, Projection):
                    changed = replace(projection, bias=vector.detach(), output=result.detach().clone())
                    recording.events[place] = changed
                    return


def capture(
    model: nn.Module,
    name: str,
    tokens: Tensor,
    *,
    start: int = 0,
    calls: Callable[[str, Tensor], ModuleCall | None] | None = None,
) -> Capture:
    """Run `model` on tokens [B, T] (eval mode, no gradients) up to and including the first call of module `name`.

    start: position of the first token. calls: how modules are called, of which the module is run alone where that gives
    what it gave in the model. Raises UnsupportedError where it is not 0 and `model` takes no positions.
    """
    module, options = model.get_submodule(name), call_options(model)
    if start:
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise UnsupportedError("positions that cannot be given", where=name, detail="forward has no position_ids")
        options["position_ids"] = (start + torch.arange(tokens.shape[1])).expand(tokens.shape)
    known = None if calls is None or start else calls(name, tokens)
    # Products are recognised by the memory of the matrices that they read.
    tensors = (*module.named_parameters(), *module.named_buffers())
    addresses = {tensor.untyped_storage().data_ptr(): key for key, tensor in tensors}
    recording = _Recording(tokens.shape[0], tokens.shape[1], addresses)
    handles = [
        handle
        for key, child in module.named_modules()
        if child is not module
        for handle in _watch(child, f"{name}.{key}", recording)
    ]
    found: dict[str, Tensor] = {}
    others: list[Tensor] = []
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = first_tensor(args, floating=True)
        given = kwargs.get("hidden_states") if given is None else given
        given = first_tensor(tuple(kwargs.values()), floating=True) if given is None else given
        found["input"] = given.detach().clone()  # type: ignore[union-attr]  # a layer without input is no attention
        others.extend(value.detach().clone() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        with _ExplicitAttention(), _Operations(recording):
            result = original(*args, **kwargs)
        found["output"] = first_tensor(result, floating=True).detach().clone()  # type: ignore[union-attr]  # and one without output
        raise _CapturedError

    replaced = module.__dict__.get("forward")
    module.forward = forward
    try:
        # Alone, foreign code may miss what its model sets: then it runs inside of it.
        with torch.no_grad(), contextlib.suppress(_CapturedError if known is None else Exception):
            if known is None:
                model(tokens, **options)
            else:
                args, keywords = copied(known.arguments)
                module(*args, **keywords)
    finally:
        del module.__dict__["forward"]
        if replaced is not None:
            module.forward = replaced
        for handle in handles:
            handle.remove()
    if known is not None and not ("output" in found and error(found["output"], known.output) <= LOCAL):
        return capture(model, name, tokens)
    if "output" not in found:
        raise UnsupportedError("attention that is not called", where=name, detail="the model never ran this module")
    batch, length = tokens.shape
    shapes = {key: tensor.reshape(batch, length, -1) for key, tensor in found.items()}
    residuals = tuple(other.reshape(batch, length, -1) for other in others if other.shape == found["output"].shape)
    return Capture(name=name, batch=batch, length=length, others=residuals, events=tuple(recording.events), **shapes)


def _watch(module: nn.Module, name: str, recording: _Recording) -> list[Any]:
    """Return the hooks that report the calls of one submodule."""
    matrix = getattr(module, "weight", None)
    linear = isinstance(matrix, torch.Tensor) and matrix.dim() == 2 and not list(module.children())
    begun: list[Tensor | None] = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        given = first_tensor(args, floating=True)
        given = first_tensor(tuple(kwargs.values()), floating=True) if given is None else given
        begun.append(None if given is None else given.detach().clone())
        recording.inside += linear

    def after(_: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        given, returned = begun.pop(), first_tensor(result, floating=True)
        if given is not None and returned is not None:
            recording.events.append(_call(name, module, given, returned.detach().clone()))
        recording.inside -= linear

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]


def _call(name: str, module: nn.Module, given: Tensor, returned: Tensor) -> Projection | Other:
    """Return a projection if the module computes one: its name and class say nothing, its numbers do."""
    matrix, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(matrix, torch.Tensor) and matrix.dim() == 2:
        bias = bias.detach() if isinstance(bias, torch.Tensor) and bias.dim() == 1 else None
        for weight in (matrix.detach(), matrix.detach().t()):
            if weight.shape == (returned.shape[-1], given.shape[-1]) and given.shape[:-1] == returned.shape[:-1]:
                expected = nn.functional.linear(given, weight, bias)
                if torch.allclose(expected, returned, rtol=1e-5, atol=1e-6 * float(returned.abs().max() + 1)):
                    return Projection(name=name, weight=weight, bias=bias, input=given, output=returned)
    return Other(name=name, module=module, input=given, output=returned)
