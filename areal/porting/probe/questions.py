"""Four questions to an instance before it is analysed, which decide whether a family can say what it computes at all.

Do two equal calls agree? Do other rows of the batch change a row? Do later tokens change earlier ones? Does a longer
sequence? A "yes" to one of the last three, or a "no" to the first, is refused by name and with the first module that
shows it: noise, state that is kept in modules, statistics over a batch, attention that looks ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from areal.porting.probe.instance import call_options, logits, make_tokens
from areal.porting.probe.subject import quiet
from areal.porting.records import ArchitectureRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.porting.probe.instance import Instance

LENGTH: Final = 24
"""Of the sequences that are compared."""
TOLERANCE: Final = 1e-3
"""Of logits, times max(1, their standard deviation): far above rounding, far below any feature."""
BY_LENGTH: Final = frozenset({"dynamic", "longrope"})
"""Rotary types whose tables depend on the length, as transformers computes them: the analysis knows what they do."""


@dataclass(frozen=True)
class _Question:
    feature: str
    detail: str
    first: Tensor
    second: Tensor
    seen: Callable[[Tensor], Tensor]
    """The part of an output [B, T, ...] that must not differ."""


def refuse_dependences(instance: Instance) -> None:
    """Ask all questions. Raises ArchitectureRefusedError with the first that has the wrong answer."""
    half = LENGTH // 2
    tokens = make_tokens(instance, batch=2, length=LENGTH, seed=1)
    others = make_tokens(instance, batch=2, length=LENGTH, seed=2)
    rows, later = tokens.clone(), tokens.clone()
    rows[1:], later[:, half:] = others[1:], others[:, half:]
    questions = [
        _Question(
            "logits that differ between two equal calls",
            "noise, or something that modules keep from one call to the next, changes them by {0:.2g}",
            tokens,
            tokens,
            lambda output: output,
        ),
        _Question(
            "logits of a row that depend on other rows",
            "another second row changes the first by {0:.2g}: statistics over the batch, or tokens numbered across it",
            tokens,
            rows,
            lambda output: output[:1],
        ),
        _Question(
            "not causal as configured: later tokens change earlier logits",
            "other tokens from position 12 on change the logits before it by {0:.2g}; only decoders can be analysed",
            tokens,
            later,
            lambda output: output[:, :half],
        ),
    ]
    if not _has_type(instance.config, BY_LENGTH):
        questions.append(
            _Question(
                "logits that depend on the length of the sequence",
                "the same 12 tokens alone have logits that differ by {0:.2g} from those inside 24",
                tokens,
                tokens[:, :half],
                lambda output: output[:, :half],
            )
        )
    for question in questions:
        before, after = (question.seen(logits(instance, each)) for each in (question.first, question.second))
        difference = float((before - after).abs().max())
        if difference > TOLERANCE * max(1.0, float(before.std())):
            where = _place(instance, question)
            architecture = instance.subject.architecture
            raise ArchitectureRefusedError(
                question.feature,
                where=where,
                detail=f"{architecture}: {question.detail.format(difference)}",
            )


def _has_type(config: Any, types: frozenset[str]) -> bool:
    """Return whether rotary settings anywhere in a config are of one of the types."""
    if isinstance(config, dict):
        kinds = {config.get("rope_type"), config.get("type")}
        return bool(kinds & types) or any(_has_type(value, types) for value in config.values())
    return isinstance(config, list) and any(_has_type(value, types) for value in config)


def _place(instance: Instance, question: _Question) -> str:
    """Return the first module whose output differs though its input does not; "model" where none is found."""
    first, second = (_outputs(instance, each) for each in (question.first, question.second))
    for (name, given, made), (other, also_given, also_made) in zip(first, second, strict=False):
        if name != other:
            break
        if _differ(question, made, also_made):
            inside = not _differ(question, given, also_given)
            return (name if inside else name.rpartition(".")[0]) or "model"
    return "model"


def _differ(question: _Question, first: Tensor | None, second: Tensor | None) -> bool:
    """Return whether two outputs differ in what the question asks for; those of other shapes say nothing."""
    if first is None or second is None or not first.is_floating_point():
        return False
    if first.shape[:2] != question.first.shape[:2] or second.shape[:2] != question.second.shape[:2]:
        return False
    before, after = question.seen(first).float(), question.seen(second).float()
    return float((before - after).abs().max()) > TOLERANCE * max(1e-3, float(before.std()))


@torch.no_grad()
def _outputs(instance: Instance, tokens: Tensor) -> list[tuple[str, Tensor | None, Tensor | None]]:
    """Return name, input and output of every module that was called, in the order in which they ended."""
    found: list[tuple[str, Tensor | None, Tensor | None]] = []

    def kept(name: str) -> Any:
        def keep(_: Any, arguments: Any, keywords: Any, output: Any) -> None:
            found.append((name, _tensor((*arguments, *keywords.values())), _tensor(output)))

        return keep

    named = [(name, module) for name, module in instance.model.named_modules() if name]
    handles = [module.register_forward_hook(kept(name), with_kwargs=True) for name, module in named]
    try:
        with quiet():
            instance.model(tokens, **call_options(instance.model))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _tensor(value: Any) -> Tensor | None:
    """Return the first tensor of floats in what a module got or gave."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.ndim > 2 else None
    parts = value if isinstance(value, list | tuple) else getattr(value, "to_tuple", tuple)()
    return next((found for part in parts if (found := _tensor(part)) is not None), None)
