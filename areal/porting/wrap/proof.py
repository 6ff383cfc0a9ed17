"""Proves how a text model lies in its wrapper: equal logits, names on disk, when the head is tied.

All comparisons are between classes of transformers: the whole, and the text model alone, whose family is proven by
itself. What comes out is all that `areal.models.wrapping.Wrapper` says.
"""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save_file

from areal.models.wrapping import TIED, NameLayout
from areal.porting.probe.instance import MEMORY_FOLDER, call_options, export, logits_of, make_tokens
from areal.porting.probe.subject import quiet
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.wrap.whole import blank, whole_content

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from areal.porting.probe.instance import Instance
    from areal.porting.wrap.whole import Wrapped

TOLERANCE: Final = 5e-5
"""Largest difference of logits, over the larger of 1 and their standard deviation."""
LENGTHS: Final = (40, 7)
_LAYER: Final = re.compile(r"^.*?(?=\.\d+\.|[^.]+\.[^.]+$)")
"""What is before the layer in a name, or before its last two parts."""
CHOICES: Final = (True, False, None)


def difference(whole: Instance, alone: Instance, tokens: Sequence[Tensor] | None = None) -> float:
    """Return the largest difference of text logits, in units of the tolerance; infinite where shapes differ or a number
    is none. Raises `SubjectError` when the forward of one fails."""
    worst = 0.0
    for row in tokens or texts(alone):
        theirs, ours = text_logits(whole, row), text_logits(alone, row)
        if theirs.shape != ours.shape:
            return float("inf")
        found = float((theirs - ours).abs().max()) / (TOLERANCE * max(1.0, float(ours.std())))
        worst = max(worst, found if math.isfinite(found) else float("inf"))
    return worst


@torch.no_grad()
def text_logits(instance: Instance, tokens: Tensor) -> Tensor:
    """Return the logits of text alone, [B, T, vocab]. Raises `SubjectError` when the forward fails."""
    with quiet():
        try:
            return logits_of(instance.model(input_ids=tokens, **call_options(instance.model)))
        except Exception as error:  # foreign code fails in any way
            text = " ".join(str(error).split())[:300]
            architecture = instance.subject.architecture
            raise SubjectError(f"{architecture} computes no text alone: {type(error).__name__}: {text}") from error


def texts(alone: Instance) -> list[Tensor]:
    """Return token rows [2, T] of several lengths."""
    return [make_tokens(alone, batch=2, length=length, seed=number) for number, length in enumerate(LENGTHS)]


def require_equal(whole: Instance, alone: Instance, what: str) -> float:
    """Return the difference of text logits. Raises `UnsupportedError` where it is more than rounding."""
    found = difference(whole, alone)
    if found > 1.0:
        raise UnsupportedError(
            "a wrapper that computes something else than its text model",
            where=whole.subject.architecture,
            detail=f"{what}: logits differ by {found:.3g} times the tolerance",
        )
    return found


# ------------------------------------------------------------------------------------------------------------ names


def find_layouts(pairs: Sequence[tuple[Instance, Instance]]) -> tuple[NameLayout, ...]:
    """Return how the whole stores the text model's tensors: as transformers writes it, then as it holds it in memory,
    where it reads that as well. Raises `UnsupportedError` for names that no prefix says."""
    written = _layout([(export(whole), export(alone)) for whole, alone in pairs], pairs[0][0].subject.architecture)
    try:
        held = _layout([(_held(whole), export(alone)) for whole, alone in pairs], pairs[0][0].subject.architecture)
    except UnsupportedError:
        held = written
    # Other parts alone may have other names in memory: where all of these are kept anyway, nothing tells them apart.
    same = held.prefixes == written.prefixes and {*held.kept} <= {*written.kept}
    layouts = (written,) if same else (written, held)
    read = [all(_reloads(whole, alone, each, written) for whole, alone in pairs) for each in layouts]
    if not read[0]:
        raise UnsupportedError(
            "names that transformers writes and does not read",
            where=pairs[0][0].subject.architecture,
            detail=f"prefixes {dict(written.prefixes)}"[:200],
        )
    return tuple(each for each, is_read in zip(layouts, read, strict=True) if is_read)


def _held(whole: Instance) -> dict[str, Tensor]:
    """Return the tensors in memory by their names there; a tied head once."""
    tensors: dict[str, Tensor] = whole.model.state_dict()
    head = whole.model.get_output_embeddings()
    embedding = whole.model.get_input_embeddings()
    if head.weight is embedding.weight:
        names = [name for name, tensor in tensors.items() if tensor.data_ptr() == head.weight.data_ptr()]
        inside = next((name for name in names if "embed" in name), names[0])
        tensors = {name: tensor for name, tensor in tensors.items() if name == inside or name not in names}
    return tensors


