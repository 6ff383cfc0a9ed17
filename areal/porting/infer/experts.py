"""What every expert of a mixture computes: which tensors are its matrices, how they lie, and the function between them.

Routing need not be known: a token's output is a sum of experts' outputs with some weights, so an arrangement of the
tensors is right exactly when the outputs it gives for all experts can be combined linearly into the observed one. The
combination is solved for, token by token, and *is* the routing that was applied.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting.infer.replay import numbers_of, strings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

TOLERANCE: Final = 2e-5
"""Largest error of an explained token, over the root mean square of its outputs. Float32 leaves about 1e-6."""
SCREENED_TOKENS: Final = 48
"""Arrangements are compared on this many tokens first."""
ROLE_HINTS: Final = {
    "gate": ("gate", "w1", "wi_0"),
    "up": ("up", "w3", "v1", "wi_1", "input", "fc1", "c_fc"),
    "down": ("down", "w2", "wo", "output", "fc2", "c_proj"),
}
CLAMPED_ACTIVATIONS: Final = ("silu", "quick_gelu", "gelu", "gelu_pytorch_tanh", "relu")
CLAMP_HINTS: Final = ("limit", "clamp", "clip", "max")
USUAL_CLAMPS: Final = (7.0, 10.0)
RANKED_FORMS: Final = 12
"""Forms that clamps are tried for."""


@dataclass(frozen=True)
class Stack:
    """Tensors of one module that hold one entry per expert."""

    num_experts: int
    matrices: Mapping[str, Tensor]
    """Parameter name (`{}` for the expert's number) to [experts, rows, columns]."""
    vectors: Mapping[str, Tensor]
    """[experts, size]."""
    names: frozenset[str]
    """All parameters that it is made of."""


@dataclass(frozen=True)
class ExpertForm:
    """A hypothesis of what an expert computes; canonical tensors without the prefix "experts."."""

    tensors: Mapping[str, Tensor]
    activation: str = "silu"
    clamp: float | None = None
    up_offset: float = 0.0

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return "gate_proj" in self.tensors

    def describe(self) -> str:
        """For messages."""
        clamp = "" if self.clamp is None else f", clamped at {self.clamp:g}"
        offset = f", up + {self.up_offset:g}" if self.up_offset else ""
        return f"{'gated ' if self.gated else ''}{self.activation}{clamp}{offset}"


@dataclass(frozen=True)
class Solution:
    """The combination of columns that comes closest to the observed outputs."""

    weights: Tensor
    """float64 [N, columns]."""
    error: float
    """Largest error of a token over the root mean square of its outputs."""


def stacks_of(parameters: Mapping[str, Tensor], hidden_size: int) -> list[Stack]:
    """Return every group of at least two matrices that have one entry per expert, under all readings of the
    parameters.

    Example: gate_up_proj [8, 64, 224] and down_proj [8, 112, 64] of a tiny gpt_oss are one stack of 8 experts; modules
    experts.0.w1, experts.1.w1, ... with equal shapes are another form of the same. Whether gate and up are rows one
    after the other or interleaved (as here) is decided by which arrangement reproduces the outputs.
    """
    found = list(_numbered_stacks(parameters))
    for count in dict.fromkeys(tensor.shape[0] for tensor in parameters.values() if tensor.dim() == 3):
        matrices = {name: tensor for name, tensor in parameters.items() if tensor.dim() == 3 and len(tensor) == count}
        owners = {name.rpartition(".")[0] for name in matrices}
        vectors = {
            name: tensor
            for name, tensor in parameters.items()
            if tensor.dim() == 2 and len(tensor) == count and name.rpartition(".")[0] in owners
        }
        found.append(Stack(count, matrices, vectors, frozenset((*matrices, *vectors))))
    # All experts' rows in one matrix: only a router can say how many experts that are.
    wide = {name: tensor for name, tensor in parameters.items() if tensor.dim() == 2 and tensor.shape[1] == hidden_size}
    for count in sorted({len(tensor) for tensor in wide.values()}):
        flat = {name: tensor for name, tensor in wide.items() if len(tensor) > count and len(tensor) % count == 0}
        if count > 1 and len(flat) in (2, 3):
            matrices = {name: tensor.unflatten(0, (count, -1)) for name, tensor in flat.items()}
            found.append(Stack(count, matrices, {}, frozenset(flat)))
    return [stack for stack in found if stack.num_experts > 1 and len(stack.matrices) > 1]


def _numbered_stacks(parameters: Mapping[str, Tensor]) -> Iterator[Stack]:
    """Yield the parameters of equal shapes whose names differ in a number that counts from 0."""
    groups: dict[str, dict[int, str]] = {}
    for name in parameters:
        for match in re.finditer(r"\d+", name):
            pattern = f"{name[: match.start()]}{{}}{name[match.end() :]}"
            groups.setdefault(pattern, {})[int(match.group())] = name
    stacks: dict[tuple[str, int], dict[str, list[str]]] = {}
    for pattern, members in groups.items():
        names = [members[index] for index in sorted(members)]
        whole = len(members) > 1 and sorted(members) == list(range(len(members)))
        if whole and len({parameters[name].shape for name in names}) == 1:
            container = (
                pattern.partition("{}")[0].rpartition(".")[0]
                if pattern.endswith("{}")
                else pattern[: pattern.index("{}")]
            )
            stacks.setdefault((container, len(names)), {})[pattern] = names
    for (_, count), members_of in stacks.items():
        tensors = {pattern: torch.stack([parameters[name] for name in names]) for pattern, names in members_of.items()}
        yield Stack(
            count,
            {name: tensor for name, tensor in tensors.items() if tensor.dim() == 3},
            {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2},
            frozenset(itertools.chain.from_iterable(members_of.values())),
        )


def arrangements(stack: Stack, hidden_size: int) -> list[ExpertForm]:
    """Return every reading of the stack as up and down matrices, with or without a gate; likely ones first."""
    found: list[tuple[int, ExpertForm]] = []
    if len(stack.matrices) == 3:
        for names in itertools.permutations(stack.matrices):
            for tensors in _three(stack, names, hidden_size):
                found.append((_unlikely(dict(zip(("gate", "up", "down"), names, strict=True))), ExpertForm(tensors)))
    elif len(stack.matrices) == 2:
        for first, second in itertools.permutations(stack.matrices):
            for tensors in _two(stack, first, second, hidden_size):
                found.append((_unlikely({"up": first, "down": second}), ExpertForm(tensors)))
    return [form for _, form in sorted(found, key=lambda item: item[0])]


def _three(stack: Stack, names: tuple[str, ...], hidden_size: int) -> Iterator[dict[str, Tensor]]:
    gate, up, down = (stack.matrices[name] for name in names)
    for gate_in, up_in, down_out in itertools.product(
        _reading_hidden(gate, hidden_size), _reading_hidden(up, hidden_size), _writing_hidden(down, hidden_size)
    ):
        size = down_out.shape[2]
        if gate_in.shape[1] == up_in.shape[1] == size:
            tensors = {"gate_proj": gate_in, "up_proj": up_in, "down_proj": down_out}
            biases = {
                f"{role}_bias": _bias(stack, name, width)
                for role, name, width in zip(("gate", "up", "down"), names, (size, size, hidden_size), strict=True)
            }
            yield {**tensors, **{name: bias for name, bias in biases.items() if bias is not None}}


def _two(stack: Stack, first: str, second: str, hidden_size: int) -> Iterator[dict[str, Tensor]]:
    for up, down in itertools.product(
        _reading_hidden(stack.matrices[first], hidden_size), _writing_hidden(stack.matrices[second], hidden_size)
    ):
        size = down.shape[2]
        bias, down_bias = _bias(stack, first, up.shape[1]), _bias(stack, second, hidden_size)
        common = {"down_proj": down} if down_bias is None else {"down_proj": down, "down_bias": down_bias}
        if up.shape[1] == size:
            yield {"up_proj": up, **common} if bias is None else {"up_proj": up, "up_bias": bias, **common}
        elif up.shape[1] == 2 * size:
            for interleaved, gate_first in itertools.product((False, True), (True, False)):
                parts = _halves(up, interleaved=interleaved)
                tensors = dict(zip(("gate_proj", "up_proj"), parts if gate_first else parts[::-1], strict=True))
                if bias is not None:
                    halves = _halves(bias, interleaved=interleaved)
                    tensors |= dict(zip(("gate_bias", "up_bias"), halves if gate_first else halves[::-1], strict=True))
                yield {**tensors, **common}


def _halves(tensor: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return tensor[:, 0::2], tensor[:, 1::2]
    first, second = tensor.chunk(2, 1)
    return first, second


def _reading_hidden(matrix: Tensor, hidden_size: int) -> list[Tensor]:
    return _oriented(matrix, 2, hidden_size)


def _writing_hidden(matrix: Tensor, hidden_size: int) -> list[Tensor]:
    return _oriented(matrix, 1, hidden_size)


def _oriented(matrix: Tensor, dim: int, size: int) -> list[Tensor]:
    return [candidate for candidate in (matrix, matrix.transpose(1, 2)) if candidate.shape[dim] == size]


def _bias(stack: Stack, matrix: str, size: int) -> Tensor | None:
    """Return the vector of that size whose name is closest to the matrix's, if it is closer to no other matrix."""

    def closeness(left: str, right: str) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )

    for name, vector in stack.vectors.items():
        best = max(closeness(name, other) for other in stack.matrices)
        if vector.shape[1] == size and closeness(name, matrix) == best:
            return vector
    return None


def _unlikely(roles: Mapping[str, str]) -> int:
    """Return how many names do not sound like their role."""
    return sum(not any(hint in name.lower() for hint in ROLE_HINTS[role]) for role, name in roles.items())


def outputs_of(form: ExpertForm, inputs: Tensor, *, factors: Tensor | None = None) -> Tensor:
    """Return what every expert gives for every token: [N, hidden] -> float64 [N, experts, hidden]. factors [N,
    experts]: on what each expert gets."""
    return _activated(form, *_before(form, inputs.double(), factors))


def _before(form: ExpertForm, inputs: Tensor, factors: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
    """Return the gate and up of every expert before the activation: float64 [N, experts, intermediate]."""

    def linear(role: str) -> Tensor:
        product = torch.einsum("nh,eih->nei", inputs, form.tensors[f"{role}_proj"].double())
        product = product if factors is None else product * factors[:, :, None]
        return product + form.tensors[f"{role}_bias"].double() if f"{role}_bias" in form.tensors else product

    return (linear("gate") if form.gated else None), linear("up")


def _activated(form: ExpertForm, gate: Tensor | None, up: Tensor) -> Tensor:
    function = ACTIVATIONS[form.activation]
    if gate is None:
        inner = function(up)
    else:
        if form.clamp is not None:
            gate, up = gate.clamp(max=form.clamp), up.clamp(-form.clamp, form.clamp)
        inner = function(gate) * (up + form.up_offset)
    outputs = torch.einsum("nei,ehi->neh", inner, form.tensors["down_proj"].double())
    return outputs + form.tensors["down_bias"].double() if "down_bias" in form.tensors else outputs


def solve(columns: Tensor, outputs: Tensor) -> Solution:
    """Return the weights [N, C] with sum of weight * column closest to outputs; columns [N, C, hidden], outputs [N,
    hidden]."""
    outputs = outputs.double()
    gram = columns @ columns.transpose(1, 2)
    scale = gram.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    scaled = scale[:, :, None] * gram * scale[:, None, :] + 1e-13 * torch.eye(columns.shape[1], dtype=gram.dtype)
    right = scale * torch.einsum("nch,nh->nc", columns, outputs)
    weights = torch.linalg.solve(scaled, right) * scale
    residual = outputs - torch.einsum("nc,nch->nh", weights, columns)
    size = outputs.square().mean(1).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    return Solution(weights, float((residual.abs().amax(1) / size).nan_to_num(torch.inf).max()))


def _names(config: Mapping[str, Any], *, usual: bool = False) -> list[str]:
    """Return the activations to try, those that the config names first; usual: without the rarest."""
    named = [name for name in strings_of(config) if name in ACTIVATIONS]
    every = dict.fromkeys((*named, "silu", "gelu", "gelu_pytorch_tanh", "relu2", *ACTIVATIONS))
    # Names of one function differ by rounding only: the config's is kept.
    unique = {ACTIVATIONS[name]: name for name in reversed(every)}
    names = [name for name in every if unique[ACTIVATIONS[name]] == name]
    return [name for name in names if name in (*named, *CLAMPED_ACTIVATIONS)] if usual else names


@dataclass(frozen=True)
class Fit:
    """The form that explains the outputs, how well, and how well the best other one does."""

    form: ExpertForm
    error: float
    runner_up: tuple[str, float] | None


class _Search:
    """Tries hypotheses on some tokens, and remembers how they did."""

    def __init__(self, inputs: Tensor, outputs: Tensor, others: Tensor) -> None:
        rows = torch.linspace(0, len(inputs) - 1, min(SCREENED_TOKENS, len(inputs))).long()
        self.inputs, self.outputs, self.others = inputs[rows].double(), outputs[rows], others[rows].double()
        # Of each scale of inputs some: most hypotheses fail on these already.
        self.mixed = torch.arange(0, len(rows), 6)
        self.smallest = self.inputs.norm(dim=1).topk(min(8, len(rows)), largest=False).indices
        self.tried: list[tuple[float, ExpertForm]] = []
        self._before: dict[int, tuple[Tensor | None, Tensor]] = {}

    def error(self, form: ExpertForm, rows: Tensor | slice) -> float:
        """Return the error of the best combination of what experts of this form give."""
        key = id(form.tensors)
        if key not in self._before:
            self._before[key] = _before(form, self.inputs)
        gate, up = self._before[key]
        columns = _activated(form, None if gate is None else gate[rows], up[rows])
        return solve(torch.cat((columns, self.others[rows]), 1), self.outputs[rows]).error

    def first(self, forms: Iterable[ExpertForm]) -> ExpertForm | None:
        """Return the first form that explains all of these tokens."""
        for form in forms:
            error = self.error(form, self.mixed)
            error = self.error(form, slice(None)) if error < TOLERANCE else error
            self.tried.append((error, form))
            if error < TOLERANCE:
                return form
        return None


def fit_experts(
    forms: list[ExpertForm], inputs: Tensor, outputs: Tensor, others: Tensor, config: Mapping[str, Any]
) -> Fit:
    """Return the best form of all: the first within tolerance, else the closest. others: [N, C, hidden], columns of
    shared experts, which take part with a weight of their own."""
    search = _Search(inputs, outputs, others)
    names = _names(config)
    best = search.first(replace(form, activation=name) for form in forms for name in names)
    if best is None:
        best = search.first(_clamped(forms, config, search))
    elif len(search.tried) == 1:  # right at once: the margin is that of other activations
        for name in names[1:8]:
            form = replace(best, activation=name)
            search.tried.append((search.error(form, slice(None)), form))
    found = best or min(search.tried, key=lambda item: item[0])[1]
    columns = torch.cat((outputs_of(found, inputs), others.double()), 1)
    rejected = min((item for item in search.tried if item[1] is not found), key=lambda item: item[0], default=None)
    return Fit(
        found, solve(columns, outputs).error, None if rejected is None else (rejected[1].describe(), rejected[0])
    )


def _clamped(forms: Sequence[ExpertForm], config: Mapping[str, Any], search: _Search) -> Iterator[ExpertForm]:
    """Yield the forms with clamps and offsets. Small inputs stay within most clamps, so that the forms which do well
    there come first."""
    plain = [
        replace(form, activation=name, up_offset=offset)
        for form, name, offset in itertools.product(forms, _names(config, usual=True), (0.0, 1.0))
        if form.gated
    ]
    ranked = sorted(plain, key=lambda form: search.error(form, search.smallest))
    likely = dict.fromkeys((*numbers_of(config, named=CLAMP_HINTS), *USUAL_CLAMPS))
    rest = [number for number in numbers_of(config) if 0.05 < number <= 128 and number not in likely]
    yield from (form for form in ranked if form.up_offset)
    for clamps in (likely, rest):
        yield from (replace(form, clamp=clamp) for form in ranked[:RANKED_FORMS] for clamp in clamps)
