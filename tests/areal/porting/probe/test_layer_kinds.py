"""Kinds of layers that only the source of an architecture names, and tiny configs that show all of them."""

import pytest

from areal.porting.probe.source import layer_kinds
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import tiny_config

SOURCE = """
class Layer:
    def __init__(self, config, index):
        self.flavour = config.flavours[index]
        if self.flavour == "local":
            self.width = config.width
        self.mode = "unrelated"
        if self.mode == "other":
            pass

    def forward(self, masks, index, config):
        masks = {"local": 1, "everywhere": 2}
        return masks[config.flavours[index]]
"""


def test_kinds_are_followed_through_attributes_and_lookups(tmp_path):
    path = tmp_path / "modeling.py"
    path.write_text(SOURCE, encoding="utf-8")
    assert set(layer_kinds([path], "flavours")) == {"local", "everywhere"}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model_type", "field", "kinds"),
    [
        ("lfm2", "layer_types", {"full_attention", "conv"}),
        ("smollm3", "layer_types", {"full_attention", "sliding_attention"}),
        pytest.param("ministral", "layer_types", {"full_attention", "sliding_attention"}, marks=pytest.mark.exhaustive),
    ],
)
def test_a_tiny_config_has_every_kind_of_layer(model_type, field, kinds):
    assert set(tiny_config(resolve(model_type))[field]) == kinds


@pytest.mark.parametrize(
    "model_type",
    ["qwen2_moe", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mistral", "mixtral", "smollm3"))],
)
def test_windows_of_tiny_configs_are_on_and_small(model_type):
    assert tiny_config(resolve(model_type))["sliding_window"] == 8
