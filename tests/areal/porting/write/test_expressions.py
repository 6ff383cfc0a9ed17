"""The Python that expressions become computes what `areal.porting.family` says, on configs of all kinds."""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
from types import SimpleNamespace

import pytest

from areal.models.decoder_args import as_bfloat16
from areal.porting.bind.expressions import depends_on_layer, evaluate, fields_of, from_json, to_json
from areal.porting.family import (
    All,
    AtLeast,
    Ceiling,
    Constant,
    Cycled,
    Field,
    FieldEquals,
    First,
    FromEnd,
    LayerInField,
    Listed,
    Multiple,
    Narrowed,
    Negation,
    PerLayer,
    Power,
    Product,
    Remainder,
    RotaryField,
    RoundedUp,
    Sum,
    WhenEqual,
    WhenNull,
)
from areal.porting.records import ReportError
from areal.porting.write.names import (
    attribute_name,
    class_name,
    field_name,
    literal,
    model_type_name,
    one_line,
    parameter_name,
)
from areal.porting.write.writer import FieldValue, Writer

CONFIGS = [
    {
        "width": 96,
        "heads": 6,
        "size": None,
        "factor": 0.25,
        "scale": 3.5,
        "step": 2,
        "first": 1,
        "flag": True,
        "switch": None,
        "name": "a is b == c",
        "kinds": ["full", "sliding", "full", "chunked"],
        "listed": [1, 3],
        "pattern": ["full", "sliding", "full"],
    },
    {
        "width": 64,
        "heads": 4,
        "size": 24,
        "factor": 0.5,
        "scale": 0.125,
        "step": 3,
        "first": 2,
        "flag": False,
        "switch": True,
        "name": "plain",
        "kinds": ["sliding"] * 4,
        "listed": [],
        "pattern": ["sliding"],
    },
]
VALUES = {
    "width": FieldValue("self.width", "int"),
    "heads": FieldValue("self.heads", "int"),
    "size": FieldValue("self.size", "int", nullable=True),
    "factor": FieldValue("self.factor", "float"),
    "scale": FieldValue("self.scale", "float"),
    "step": FieldValue("self.step", "int"),
    "first": FieldValue("self.first", "int"),
    "flag": FieldValue("self.flag", "bool"),
    "switch": FieldValue("self.switch", "bool", nullable=True),
    "name": FieldValue("self.name", "str"),
    "kinds": FieldValue("self.kinds", "list"),
    "listed": FieldValue("self.listed", "list"),
    "pattern": FieldValue("self.pattern", "list"),
}
WRITER = Writer(VALUES)


def powers(**values):
    return tuple(values.items())


CONDITIONS = [
    Listed("kinds", ("sliding",)),
    Listed("kinds", ("sliding", "chunked")),
    Cycled("pattern", ("sliding",)),
    AtLeast("first"),
    FromEnd("first", "step"),
    FromEnd(1, "step"),
    First(),
    Multiple("step", 0),
    Multiple("step", 1),
    Multiple(2, -1),
    Remainder("step", "first"),
    LayerInField("listed"),
    FieldEquals("flag", True),
    FieldEquals("flag", False),
    FieldEquals("switch", True),
    FieldEquals("switch", None),
    FieldEquals("size", None),
    FieldEquals("size", 24),
    FieldEquals("name", "plain"),
    FieldEquals("name", "a is b == c"),
]
CONDITIONS += [Negation(each) for each in CONDITIONS]
CONDITIONS += [All((first, second)) for first, second in itertools.pairwise(CONDITIONS)]
CONDITIONS += [Negation(each) for each in CONDITIONS[-12:]] + [All(())]

