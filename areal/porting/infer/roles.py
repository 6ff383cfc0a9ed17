"""Which module of a traced model plays which part: known by what ran, in which order, on which tensors.

Names are read only to find a module's parent. What a part computes is the business of the other files; here a module
counts as attention because a softmax over keys ran inside it, and as a norm because it acts on hidden states without a
matrix of its own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from areal.porting.infer.replay import mixes_tokens
from areal.porting.infer.tensors import MATRIX_DIMENSIONS, inside, matrix_call, same
from areal.porting.records import LayerRoles, ModelRoles, UnsupportedError

if TYPE_CHECKING:
    from areal.porting.records import ModuleCall, SoftmaxCall, Trace

HIDDEN_DIMENSIONS = 3
SCORE_DIMENSIONS = 4


def find_roles(model: nn.Module, trace: Trace) -> ModelRoles:
    """Return the parts of `model`. Raises UnsupportedError where it is not a chain of blocks of attention and
    feed-forward."""
    blocks = find_blocks(model, trace)
    embedding, layer_embedding = _embeddings(model, trace, blocks)
    layers = tuple(_Block(model, trace, name).roles() for name in blocks)
    before, after = _around(model, trace, blocks)
    head, dense = _head(model, trace, after)
    norms = [name for name in after if name != head and is_norm_like(model, trace, name)]
    head_norm = [name for name in norms if dense is not None and after.index(name) > after.index(dense)]
    if len(head_norm) > 1:
        raise UnsupportedError("several norms before the head", where=head_norm[1], detail=", ".join(head_norm))
    final_norm = [name for name in norms if name not in head_norm]
    if len(final_norm) > 1:
        raise UnsupportedError("several norms after the last layer", where=final_norm[1], detail=", ".join(final_norm))
    width = trace.calls[blocks[0]][0].input.numel()
    embedding_norm = [
        name
        for name in before
        if name != embedding and is_norm_like(model, trace, name) and trace.calls[name][0].output.numel() == width
    ]
    if len(embedding_norm) > 1:
        raise UnsupportedError("several norms of embeddings", where=embedding_norm[1], detail=", ".join(embedding_norm))
    return ModelRoles(
        embedding=embedding,
        layers=layers,
        final_norm=final_norm[0] if final_norm else None,
        head=head,
        embedding_norm=embedding_norm[0] if embedding_norm else None,
        layer_embedding=layer_embedding,
        head_dense=dense,
        head_norm=head_norm[0] if head_norm else None,
    )


# ------------------------------------------------------------------------------------------------------- whole model


def find_blocks(model: nn.Module, trace: Trace) -> list[str]:
    """Return the modules that are called once each, one on the output of the other, and hold most parameters."""
    groups: dict[str, list[str]] = {}
    for name, calls in trace.calls.items():
        if name and all(_is_hidden(call, trace) for call in calls):
            parent = name.rpartition(".")[0]
            listed = isinstance(model.get_submodule(parent), nn.ModuleList | nn.ModuleDict)
            kind = "" if listed else type(model.get_submodule(name)).__name__
            groups.setdefault(f"{parent}|{kind}", []).append(name)
    if not groups:
        raise UnsupportedError(
            "no module maps hidden states to hidden states", where="model", detail="nothing to analyse"
        )
    sizes = {key: sum(_size(model, name) for name in names) for key, names in groups.items()}
    attending = [key for key, names in groups.items() if any(_softmaxes(trace, name) for name in names)]
    candidates = [key for key in attending or groups if key.partition("|")[0] or len(groups[key]) > 1] or list(groups)
    # Of nested groups (block, attention inside the block) the outermost list of several members holds the most.
    best = max(candidates, key=lambda key: (len(groups[key]) > 1, sizes[key], len(groups[key])))
    if len(groups[best]) == 1:  # one layer: the list with the fewest ancestors that is no wrapper of the whole model
        lists = [key for key in candidates if isinstance(model.get_submodule(key.partition("|")[0]), nn.ModuleList)]
        best = max(lists or candidates, key=lambda key: sizes[key])
    blocks = sorted(groups[best], key=lambda name: trace.calls[name][0].order)
    _check_chain(trace, blocks)
    return blocks


def _check_chain(trace: Trace, blocks: list[str]) -> None:
    for name in blocks:
        calls = trace.calls[name]
        if len(calls) != 1:
            raise UnsupportedError("a layer that runs several times", where=name, detail=f"{len(calls)} calls")
        if calls[0].input.ndim != HIDDEN_DIMENSIONS:
            shape = tuple(calls[0].input.shape)
            raise UnsupportedError("several residual streams", where=name, detail=f"hidden states of shape {shape}")
    for first, second in itertools.pairwise(blocks):
        if not same(trace.calls[second][0].input, trace.calls[first][0].output):
            detail = f"its input is not the output of {first}"
            raise UnsupportedError("something between two layers", where=second, detail=detail)


def _embeddings(model: nn.Module, trace: Trace, blocks: list[str]) -> tuple[str, str | None]:
    """Return the table of the tokens, and a second one of which each block gets a part."""
    start = trace.calls[blocks[0]][0]
    found = []
    for name, calls in trace.calls.items():
        if not calls[0].input.is_floating_point() and same_tokens(calls[0].input, trace.tokens):
            weight = getattr(model.get_submodule(name), "weight", None)
            if isinstance(weight, torch.Tensor) and _depends_on_tokens(calls[0], weight, trace):
                found.append(name)
    declared = cast("Any", model).get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    main = [name for name in found if model.get_submodule(name) is declared] or found[:1]
    if not main:
        raise UnsupportedError(
            "no embedding of the tokens", where="model", detail="no module with a table gets the tokens"
        )
    if trace.calls[main[0]][0].order > start.order:
        raise UnsupportedError("embedding inside a layer", where=main[0], detail="it runs after the first layer began")
    others = [name for name in found if model.get_submodule(name) is not model.get_submodule(main[0])]
    if not others:
        return main[0], None
    size, rest = divmod(trace.calls[others[0]][0].output.numel(), trace.tokens.numel() * len(blocks))
    given = [given_to(trace.calls[name][0], size) for name in blocks]
    if len(others) > 1 or rest or any(each is None for each in given):
        detail = f"the tokens are embedded a second time, besides {main[0]}"
        raise UnsupportedError("further embeddings of the tokens", where=others[0], detail=detail)
    return main[0], others[0]


def given_to(call: ModuleCall, size: int) -> torch.Tensor | None:
    """Return what a block gets of its tokens besides hidden states: a tensor [B, T, size]."""
    shape = (*call.input.shape[:-1], size)
    return next((each for each in call.inputs.values() if each.shape == shape and each is not call.input), None)


def _depends_on_tokens(call: ModuleCall, weight: torch.Tensor, trace: Trace) -> bool:
    """Return whether a module with a table looks tokens up; tables of positions may be handed the tokens for their
    shape."""
    if weight.ndim != MATRIX_DIMENSIONS or not call.output.is_floating_point():
        return False
    batch, length = trace.tokens.shape
    if call.output.numel() % (batch * length):
        return False
    output = call.output.reshape(batch, length, -1)
    return not same(output[0], output[1])


def same_tokens(value: torch.Tensor, tokens: torch.Tensor) -> bool:
    """Return whether integer input `value` is the batch of tokens."""
    return value.numel() == tokens.numel() and bool((value.reshape(-1) == tokens.reshape(-1)).all())


def _around(model: nn.Module, trace: Trace, blocks: list[str]) -> tuple[list[str], list[str]]:
    """Return the innermost called modules on hidden states before the first and after the last block, in calling
    order."""
    first, last = trace.calls[blocks[0]][0].order, trace.calls[blocks[-1]][0].order
    names = [name for name in trace.calls if name and not any(inside(name, block) for block in blocks)]
    leaves = [name for name in names if not any(other != name and inside(other, name) for other in names)]
    leaves = [name for name in leaves if not any(inside(block, name) for block in blocks)]
    leaves.sort(key=lambda name: trace.calls[name][0].order)
    before = [name for name in leaves if trace.calls[name][0].order < first]
    return before, [name for name in leaves if trace.calls[name][0].order > last]


def _head(model: nn.Module, trace: Trace, after: list[str]) -> tuple[str, str | None]:
    """Return the projection to the vocabulary, and a matrix before it that keeps the width, if there is one."""
    vocabulary = trace.logits.shape[-1]
    found = []
    for name in after:
        matrix = matrix_call(model.get_submodule(name), trace.calls[name][0])
        if matrix is not None:
            found.append((name, matrix.weight.shape))
    heads = [name for name, (size, _) in found if size == vocabulary]
    if not heads:
        raise UnsupportedError(
            "no projection to the vocabulary", where="model", detail=f"{len(found)} matrices after the layers"
        )
    others = [name for name, _ in found if name != heads[-1]]
    square = [name for name, (size, given) in found if name in others and size == given]
    if len(others) > 1 or others != square:
        raise UnsupportedError(
            "matrices between the last layer and the head", where=others[0], detail=", ".join(others)
        )
    return heads[-1], square[0] if square else None


# --------------------------------------------------------------------------------------------------------- one block


class _Block:
    """The parts of one block, by walking down from it."""

    def __init__(self, model: nn.Module, trace: Trace, name: str) -> None:
        self.model = model
        self.trace = trace
        self.name = name
        self.width = trace.calls[name][0].input.shape[-1]
        softmaxes = _softmaxes(self.trace, self.name)
        found = {self._holder(softmax) for softmax in softmaxes}
        if len(found) > 1:
            raise UnsupportedError("several attentions in a layer", where=self.name, detail=", ".join(sorted(found)))
        self.attention = found.pop() if found else self._stateful()
        self.norms: list[str] = []
        self.carriers: list[str] = []
        """Modules with matrices outside attention."""

    def roles(self) -> LayerRoles:
        self._walk(self.name)
        self.norms += self._edge_norms(self.attention) if self.attention else []
        beside, layer_input = self._beside(), self._layer_input()
        experts_beside = None
        shapes = {name: [each.ndim for each in self.model.get_submodule(name).parameters()] for name in self.carriers}
        # Nothing but matrices of several experts: another module chooses between them.
        stacked = [name for name, found in shapes.items() if len(found) > 1 and min(found) > MATRIX_DIMENSIONS]
        if len(self.carriers) == 3 and len(stacked) == 1:
            # What the experts get besides hidden states is what their router gives.
            given = self.trace.calls[stacked[0]][0].inputs.values()
            routers = [name for name in self.carriers if any(map(self.trace.calls[name][0].place_of, given))]
            if len(routers) == 1:
                experts_beside = routers[0], stacked[0]
                self.carriers = [name for name in self.carriers if name not in experts_beside]
        feed_forward, shared = self._feed_forward()
        order = lambda name: self.trace.calls[name][0].order  # noqa: E731 - a key, used twice
        return LayerRoles(
            block=self.name,
            attention=self.attention,
            feed_forward=feed_forward,
            norms=tuple(sorted(dict.fromkeys(self.norms), key=order)),
            shared_feed_forward=shared,
            beside=beside,
            experts_beside=experts_beside,
            layer_input=layer_input,
        )

    def _layer_input(self) -> tuple[str, str] | None:
        """Take the two matrices out of the carriers between which the block gets something of its tokens."""
        matrices = [name for name in self.carriers if _own_matrix(self.model.get_submodule(name))]
        if len(matrices) != 2 or len(self.carriers) < 3:
            return None
        gate, projection = (self.trace.calls[name][0] for name in matrices)
        size = gate.output.shape[-1]
        if projection.input.shape != gate.output.shape or given_to(self.trace.calls[self.name][0], size) is None:
            return None
        self.carriers = [name for name in self.carriers if name not in matrices]
        return gate.name, projection.name

    def _beside(self) -> str | None:
        """Take the only part beside softmax attention that mixes tokens out of the carriers, where there are several of
        other inputs."""
        others = [name for name in self.carriers if name and not _own_matrix(self.model.get_submodule(name))]
        if self.attention is None or len(others) != 2 or len(self.carriers) != 2:
            return None
        first, second = (self.trace.calls[name][0].input for name in others)
        mixing = [] if same(first, second) else [each for each in others if mixes_tokens(self.model, each, self.trace)]
        if len(mixing) != 1:
            return None
        self.carriers.remove(mixing[0])
        return mixing[0]

    def _holder(self, softmax: SoftmaxCall) -> str:
        """Return the innermost module around the softmax that projects hidden states before it and after it."""
        name = softmax.module
        while inside(name, self.name) and name != self.name:
            call = self.trace.calls.get(name, (None,))[0]
            if call is not None and call.input.shape[-1] == self.width and self._projects(name, softmax.order):
                return name
            name = name.rpartition(".")[0]
        detail = "the projections around the softmax are in no module of their own"
        raise UnsupportedError("attention spread over its layer", where=self.name, detail=detail)

    def _stateful(self) -> str | None:
        """Return the part of a block without softmax attention that mixes its tokens: where a change of a token changes
        what comes out for later ones. None where no part does."""
        found = self._mixing(self.name)
        kind = type(self.model.get_submodule(self.name)).__name__
        if len(found) > 1:
            detail = f"in {kind} tokens are mixed by {', '.join(found)}"
            raise UnsupportedError("several mixers in a layer", where=self.name, detail=detail)
        return found[0] if found else None

    def _mixing(self, name: str) -> list[str]:
        """Return the outermost parts below `name` that mix tokens from hidden states to hidden states, or what they
        wrap."""
        found: list[str] = []
        for child in self._children(name):
            call = self.trace.calls[child][0]
            if _is_hidden(call, self.trace) and call.input.shape[-1] == self.width:
                if not mixes_tokens(self.model, child, self.trace):
                    continue
                matrices = _matrices(self.model.get_submodule(child))
                inner = [
                    each
                    for each in self._mixing(child)
                    if _matrices(self.model.get_submodule(each)) == matrices
                    and any(map(_own_matrix, self.model.get_submodule(each).children()))
                ]
                found += inner or [child]
        return found

    def _projects(self, name: str, order: int) -> bool:
        orders = [
            call.order
            for inner, calls in self.trace.calls.items()
            if inside(inner, name) and _own_matrix(self.model.get_submodule(inner))
            for call in calls
        ]
        return any(other < order for other in orders) and any(other > order for other in orders)

    def _children(self, name: str) -> list[str]:
        """Return the called modules below `name` with no called module in between, in calling order."""
        below = [other for other in self.trace.calls if other != name and inside(other, name)]
        direct = [other for other in below if not any(inside(other, parent) for parent in below if parent != other)]
        return sorted(direct, key=lambda other: self.trace.calls[other][0].order)

    def _walk(self, name: str) -> None:
        for child in self._children(name):
            if child == self.attention:
                continue
            if self.attention and inside(self.attention, child):
                self._walk(child)
            elif is_norm_like(self.model, self.trace, child):
                self.norms.append(child)
            elif _matrices(self.model.get_submodule(child)):
                self.carriers.append(self._innermost(child))

    def _innermost(self, name: str) -> str:
        """Past wrappers: the module inside `name` that holds all its matrices, collecting norms on the way."""
        total = _matrices(self.model.get_submodule(name))
        for child in self._children(name):
            if _matrices(self.model.get_submodule(child)) == total and self._children(child):
                self.norms += [other for other in self._children(name) if is_norm_like(self.model, self.trace, other)]
                return self._innermost(child)
        self.norms += self._edge_norms(name)
        return name

    def _edge_norms(self, name: str) -> list[str]:
        """Return the norms inside a part that come before its first matrix or after its last one: the block's, in
        truth."""
        orders = [
            call.order
            for inner, calls in self.trace.calls.items()
            if inside(inner, name) and inner != name and _own_matrix(self.model.get_submodule(inner))
            for call in calls
        ]
        if not orders:
            return []
        return [
            child
            for child in self._children(name)
            if is_norm_like(self.model, self.trace, child)
            and self.trace.calls[child][0].input.shape[-1] == self.width
            and not min(orders) < self.trace.calls[child][0].order < max(orders)
        ]

    def _feed_forward(self) -> tuple[str | None, str | None]:
        if not self.carriers:
            if self.attention is None:
                detail = f"no part of {type(self.model.get_submodule(self.name)).__name__} has matrices"
                raise UnsupportedError("a layer that mixes no tokens", where=self.name, detail=detail)
            return None, None
        if len(self.carriers) == 1 and not _own_matrix(self.model.get_submodule(self.carriers[0])):
            return self.carriers[0], None
        if all(_own_matrix(self.model.get_submodule(name)) for name in self.carriers):
            return "", None
        modules = [name for name in self.carriers if not _own_matrix(self.model.get_submodule(name))]
        inputs = [self.trace.calls[name][0].input for name in modules]
        if len(modules) == len(self.carriers) == 2 and same(inputs[0], inputs[1]):
            routed, shared = sorted(modules, key=lambda name: -_size(self.model, name))
            return routed, shared
        detail = f"besides attention it runs {', '.join(self.carriers)}"
        raise UnsupportedError("a layer of more than attention and feed-forward", where=self.name, detail=detail)


# ----------------------------------------------------------------------------------------------------------- helpers


def is_norm_like(model: nn.Module, trace: Trace, name: str) -> bool:
    """Return whether a module acts on hidden states without a matrix, and changes them: a norm, unless its maths
    differ."""
    call = trace.calls[name][0]
    if call.input.shape != call.output.shape or not call.input.is_floating_point() or call.input.ndim == 0:
        return False
    module = model.get_submodule(name)
    if any(parameter.ndim > 1 for parameter in module.parameters()):
        return False
    if next(module.parameters(), None) is None:
        # Whether a module without parameters gives rows of one length; an activation or a dropout does not.
        length = call.output.detach().square().mean(-1)
        shorter = call.input.detach().square().mean(-1)
        varies = float(shorter.std() / shorter.mean().clamp_min(1e-30))
        return float(length.std() / length.mean().clamp_min(1e-30)) < min(0.05, 0.5 * varies)
    return not same(call.output, call.input)


def _is_hidden(call: ModuleCall, trace: Trace) -> bool:
    batch, length = trace.tokens.shape
    return (
        call.input.is_floating_point()
        and call.input.ndim >= HIDDEN_DIMENSIONS
        and call.input.shape == call.output.shape
        and batch in call.input.shape
        and length in call.input.shape
    )


def _softmaxes(trace: Trace, name: str) -> list[SoftmaxCall]:
    """Return the softmaxes over keys inside `name`; those of routers have no query dimension."""
    length = trace.tokens.shape[1]
    return [
        softmax
        for softmax in trace.softmaxes
        if inside(softmax.module, name)
        and softmax.scores.ndim == SCORE_DIMENSIONS
        and softmax.scores.shape[2] == length
    ]


def _size(model: nn.Module, name: str) -> int:
    return sum(parameter.numel() for parameter in model.get_submodule(name).parameters())


def _matrices(module: nn.Module) -> int:
    return sum(1 for parameter in module.parameters() if parameter.ndim >= MATRIX_DIMENSIONS)


def _own_matrix(module: nn.Module) -> bool:
    return any(
        parameter.ndim == MATRIX_DIMENSIONS for parameter in module.parameters(recurse=False)
    ) and not isinstance(module, nn.Embedding)
