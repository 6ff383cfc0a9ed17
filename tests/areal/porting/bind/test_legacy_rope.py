"""Older spellings of rotary settings count where the config class reads them, and nowhere else."""

from __future__ import annotations

import pytest

from areal.porting.bind.legacy_rope import LEGACY_ROPE_FIELDS, idle_spellings, unread_spellings
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model_type", "unread"),
    [
        pytest.param("phi3", (), marks=pytest.mark.exhaustive),  # refuses other types than its own: overlooks nothing
        ("llama", ()),
        ("apertus", ("rope_theta",)),  # its default is a type with a base of its own, unless rope_scaling says another
        ("gpt_neox", ("rope_theta", "rope_scaling+rope_theta")),
        pytest.param("cohere2_moe", ("rope_parameters+rope_theta", "rope_scaling"), marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_class_overlooks_is_known(model_type, unread):
    pytest.importorskip(f"transformers.models.{model_type}")
    subject = resolve(model_type)
    assert unread_spellings(subject, complete(subject, {})) == unread


@pytest.mark.exhaustive
def test_spellings_that_a_class_declares_are_idle_beside_rope_parameters():
    subject = resolve("cohere2_moe")
    base = complete(subject, {})
    assert base.keys() > LEGACY_ROPE_FIELDS
    assert idle_spellings(subject, base) == LEGACY_ROPE_FIELDS
    assert idle_spellings(subject, {**base, "rope_parameters": None}) == frozenset()
