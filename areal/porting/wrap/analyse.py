"""The analysis of a wrapped model type: what is around its text model, proven, as a report."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.models.registry import MODELS, UNPROVEN
from areal.models.wrapping import TIED
from areal.porting.bind.analyse import analyse, as_json
from areal.porting.family import ArchitectureReport
from areal.porting.probe.instance import build
from areal.porting.probe.tiny import complete
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.wrap.fields import sort_fields
from areal.porting.wrap.inner import find_replaced, restrict
from areal.porting.wrap.proof import find_layouts, find_tied, require_equal
from areal.porting.wrap.whole import build_pair, with_small_parts

if TYPE_CHECKING:
    from areal.porting.probe.instance import Instance
    from areal.porting.wrap.whole import Wrapped

PADDING: Final = "pad_token_id"


def prove_wrapper(wrapped: Wrapped, text: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what `areal.models.wrapping.Wrapper` says of the type, as JSON, with a tiny config of the whole.

    text: config of a tiny text model. Raises `SubjectError`, and `UnsupportedError` with what no wrapper can say.
    """
    text = text or complete(wrapped.inner, {})
    try:
        return _prove_around(wrapped, text)
    except (SubjectError, UnsupportedError) as error:
        if text.get(PADDING, 0) is not None:
            raise
        try:  # some wholes put the padding where images are, and cannot do without (Gemma 4)
            return _prove_around(wrapped, {**text, PADDING: 0})
        except (SubjectError, UnsupportedError):
            raise error from None


def _prove_around(wrapped: Wrapped, text: dict[str, Any]) -> dict[str, Any]:
    try:
        return _prove(with_small_parts(wrapped, text), text)
    except SubjectError as error:
        wider = with_small_parts(wrapped, text, narrow=False)
        if "cannot be saved" not in str(error):
            raise
        return _prove(wider, text)


def _prove(wrapped: Wrapped, text: dict[str, Any]) -> dict[str, Any]:
    where = wrapped.subject.architecture
    tied = find_tied(wrapped, text)
    agreed = [each for each in (False, True) if (each, each, each) in tied]
    if not agreed:
        raise UnsupportedError("no value of tie_word_embeddings that is followed", where=where, detail=str(tied))
    replaced = find_replaced(wrapped, {**text, TIED: agreed[0]})
    pairs: list[tuple[Instance, Instance]] = []
    worst = 0.0
    for each in agreed:
        own = {**text, TIED: each}
        alone = build(wrapped.inner, {**own, **replaced})
        whole, alone = build_pair(wrapped, own, alone=alone, **{TIED: each})
        worst = max(worst, require_equal(whole, alone, f"{TIED}={each}"))
        pairs.append((whole, alone))
    if wrapped.optional:  # text is the same without these parts
        sections = {name: value for name, value in wrapped.sections.items() if name not in wrapped.optional}
        bare = replace(wrapped, sections=sections)
        pair = build_pair(bare, {**text, TIED: agreed[0]}, alone=None, **{TIED: agreed[0]})
        require_equal(*pair, "no optional parts")
    layouts = find_layouts(pairs)
    own = {**text, TIED: agreed[0]}
    restricted = restrict(wrapped, own, replaced)
    found = sort_fields(wrapped, own, pairs[0][1])
    return {
        "model_type": wrapped.subject.model_type,
        "architecture": where,
        "inner_types": [wrapped.inner.model_type],
        "layouts": [{"prefixes": [list(pair) for pair in each.prefixes], "kept": list(each.kept)} for each in layouts],
        "tied": [list(each) for each in tied],
        "placeholders": found.placeholders,
        "sections": sorted(wrapped.sections),
        "idle": list(found.idle),
        "fixed": {name: list(values) for name, values in found.fixed.items()},
        "replaced": replaced,
        "text_fixed": {name: list(values) for name, values in restricted.items()},
        "tiny_config": _short(pairs[0][0]),
        "parity": worst,
    }


def analyse_wrapped(wrapped: Wrapped, *, unit: str = "", tiny: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the report of a wrapped type as JSON: that of its text model, and under "wrapper" what is around it.

    unit: folder of the family that the report is for. The text model is not analysed where another family of the
    registry has it ("registered"): there it is proven.
    """
    started = time.perf_counter()
    inner = wrapped.inner
    target = MODELS.get(inner.model_type, "")
    registered = bool(target) and target != f"areal.models.{unit}:SPEC" and inner.model_type not in UNPROVEN
    if registered:  # what tells it apart is enough
        analysed = ArchitectureReport(
            status="proven",
            model_type=inner.model_type,
            architecture=inner.architecture,
            source=inner.source,
            tiny_config=complete(inner, {}),
        )
    else:
        analysed = analyse(inner, tiny=tiny)
    report = as_json(analysed)
    if report["status"] == "proven":
        try:
            found = prove_wrapper(wrapped, report["tiny_config"])
            report["wrapper"] = {**found, "registered": registered}
        except UnsupportedError as error:
            missing = {"feature": error.feature, "where": error.where, "detail": error.detail}
            names = {"model_type": wrapped.subject.model_type, "architecture": wrapped.subject.architecture}
            report |= {"status": "unsupported", "missing": [missing], **names}
    report["seconds"]["wrapper"] = round(time.perf_counter() - started - sum(report["seconds"].values()), 3)
    return report


def _short(whole: Instance) -> dict[str, Any]:
    """Return the content of config.json of a whole without what is as by default."""
    content: dict[str, Any] = json.loads(json.dumps(whole.hf_config.to_diff_dict(), default=str))
    dropped = {"transformers_version", "_attn_implementation_autoset", "dtype"}
    sections = {
        name: {key: each for key, each in value.items() if key not in dropped} if isinstance(value, dict) else value
        for name, value in content.items()
        if name not in dropped
    }
    text = whole.config["text_config"]
    return {**sections, "text_config": text, TIED: text[TIED], "architectures": [whole.subject.architecture]}
