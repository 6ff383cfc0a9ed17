"""Records one forward: what each module received and returned, and what went into each softmax."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from areal.porting.probe.instance import call_options, logits_of
from areal.porting.probe.subject import quiet
from areal.porting.records import ModuleCall, SoftmaxCall, SubjectError, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from areal.porting.probe.instance import Instance

SOFTMAXES = (torch.softmax, functional.softmax, Tensor.softmax)


class Recorder(TorchFunctionMode):
    """Collects calls while a model runs; modules that run are kept as a stack."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.batch, self.length = tokens.shape
        self.calls: dict[str, list[ModuleCall]] = {}
        self.softmaxes: list[SoftmaxCall] = []
        self.stack: list[tuple[str, int, Mapping[str, Tensor], Any]] = []
        self.order = 0

    def enter(self, name: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record the call of a module before it runs."""
        del module
        # "0" is the first positional argument, "position_embeddings.1" the second tensor of a tuple.
        named = [(str(place), value) for place, value in enumerate(arguments)] + list(keywords.items())
        tensors = {key: tensor.clone() for start, value in named for key, tensor in _tensors(start, value)}
        self.stack.append((name, self.order, tensors, copied((arguments, keywords))))
        self.order += 1

    def leave(self, output: Any) -> None:
        """Record what the innermost module returned."""
        name, order, inputs, arguments = self.stack.pop()
        outputs = tuple(tensor.clone() for _, tensor in _tensors("", output))
        if inputs and outputs:
            # The hidden states among the arguments: the first positional tensor, or by name.
            positional = [name for name in inputs if name.split(".")[0].isdigit()]
            named = [name for name in ("hidden_states", "input_ids") if name in inputs]
            first = inputs[[*positional, *named, *inputs][0]]
            call = ModuleCall(name, order, first, outputs[0], inputs, outputs, arguments)
            self.calls.setdefault(name, []).append(call)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._add(fused_scores(*args, **keywords)[0])
        elif func in SOFTMAXES and isinstance(args[0] if args else None, Tensor):
            self._add(args[0])
        return func(*args, **keywords)

    def _add(self, scores: Tensor) -> None:
        """Keep scores over keys; a softmax over experts has another shape."""
        keys = scores.shape[-1] - self.length
        if scores.ndim not in (3, 4) or scores.shape[-2] != self.length or keys not in (0, 1):
            return
        if scores.shape[0] % self.batch:
            return
        shaped = scores.detach().float().reshape(self.batch, -1, self.length, scores.shape[-1]).clone()
        module = self.stack[-1][0] if self.stack else ""
        self.softmaxes.append(SoftmaxCall(module=module, order=self.order, scores=shaped))
        self.order += 1


def record(instance: Instance, tokens: Tensor) -> Trace:
    """Run an eager instance over tokens [B, T] and return all that happened.

    Tensors are copies: code that changes its inputs in place is recorded as it was called.
    Raises `SubjectError` when forward fails.
    """
    recorder = Recorder(tokens)
    handles = []
    for name, module in instance.model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(recorder.enter, name), with_kwargs=True))
        handles.append(module.register_forward_hook(lambda *call: recorder.leave(call[-1])))
    try:
        with quiet(), torch.no_grad(), recorder:
            output = instance.model(tokens, **call_options(instance.model))
    except Exception as error:
        raise SubjectError(f"{instance.subject.architecture} fails in forward: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return Trace(
        tokens=tokens,
        logits=logits_of(output),
        calls={name: tuple(calls) for name, calls in recorder.calls.items()},
        softmaxes=tuple(recorder.softmaxes),
    )


def copied(value: Any) -> Any:
    """Return arguments with copies of the tensors in their tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return {key: copied(each) for key, each in value.items()} if type(value) is dict else value


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _tensors(f"{name}.{place}" if name else str(place), item)


def fused_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what scaled_dot_product_attention takes the softmax of, [B, H, Q, K], and the values [B, H, K, D] that it
    multiplies with that."""
    del dropout_p
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], dim=-3) for each in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores, value
    masked = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return masked, value
