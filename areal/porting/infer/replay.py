"""Calls a module of the traced model alone, on inputs of one's own choice, and records what its parts did.

A trace shows a module at one scale of inputs only; alternatives that differ elsewhere (clamps, close routing scores)
are distinguished by these calls. Nothing of the instance is changed when they are over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.porting.probe.instance import call_options
from areal.porting.probe.trace import copied
from areal.porting.records import ModuleCall, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import Tensor, nn

    from areal.porting.records import LayerContext, Trace


@dataclass(frozen=True)
class Replay:
    """One call of a feed-forward layer; all tensors are flat, [N, features]."""

    inputs: Tensor
    """[N, hidden]."""
    outputs: Tensor
    """[N, hidden]: of the module, and of the shared experts beside it if there are any."""
    calls: Mapping[str, ModuleCall]
    """Qualified name of each module that was called once to its call, shapes as they were."""


def first_tensor(value: Any, *, floating: bool = False) -> Tensor | None:
    """Return the tensor itself, or the first one in a tuple, list or mapping. floating: skip indices and masks."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() or not floating else None
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for item in values if (found := first_tensor(item, floating=floating)) is not None), None)


def probe(context: LayerContext, inputs: Tensor) -> Replay:
    """Call the feed-forward layer on inputs [N, hidden]. UnsupportedError if it needs more than hidden states."""
    modules = {context.name: context.module}
    if context.shared is not None:
        modules[context.shared] = context.model.get_submodule(context.shared)
    calls: dict[str, ModuleCall] = {}
    shaped = inputs.reshape(1, *inputs.shape) if context.call.input.dim() == 3 else inputs
    with torch.no_grad(), _recording(modules, calls):
        try:
            outputs = [first_tensor(module(shaped.clone())) for module in modules.values()]
        except (TypeError, AttributeError, KeyError, ValueError, RuntimeError, IndexError) as error:
            raise UnsupportedError(
                "feed-forward layers that need more than hidden states",
                where=context.name,
                detail=f"called with random hidden states alone it fails: {type(error).__name__}: {error}",
            ) from error
    if context.end is not None and context.end in calls:
        outputs[0] = calls[context.end].input
    if any(output is None or output.numel() != inputs.numel() for output in outputs):
        raise UnsupportedError(
            "feed-forward layers of another output size", where=context.name, detail="it returns no hidden states"
        )
    total = sum(output.reshape(inputs.shape) for output in outputs if output is not None)
    assert isinstance(total, torch.Tensor)
    return Replay(inputs, total, calls)


class _AllSeenError(Exception):
    """Ends the forward of a model once every module of interest has returned."""


class KnownCalls:
    """How some modules of a model are called, over the tokens of its trace and any others: one forward for all."""

    def __init__(self, model: nn.Module, trace: Trace | None, names: Collection[str]) -> None:
        self._model = model
        self._trace = trace
        self._names = tuple(dict.fromkeys(names))
        self._seen: dict[bytes, dict[str, ModuleCall]] = {}

    def of(self, name: str, tokens: Tensor) -> ModuleCall | None:
        """Return the first call of a module in a forward over tokens [B, T]; None where that is not known."""
        if name not in self._names:
            return None
        if self._trace is not None and tokens is self._trace.tokens:
            return self._trace.calls[name][0] if name in self._trace.calls else None
        key = repr(tuple(tokens.shape)).encode() + tokens.numpy().tobytes()
        if key not in self._seen:
            self._seen[key] = self._run(tokens)
        return self._seen[key].get(name)

    def _run(self, tokens: Tensor) -> dict[str, ModuleCall]:
        found: dict[str, ModuleCall] = {}
        begun: list[Any] = []

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            begun.append(copied((args, kwargs)))

        def leave(name: str, output: Any) -> None:
            arguments = begun.pop()
            given, returned = first_tensor(arguments, floating=True), first_tensor(output, floating=True)
            if given is not None and returned is not None and name not in found:
                found[name] = ModuleCall(name, len(found), given, returned.detach().clone(), arguments=arguments)
            if len(found) == len(self._names):
                raise _AllSeenError

        with ExitStack() as stack:
            for name in self._names:
                module = self._model.get_submodule(name)
                for handle in (
                    module.register_forward_pre_hook(enter, with_kwargs=True),
                    module.register_forward_hook(lambda *call, name=name: leave(name, call[-1])),
                ):
                    stack.callback(handle.remove)
            # Where a later part of foreign code fails, what was called before it is known all the same.
            with torch.no_grad(), suppress(Exception):
                self._model(tokens, **call_options(self._model))
        return found


