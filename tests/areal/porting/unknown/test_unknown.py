"""Invented architectures, drawn by seeds: each is proven and written, or refused by feature and place; none crashes.

`trial` takes them all the way, to the checkpoint that the family loads; here they are analysed and written.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve
from areal.porting.write.pieces import family
from tests.areal.porting.unknown.design import CHOICES, POISONS, Design, draw
from tests.areal.porting.unknown.modeling import Writer, write

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Design(
    name="plume",
    fields="own",
    config="mapped",
    files="plain",
    older=True,
    rotation="scaled",
    values={"depth": 2, "heads": 4, "theta": 5000.0},
)
"""A cheap one: its own field for theta, positions that are divided, an attribute map, four files, older helpers."""
ROUNDED_HEADS = 501
"""Its scale is 1 / (channels // heads): once taken for heads / channels, which other widths showed to be wrong."""
REFUSED_SEEDS = range(100, 100 + len(POISONS))


def judged(design: Design, folder: Path) -> dict[str, Any]:
    """The report on a design; a proven one can be written, whatever its fields are called."""
    report = as_json(analyse(resolve(str(write(design, folder / design.name)), trust=True)))
    if report["status"] == "proven":
        pieces = family(report, "Unit")
        ast.parse("def read():\n    " + "\n    ".join(pieces["args"]["reading"]))
    return report


@pytest.fixture(scope="module")
def plume(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return judged(SMALL, tmp_path_factory.mktemp("unknown"))


@pytest.mark.exhaustive
def test_code_in_an_idiom_of_its_own_is_proven(plume: dict[str, Any]) -> None:
    assert (plume["status"], plume["missing"]) == ("proven", [])


@pytest.mark.exhaustive
def test_the_report_decides_which_field_is_theta_and_what_divides_positions(plume: dict[str, Any]) -> None:
    table = plume["slots"]["layer.rotary"]
    assert table["theta"] == {"kind": "field", "name": "rotary_base"}
    assert table["stretch"] == {"kind": "field", "name": "rotary_scale"}
    reading = "\n".join(family(plume, "Unit")["args"]["reading"])
    assert 'rotary_base=fields.number("rotary_base"' in reading
    assert "take_rotary" not in reading


@pytest.mark.exhaustive
def test_the_code_that_was_analysed_is_named_with_its_digests(plume: dict[str, Any]) -> None:
    assert plume["code"]["auto_map"]["AutoConfig"] == "configuration_plume.PlumeConfig"
    assert set(plume["code"]["files"]) == {
        "configuration_plume.py",
        "modeling_plume.py",
        "plume_attention.py",
        "plume_norms.py",
    }
    pieces = family(plume, "Unit")["args"]
    assert ['"AutoConfig"', '"configuration_plume.PlumeConfig"'] in pieces["auto_map"]
    assert any("auto_map=fields.remote_code(AUTO_MAP)" in line for line in pieces["reading"])
    assert "**self.remote_code()" in pieces["exported"]


@pytest.mark.exhaustive
def test_every_field_that_an_expression_reads_has_a_use(plume: dict[str, Any]) -> None:
    known = {use["name"] for use in plume["fields"]}
    assert {name for node in plume["slots"].values() for name in _fields(node)} <= known


def _fields(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for each in node for name in _fields(each)]
    if not isinstance(node, dict):
        return []
    own = [node["name"]] if node.get("kind") == "field" else list(node.get("powers", ()))
    return own + [name for value in node.values() for name in _fields(value)]


def test_a_seed_is_the_same_design_everywhere() -> None:
    assert draw(17) == draw(17)
    assert Writer(draw(17)).files() == Writer(draw(17)).files()
    drawn = [draw(seed) for seed in range(60)]
    assert all({getattr(each, part) for each in drawn} == {*choices} for part, choices in CHOICES.items())
    assert {draw(seed, poison=True).poison for seed in REFUSED_SEEDS} == {*POISONS}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [*range(18), ROUNDED_HEADS])
def test_an_invented_architecture_is_proven(tmp_path: Path, seed: int) -> None:
    assert judged(draw(seed), tmp_path)["status"] == "proven"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", REFUSED_SEEDS)
def test_what_no_family_can_say_is_refused_by_feature_and_place(tmp_path: Path, seed: int) -> None:
    report = judged(draw(seed, poison=True), tmp_path)
    assert report["status"] == "unsupported"
    assert all(each["feature"] and each["where"] and each["detail"] for each in report["missing"])