NUMBERS = [
    Constant(7),
    Constant(-2),
    Constant(0.5),
    Field("width"),
    Field("scale"),
    Product(1.0, powers(width=1.0)),
    Product(1.0, powers(width=-0.5)),
    Product(1.0, powers(width=0.5)),
    Product(1.0, powers(width=1.0, heads=-1.0), integer=True),
    Product(4.0, powers(width=1.0), integer=True),
    Product(4.0, powers(width=1.0)),
    Product(0.5, powers(width=1.0), integer=True),
    Product(2 / 3, powers(width=1.0), integer=True),
    Product(1.0, powers(width=1.0, heads=-1.0, factor=1.0), integer=True),
    Product(1.0, powers(scale=-1.0)),
    Product(2.0, powers(scale=-1.0, width=-1.0)),
    Product(1.0, powers(width=-0.5, heads=0.5)),
    Product(0.125, powers(scale=2.0)),
    Product(3.0, ()),
    Product(1.0, powers(width=2.0, heads=-2.0), integer=True),
    Sum((Field("width"), Constant(-1))),
    Sum((Constant(-1), Field("width"), Product(2.0, powers(heads=1.0)))),
    Sum((Field("width"), Field("scale"), Constant(1))),
    Sum((WhenNull("size", Field("width")), Field("heads"))),
    WhenNull("size", Product(1.0, powers(width=1.0, heads=-1.0), integer=True)),
    WhenNull("size", WhenEqual("flag", True, Constant(1), Constant(2))),
    WhenEqual("flag", True, Field("scale"), Constant(1.0)),
    WhenEqual("name", "plain", Constant(1), WhenEqual("switch", True, Constant(2), Constant(3))),
    WhenEqual("flag", True, WhenEqual("switch", None, Constant(1), Constant(2)), Constant(3)),
    WhenEqual("size", None, Field("width"), Field("size")),
]
EXPRESSIONS = [
    *NUMBERS,
    *(PerLayer(condition, Constant(True), Constant(False)) for condition in CONDITIONS),
    *(PerLayer(condition, Constant(False), Constant(True)) for condition in CONDITIONS),
    *(
        PerLayer(condition, first, second)
        for condition, (first, second) in zip(CONDITIONS, itertools.cycle(itertools.pairwise(NUMBERS)), strict=False)
    ),
    PerLayer(CONDITIONS[0], PerLayer(CONDITIONS[2], Constant(1), Constant(2)), Constant(None)),
    PerLayer(CONDITIONS[2], Constant(1), Constant(0)),
    PerLayer(CONDITIONS[2], Constant(0), Constant(1)),
    Power(1.0, Sum((Field("width"), Field("heads"))), -0.5),
    Power(2.0, Sum((Field("width"), Field("heads"))), 2.0),
    Power(1.0, Field("scale"), 0.5),
    Sum((Power(0.5, Field("scale"), 0.5), Constant(1))),
    RoundedUp(Product(2 / 3, powers(width=1.0), integer=True), "scale", "step"),
    RoundedUp(Sum((Field("width"), Constant(1))), "", "step"),
    RoundedUp(Field("width"), "", "step"),
    Ceiling("width", 16),
    Narrowed(Product(1.0, powers(width=0.5))),
    Sum((Narrowed(Field("scale")), Constant(1))),
    PerLayer(CONDITIONS[0], Ceiling("width", 3), Field("heads")),
    PerLayer(
        AtLeast("first"),
        WhenEqual("size", None, Constant("full"), WhenEqual("flag", True, Constant("sliding"), Constant("full"))),
        Constant("full"),
    ),
    PerLayer(
        Negation(LayerInField("listed")), WhenEqual("flag", False, Constant(None), Field("scale")), Constant(None)
    ),
    WhenEqual("flag", True, PerLayer(AtLeast("first"), Constant(True), Constant(False)), Constant(False)),
    WhenEqual("flag", True, Constant(False), PerLayer(AtLeast("first"), Constant(True), Constant(False))),
    WhenEqual("flag", True, Constant(True), PerLayer(AtLeast("first"), Constant(True), Constant(False))),
]


def computed(text, config, layer):
    return eval(text, {"self": SimpleNamespace(**config), "layer": layer, "as_bfloat16": as_bfloat16})


@pytest.mark.sample(40)
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=repr)
def test_the_text_computes_what_the_expression_means(expression):
    text = WRITER.expression(expression)
    for config, layer in itertools.product(CONFIGS, range(4)):
        expected, found = evaluate(expression, config, layer), computed(text, config, layer)
        assert isinstance(found, bool) is isinstance(expected, bool), text
        assert isinstance(expected, str) is isinstance(found, str), text
        assert found == expected or math.isclose(found, expected, rel_tol=1e-12), (text, found, expected)
        assert {"int", "float", "bool", "str", "None"} >= WRITER.types(expression)


@pytest.mark.sample(40)
@pytest.mark.parametrize("expression", [*EXPRESSIONS, RotaryField("full", ("default",), Field("scale"), ("x",), "y")])
def test_an_expression_survives_its_json(expression):
    assert from_json(json.loads(json.dumps(to_json(expression)))) == expression


