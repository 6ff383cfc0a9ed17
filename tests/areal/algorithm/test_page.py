"""The pages on objectives name every preset and block, with the formula and the source of its class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal.algorithm import registry
from areal.algorithm.blocks import block_name
from areal.algorithm.objective import PRESETS
from areal.api import load

DOCS = Path(__file__).parents[3] / "docs"


def section(page, title):
    """Text of a page from a heading to the next one of its level or above."""
    text = (DOCS / page).read_text()
    level = len(title) - len(title.lstrip("#"))
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no {title!r}"
    return found[1]


def rows(text):
    """Cells of the rows that begin with names in backticks, by each name."""
    found = {}
    for line in re.findall(r"^\| (`.*) \|?$", text, re.MULTILINE):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
        found |= dict.fromkeys(re.findall(r"`(\w[\w-]*)`", cells[0]), cells[1:])
    return found


@pytest.mark.parametrize("kind", ["ADVANTAGES", "AGGREGATIONS", "CORRECTIONS", "SURROGATES"])
def test_formulas_and_sources_are_those_of_the_classes(kind):
    table = getattr(registry, kind)
    shown = rows(section("algorithms.md", f"### {kind.capitalize()}"))
    assert list(shown) == list(table)
    for name in table:
        block = load("block", name, table)
        assert shown[name][:2] == [f"`{block.formula}`", block.source], name


def test_presets_are_shown_with_their_blocks_and_papers():
    shown = rows(section("algorithms.md", "## Presets"))
    assert list(shown) == list(PRESETS)
    for name, preset in PRESETS.items():
        made = preset.objective
        correction = block_name(made.correction) + (", decoupled" if made.decoupled else "")
        blocks = [block_name(made.advantage), block_name(made.surrogate), correction, block_name(made.aggregation)]
        assert shown[name] == [*blocks, preset.paper], name


def test_every_preset_and_correction_says_when_to_take_it():
    shown = rows(section("rl-configuration.md", "## The preset"))
    assert set(shown) == set(PRESETS)
    assert all(cells[-1] for cells in shown.values())
    corrections = rows(section("rl-configuration.md", "## Asynchronous runs and the correction"))
    assert set(corrections) == set(registry.CORRECTIONS)
    assert all(cells[-1] for cells in corrections.values())
