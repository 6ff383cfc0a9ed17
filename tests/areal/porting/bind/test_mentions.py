"""Fields that only the weights of new models are drawn by are told from those that the forward reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from areal.porting.bind.mentions import mentions, only_initialising

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
class Mixer:
    def __init__(self, config):
        self.spread = config.spread
        self.floor = config.floor
        self.scale = config.gain
        self.table = make_table(config)
        self.draw()

    def draw(self):
        self.rates.uniform_(self.spread).clamp_(self.floor)

    def forward(self, hidden):
        return hidden * self.scale + self.floor


def make_table(config):
    return config.angle


class Model:
    def _init_weights(self, module):
        module.weight.normal_(std=self.config.deviation)
        module.draw()
        module.table = make_table(self.config)
"""


def test_what_only_initialisers_read_is_known_by_who_calls_them(tmp_path: Path) -> None:
    file = tmp_path / "modeling_aster.py"
    file.write_text(SOURCE, encoding="utf-8")
    subject: Any = SimpleNamespace(
        config_class=type("AsterConfig", (), {"__module__": "configuration_aster"}), source_files=(file,)
    )

    assert mentions(subject)["spread"] == "modeling_aster.py:4"
    found = only_initialising(subject)

    # The floor is read in the forward as well; what make_table returns is kept, whoever calls it.
    assert {name for name in found if name in ("spread", "floor", "gain", "angle", "deviation")} == {
        "spread",
        "deviation",
    }
    assert found["spread"] == "modeling_aster.py:11"