def test_random_nestings_compute_what_they_mean():
    chance = random.Random(3)
    for _ in range(400):
        expression = chance.choice(NUMBERS)
        for _ in range(chance.randrange(4)):
            other = chance.choice(NUMBERS)
            expression = chance.choice(
                [
                    PerLayer(chance.choice(CONDITIONS), expression, other),
                    WhenNull("size", expression),
                    WhenEqual("flag", chance.choice([True, False]), other, expression),
                    Sum((other, expression)),
                ]
            )
        text = WRITER.expression(expression)
        for config, layer in itertools.product(CONFIGS, range(4)):
            expected = evaluate(expression, config, layer)
            assert math.isclose(computed(text, config, layer), expected, rel_tol=1e-12), text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Product(1.0, powers(width=1.0, heads=-1.0), integer=True), "self.width // self.heads"),
        (Product(1.0, powers(width=-0.5)), "self.width**-0.5"),
        (Product(1.0, powers(scale=-1.0)), "1.0 / self.scale"),
        (Product(1.0, powers(width=1.0, factor=1.0), integer=True), "int(self.width * self.factor)"),
        (Product(0.5, powers(width=1.0), integer=True), "self.width // 2"),
        (Product(4.0, powers(width=1.0), integer=True), "4 * self.width"),
        (PerLayer(Negation(LayerInField("listed")), Constant(True), Constant(False)), "layer not in self.listed"),
        (PerLayer(AtLeast("first"), Constant(False), Constant(True)), "layer < self.first"),
        (
            PerLayer(Multiple("step", 1), Field("size"), Constant(None)),
            "self.size if (layer + 1) % self.step == 0 else None",
        ),
        (
            PerLayer(
                AtLeast("first"),
                WhenEqual("size", None, Constant("a"), WhenEqual("flag", True, Constant("b"), Constant("a"))),
                Constant("a"),
            ),
            '"b" if layer >= self.first and self.size is not None and self.flag else "a"',
        ),
        (Power(1.0, Sum((Field("width"), Field("heads"))), -0.5), "(self.width + self.heads) ** -0.5"),
        (WhenEqual("flag", True, Constant(True), Constant(False)), "self.flag"),
        (WhenEqual("flag", True, Constant(False), Constant(True)), "not self.flag"),
        (WhenEqual("size", None, Constant(False), Constant(True)), "self.size is not None"),
        (
            PerLayer(Negation(FieldEquals("name", "a is b == c")), Constant(1), Constant(2)),
            '1 if self.name != "a is b == c" else 2',
        ),
    ],
)
def test_the_text_is_what_a_person_would_write(expression, text):
    assert WRITER.expression(expression) == text


def test_a_field_that_is_filled_when_it_is_read_is_never_compared_with_null():
    filled = Writer({"size": FieldValue("self.size", "int"), "width": FieldValue("self.width", "int")})
    assert filled.expression(WhenNull("size", Field("width"))) == "self.size"
    assert filled.expression(WhenEqual("size", None, Constant(True), Constant(False))) == "False"


def test_what_an_expression_reads():
    chosen = PerLayer(Listed("kinds", ("full",)), WhenNull("size", Field("width")), Product(1.0, powers(heads=-1.0)))
    assert fields_of(chosen) == ["heads", "kinds", "size", "width"]
    assert depends_on_layer(Sum((chosen, Constant(1))))
    assert not depends_on_layer(chosen.then)


@pytest.mark.parametrize(
    "node", [{"kind": "call", "name": "exit"}, {"kind": "field", "name": "unknown"}, {}, {"kind": "first"}]
)
def test_what_is_no_expression_over_known_fields_is_refused(node):
    with pytest.raises(ReportError, match="the analysis reports"):
        WRITER.expression(from_json(node))


HOSTILE = ["a b", "a;b", "a()", "__import__('os')", "a\nb", "", "1a", "a.", ".a", "ä", "a" * 200, None, 7, 'a"b', "a{b"]


@pytest.mark.parametrize("check", [field_name, class_name, model_type_name], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_names_that_are_no_names_never_reach_source_code(check, name):
    if check is model_type_name and name == "1a":
        assert check(name) == name
        return
    with pytest.raises(ReportError, match="cannot be written into source code"):
        check(name)


@pytest.mark.parametrize("name", ["a b", "a;b", "a()", "a\nb", "", "a.", 'a"b', "ä", None])
def test_parameters_have_plain_names_too(name):
    assert parameter_name("model.layers.*.mlp.experts.{expert}.w1.weight")
    with pytest.raises(ReportError, match="cannot be written into source code"):
        parameter_name(name)


@pytest.mark.parametrize(
    "value", [None, True, 0, -3, 1e-6, 2.5, float("inf"), "a", 'a"b', "a'b\\\n", [1, "x"], {"a": [None]}]
)
def test_literals_mean_the_value_they_were_made_of(value):
    text = literal(value)
    assert text.isascii()
    assert eval(text) == value


def test_texts_of_strangers_cannot_end_a_docstring():
    hostile = 'x""" + exit() + """\\' + "\n\u202ex\x00"
    assert ast.literal_eval(f'"""{one_line(hostile)}"""').startswith("x''' + exit()")


@pytest.mark.parametrize(
    ("field", "attribute"),
    [("n_embd", "n_embd"), ("ffn_config.top_k", "top_k"), ("lambda", "lambda_"), ("_x", "x"), ("__9", "field_9")],
)
def test_fields_become_public_attributes(field, attribute):
    assert attribute_name(field) == attribute
