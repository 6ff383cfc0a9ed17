"""Logits that depend on what a decoder's do not: refused before any inference, with the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind.analyse import analyse
from areal.porting.probe.instance import build
from areal.porting.probe.questions import refuse_dependences
from areal.porting.probe.subject import resolve
from areal.porting.records import ArchitectureRefusedError
from tests.areal.porting.unknown.design import Design
from tests.areal.porting.unknown.modeling import write

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {"depth": 2, "width": 48, "heads": 4, "head": 12, "inner": 56}


def asked(folder: Path, poison: str, **parts: Any) -> bool:
    """Whether all questions have the answers of a decoder."""
    write(Design(name="odd", poison=poison, values=VALUES, **parts), folder)
    subject = resolve(str(folder), trust=True)
    assert subject.raw_config is not None
    refuse_dependences(build(subject, subject.raw_config))
    return True


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("poison", "parts", "feature", "where"),
    [
        ("noise", {}, "differ between two equal calls", "model.layers.0"),
        ("state", {}, "differ between two equal calls", "model.layers.0"),
        ("batch_mean", {}, "depend on other rows", "model.layers.0"),
        ("not_causal", {}, "not causal as configured", "model.layers.0.self_attn"),
        ("length", {}, "depend on the length of the sequence", "model.layers.0.self_attn"),
        ("hash_routing", {"feed_forward": "experts"}, "depend on the length", "model.layers.0.mlp"),
    ],
)
def test_each_dependence_is_refused_with_its_place(
    tmp_path: Path, poison: str, parts: dict[str, Any], feature: str, where: str
) -> None:
    with pytest.raises(ArchitectureRefusedError) as caught:
        asked(tmp_path, poison, **parts)
    assert feature in caught.value.feature
    assert caught.value.where == where
    assert "OddForCausalLM" in caught.value.detail


@pytest.mark.sample(1)
@pytest.mark.parametrize("parts", [{}, {"feed_forward": "experts"}, {"rotation": "alibi", "window": "list"}])
def test_a_decoder_is_not_refused(tmp_path: Path, parts: dict[str, Any]) -> None:
    assert asked(tmp_path, "", **parts)


def test_the_report_says_what_was_refused(tmp_path: Path) -> None:
    write(Design(name="odd", poison="noise", values=VALUES), tmp_path)
    report = analyse(resolve(str(tmp_path), trust=True))
    assert report.status == "unsupported"
    (missing,) = report.missing
    assert missing["feature"] == "logits that differ between two equal calls"
    assert "noise" in missing["detail"]
