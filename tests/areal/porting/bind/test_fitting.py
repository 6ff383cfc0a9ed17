"""Random ground truths are recovered from observations: what is found explains everything, also what was not shown."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind.expressions import evaluate, fields_of, to_json, walk
from areal.porting.bind.fitting import explains, fit
from areal.porting.bind.guessing import first_guesses
from areal.porting.bind.observing import SlotSample
from areal.porting.bind.slots import ABSENT, LayerValues
from areal.porting.family import (
    All,
    AtLeast,
    AtMost,
    Constant,
    Cycled,
    Entry,
    Field,
    First,
    LayerInField,
    Listed,
    Multiple,
    Negation,
    PerLayer,
    Product,
    Remainder,
    Sum,
    WhenEqual,
    WhenNull,
)

if TYPE_CHECKING:
    from areal.porting.family import Expression

WINDOWED = PerLayer(Listed("kinds", ("near",)), Field("reach"), Constant(None))
EXACT: tuple[Expression, ...] = (
    Constant(3),
    Field("width"),
    WhenNull("size", Product(1.0, (("heads", -1.0), ("width", 1.0)), integer=True)),
    Product(1.0, (("width", -0.5),)),
    Product(0.125, (("gain", 1.0),)),
    Product(1.0, (("heads", 1.0), ("part", 1.0)), integer=True),
    Product(0.1, (("gain", 1.0),)),
    WhenEqual("narrow", True, Field("reach"), Constant(None)),
    WhenEqual("kind", "b", Product(1.0, (("gain", -1.0),)), Field("gain")),
    WINDOWED,
    PerLayer(AtLeast("first"), Constant("moe"), Constant("mlp")),
    PerLayer(All((Multiple("step", 1), AtLeast("first"), AtMost("last"))), Constant("moe"), Constant("mlp")),
    PerLayer(Multiple(4, 1), Constant(None), Field("reach")),
    PerLayer(Remainder("turn_period", "turn_offset"), Constant("attention"), Constant("mamba")),
    PerLayer(Cycled("pattern", ("near",)), Field("reach"), Constant(None)),
    PerLayer(First(), Constant(False), Constant(True)),
    Sum((Field("width"), Constant(1))),
)
EQUIVALENT: tuple[Expression, ...] = (
    PerLayer(All((Negation(LayerInField("only")), Multiple("step", 1))), Constant("moe"), Constant("mlp")),
    WhenEqual("narrow", True, WINDOWED, Constant(None)),
    PerLayer(
        Listed("kinds", ("near",)), Field("reach"), PerLayer(Listed("kinds", ("far",)), Field("heads"), Constant(None))
    ),
    Sum((Field("width"), Field("heads"))),
)


def config(generator: random.Random) -> dict[str, Any]:
    depth = generator.choice([3, 4, 5, 6, 8])
    return {
        "depth": depth,
        "first": generator.choice([1, 2]),
        "gain": generator.choice([0.5, 0.7, 2.0]),
        "heads": generator.choice([2, 4, 8]),
        "kind": generator.choice(["a", "b"]),
        "last": generator.choice([3, 4, 6]),
        "kinds": [generator.choice(["near", "far", "none"]) for _ in range(depth)],
        "pattern": [generator.choice(["near", "far"]) for _ in range(generator.choice([2, 3]))],
        "narrow": generator.random() < 0.5,
        "only": generator.sample(range(depth), 2),
        "part": generator.choice([0.25, 0.5, 1.0]),
        "reach": generator.choice([4, 8, 16]),
        "size": generator.choice([None, 12, 16, 24]),
        "step": generator.choice([1, 2, 3]),
        "width": generator.choice([32, 64, 96, 128]),
        "turn_period": generator.choice([2, 3, 4]),
        "turn_offset": generator.choice([0, 1]),
    }


def sample(truth: Expression, values: dict[str, Any]) -> SlotSample:
    depth = values["depth"]
    if any(isinstance(part, PerLayer) for part in walk(truth)):
        return SlotSample(values, LayerValues(evaluate(truth, values, layer) for layer in range(depth)), depth)
    return SlotSample(values, evaluate(truth, values), depth)


@pytest.mark.sample(6)
@pytest.mark.parametrize("truth", EXACT, ids=str)
def test_the_expression_itself_is_found(truth: Expression) -> None:
    generator = random.Random(str(truth))
    samples = [sample(truth, config(generator)) for _ in range(40)]
    assert fit("slot", samples, samples[0].config) == truth


@pytest.mark.sample(2)
@pytest.mark.parametrize("truth", EQUIVALENT, ids=str)
def test_what_is_found_holds_for_configs_that_were_not_shown(truth: Expression) -> None:
    generator = random.Random(str(truth))
    found = fit("slot", [sample(truth, config(generator)) for _ in range(60)], {*fields_of(truth), "heads", "first"})
    assert found is not None
    assert all(explains(found, sample(truth, config(generator))) for _ in range(100))


def test_names_of_fields_do_not_matter() -> None:
    generator = random.Random(1)
    samples = [sample(Product(1.0, (("width", -0.5),)), config(generator)) for _ in range(20)]
    renamed = [
        SlotSample({f"x_{hash(k) % 97}_{k[::-1]}": v for k, v in s.config.items()}, s.value, s.depth) for s in samples
    ]
    found = fit("layer.attention.scale", renamed, renamed[0].config)
    assert isinstance(found, Product)
    assert found.powers[0][0].endswith("htdiw")


@pytest.mark.exhaustive
def test_a_value_that_no_field_explains_is_not_explained() -> None:
    generator = random.Random(2)
    configs = [config(generator) for _ in range(30)]
    samples = [SlotSample(each, generator.choice([1.5, 2.5, 3.5]), each["depth"]) for each in configs]
    assert fit("slot", samples, configs[0]) is None


def test_several_periods_that_no_field_says_are_no_explanation() -> None:
    layers = LayerValues("mlp" if layer in (0, 3, 4) else "moe" for layer in range(6))
    assert fit("slot", [SlotSample({"depth": 6}, layers, 6)], []) is None


def test_sizes_do_not_choose_between_expressions() -> None:
    configs = [{"width": width, "depth": 2} for width in (32, 64, 96, 128)]
    samples = [SlotSample(each, "a" if each["width"] == 64 else "b", 2) for each in configs]
    assert fit("slot", samples, ["width"]) is None


def test_none_and_one_are_two_numbers_and_no_flag() -> None:
    samples = [SlotSample({"shared": number}, number > 0, 2) for number in (2, 4, 1, 0)]
    assert fit("shared", samples, ["shared"]) == WhenEqual("shared", 0, Constant(False), Constant(True))


def test_a_list_over_layers_that_holds_the_sizes_is_found() -> None:
    lists = ([4, 4, 4], [4, 8, 4], [2, 2, 2])
    samples = [SlotSample({"depth": 3, "sizes": each, "width": 64}, LayerValues(each), 3) for each in lists]
    assert fit("slot", samples, ["depth", "sizes", "width"]) == Entry("sizes")
    assert fit("slot", samples[:1], ["depth", "sizes", "width"]) == Constant(4)
    other = fit("slot", [*samples, replace(samples[1], value=LayerValues((4, 8, 5)))], ["sizes"])
    assert other is None


def test_layers_without_the_part_do_not_count() -> None:
    values = {"depth": 4, "first": 1, "top": 2}
    other = {"depth": 4, "first": 2, "top": 3}
    samples = [
        SlotSample(values, LayerValues((ABSENT, 2, 2, 2)), 4),
        SlotSample(other, LayerValues((ABSENT, ABSENT, 3, 3)), 4),
    ]
    assert fit("layer.feed_forward.router.top_k", samples, values) == Field("top")


def test_expressions_are_written_as_documented() -> None:
    assert to_json(EXACT[2]) == {
        "kind": "when_null",
        "field": "size",
        "otherwise": {"kind": "product", "factor": 1.0, "powers": {"heads": -1.0, "width": 1.0}, "integer": True},
    }
    assert to_json(EQUIVALENT[0])["condition"] == {
        "kind": "all",
        "conditions": [
            {"kind": "not", "condition": {"kind": "member", "field": "only"}},
            {"kind": "multiple", "of": "step", "shift": 1},
        ],
    }


def test_a_part_that_was_never_seen_is_not_a_field_of_a_similar_name():
    # dbrx refuses tied embeddings, so nothing ever tells this field from a part that is missing.
    sample = SlotSample({"tie_word_embeddings": False}, False, 2)
    found = first_guesses({"layer_embeddings": sample, "tied": sample}, ["tie_word_embeddings"])
    assert found == {"layer_embeddings": Constant(False), "tied": Field("tie_word_embeddings")}