def _layout(pairs: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]], where: str) -> NameLayout:
    matched: dict[str, str] = {}
    others: list[str] = []
    for whole, alone in pairs:
        found = _matched(whole, alone, where)
        for own, theirs in found.items():
            if matched.setdefault(own, theirs) != theirs:
                raise UnsupportedError(
                    "names in a wrapper that depend on its config", where=own, detail=f"{matched[own]} and {theirs}"
                )
        others += [name for name in whole if name not in found.values()]
    return NameLayout(prefixes=_prefixes(matched), kept=_modules(others, list(matched.values())))


def _prefixes(matched: Mapping[str, str], before: str = "") -> tuple[tuple[str, str], ...]:
    """Return the fewest beginnings that give all names, the longest first."""
    after = {theirs.removesuffix(own.removeprefix(before)) for own, theirs in matched.items()}
    if len(after) == 1 and all(theirs.endswith(own.removeprefix(before)) for own, theirs in matched.items()):
        return ((before, after.pop()),)
    groups: dict[str, dict[str, str]] = {}
    for own, theirs in matched.items():
        part, dot, _ = own.removeprefix(before).partition(".")
        groups.setdefault(f"{before}{part}{dot}", {})[own] = theirs
    if len(groups) == 1 and before in groups:
        raise UnsupportedError("names in a wrapper that no prefix says", where=before, detail=str(after)[:200])
    found = {pair for prefix, group in groups.items() for pair in _prefixes(group, prefix)}
    return tuple(sorted(found, key=lambda pair: (-len(pair[0]), pair)))


def _matched(whole: Mapping[str, Tensor], alone: Mapping[str, Tensor], where: str) -> dict[str, str]:
    """Return each name of the text model alone with that of the same tensor in the whole."""
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in whole.items():
        by_shape.setdefault(tuple(tensor.shape), []).append(name)
    found: dict[str, str] = {}
    for own, tensor in alone.items():
        same = [name for name in by_shape.get(tuple(tensor.shape), ()) if torch.equal(whole[name], tensor)]
        ending = [name for name in same if _LAYER.sub("", name) == _LAYER.sub("", own)] or same
        if not ending:
            raise UnsupportedError(
                "a tensor of the text model that its wrapper stores in another layout", where=own, detail=where
            )
        found[own] = ending[0]
    return found


def _modules(others: Sequence[str], texts_of: Sequence[str]) -> tuple[str, ...]:
    """Return the outermost modules that hold `others` and nothing of the text model."""
    taken = {name[: place.start()] for name in texts_of for place in re.finditer(r"\.|$", name)}
    found: dict[str, None] = {}
    for name in others:
        ends = [place.start() for place in re.finditer(r"\.|$", name)]
        found[next(name[:end] for end in ends if name[:end] not in taken)] = None
    return tuple(sorted(found))


def _reloads(whole: Instance, alone: Instance, layout: NameLayout, written: NameLayout) -> bool:
    """Return whether transformers loads a folder in this layout as the same model."""
    tensors = export(whole) if layout is written else _held(whole)
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None) as name, quiet():
        folder = Path(name)
        whole.hf_config.save_pretrained(folder)
        save_file(
            {key: tensor.clone().contiguous() for key, tensor in tensors.items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        try:
            again, info = whole.subject.model_class.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32
            )
        except Exception:  # noqa: BLE001 - whatever it is, this layout is not read
            return False
    if any(info.values()):
        return False
    loaded = type(whole)(subject=whole.subject, config=whole.config, hf_config=whole.hf_config, model=again.eval())
    return difference(loaded, alone) <= 1.0


# ------------------------------------------------------------------------------------------------------- tied heads


def find_tied(wrapped: Wrapped, text: Mapping[str, Any]) -> tuple[tuple[bool | None, bool | None, bool], ...]:
    """Return whether the head is tied for what is said outside and inside; without what the class refuses."""
    found = []
    refusal = ""
    for outer in CHOICES:
        for inner in CHOICES:
            if None not in (outer, inner) and outer != inner:
                continue
            own = {name: value for name, value in text.items() if name != TIED}
            own |= {} if inner is None else {TIED: inner}
            around = {} if outer is None else {TIED: outer}
            try:
                model = blank(wrapped.subject, whole_content(wrapped, own, **around))
            except SubjectError as error:
                refusal = str(error)
                continue
            head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
            if head is not None and embedding is not None:
                found.append((outer, inner, head.weight is embedding.weight))
    if not found:
        raise SubjectError(refusal or f"{wrapped.subject.architecture} has no vocabulary head.")
    return tuple(found)
