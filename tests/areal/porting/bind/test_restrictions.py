"""What is proven for some rotary settings only is refused, not left open."""

from types import SimpleNamespace

import pytest

from areal.porting.bind.accounting import Accounts
from areal.porting.family import Constant, Product
from areal.porting.probe.subject import resolve
from areal.porting.records import UnsupportedError

PART = "rope_parameters.partial_rotary_factor"


def accounts(restricted, part, expression):
    settings = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": part}
    config = {"rope_parameters": settings, PART: part}
    binder = SimpleNamespace(
        observer=SimpleNamespace(base={"rope_parameters": settings}),
        observations=[SimpleNamespace(config=config)],
        expressions={"layer.rotary.dim": expression},
        restricted={restricted: "no expression explains it"},
        reader=SimpleNamespace(normal=lambda config: config),
    )
    return Accounts(resolve("llama"), binder)


@pytest.mark.parametrize(
    ("restricted", "part", "expression"),
    [
        ("rope_parameters", 1.0, Constant(16)),
        (PART, 0.5, Constant(16)),
        (PART, 1.0, Product(16.0, ((PART, 1.0),), integer=True)),
    ],
)
def test_rotary_settings_that_are_restricted_are_refused(restricted, part, expression):
    with pytest.raises(UnsupportedError, match="rotary settings"):
        accounts(restricted, part, expression)._rotary((), used=True)


def test_a_part_that_nothing_reads_is_left_to_the_reader_of_args():
    assert accounts(PART, 1.0, Constant(16))._rotary((), used=True).status == "used"