def recall(model: nn.Module, name: str, trace: Trace) -> Callable[[Tensor], Tensor] | None:
    """Return the function that a module of the model is, with the other arguments that it got in the trace: hidden
    states [B, T, width] to its first output. None where it got no hidden states."""
    module = model.get_submodule(name)
    args, kwargs = trace.calls[name][0].arguments
    named = [*enumerate(args), *kwargs.items()]
    places = [place for place, value in named if isinstance(value, torch.Tensor) and value.is_floating_point()]
    place = "hidden_states" if "hidden_states" in kwargs else next(iter(places), None)
    if place is None:
        return None

    def call(hidden: Tensor) -> Tensor:
        given = [hidden if place == number else value for number, value in enumerate(args)]
        with torch.no_grad():
            found = first_tensor(module(*given, **{**kwargs, **({place: hidden} if place in kwargs else {})}))
        assert found is not None
        return found

    return call


ROUNDING: Final = 1e-5
"""Relative to the largest number; float32 over a few dozen terms rounds by a tenth of it."""


def mixes_tokens(model: nn.Module, name: str, trace: Trace) -> bool:
    """Return whether what a module returns for a token changes with an earlier one, by more than rounding: experts
    compute the tokens that chose them together, and products of other heights are rounded otherwise."""
    call = recall(model, name, trace)
    hidden = trace.calls[name][0].input
    if call is None or hidden.shape[:2] != trace.tokens.shape:
        return False
    changed = hidden.clone()
    changed[:, 0] = changed[:, 0].flip(-1) + changed[:, 0].abs().mean()
    before, after = call(hidden)[:, 1:], call(changed)[:, 1:]
    return not bool((after - before).abs().max() <= ROUNDING * before.abs().max())


@contextmanager
def _recording(modules: Mapping[str, nn.Module], calls: dict[str, ModuleCall]) -> Iterator[None]:
    def hook(name: str) -> Any:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given, returned = first_tensor((*args, *kwargs.values())), first_tensor(output)
            if given is not None and returned is not None:
                calls[name] = ModuleCall(name, len(calls), given.clone(), returned.clone())

        return record

    with ExitStack() as stack:
        for prefix, module in modules.items():
            for name, part in module.named_modules(prefix=prefix):
                handle = part.register_forward_hook(hook(name), with_kwargs=True)
                stack.callback(handle.remove)
        yield


@contextmanager
def replaced(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give parameters and buffers of the module other values for a while."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = {name: tensors[name].detach().clone() for name in values}
    try:
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(value)
        yield
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                tensors[name].copy_(value)


def numbers_of(config: Any, *, named: tuple[str, ...] = ()) -> list[float]:
    """Return every number in a config, at any depth, in order, each once; only those of fields with one of these words
    in their name, if any are given."""
    found: dict[float, None] = {}
    for name, value in leaves("", config):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and (not named or any(word in name.lower() for word in named)):
            found[float(value)] = None
    return list(found)


def strings_of(config: Any) -> list[str]:
    """Return every string in a config, at any depth, in order, each once."""
    return list(dict.fromkeys(value for _, value in leaves("", config) if isinstance(value, str)))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the field names and values; those of items of a list have the list's name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(str(key), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(name, item)
    else:
        yield name, value
