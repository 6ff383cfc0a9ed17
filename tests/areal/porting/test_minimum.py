"""Numbers below 1 that proven configs have."""

from __future__ import annotations

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve


def test_a_number_that_the_class_zeroes_beside_a_flag_may_be_zero() -> None:
    uses = {use["name"]: use for use in as_json(analyse(resolve("qwen2_moe")))["fields"]}
    assert uses["sliding_window"]["minimum"] == 0
    assert uses["num_hidden_layers"]["minimum"] is None
