"""Entries of one unit in one registry: each is reported where it stands in the end."""

from __future__ import annotations

import pytest

from tooling.cli.errors import ChecksFailedError
from tooling.kit.kind import RegistryEntry
from tooling.new.change import Change, UnitRequest
from tooling.new.unit import register

TABLE = 'RULES = {\n    "free": "shop:free",\n    "zero": "shop:zero",\n}\n'


def test_every_entry_is_reported_where_it_stands_in_the_end(tmp_path):
    (tmp_path / "registry.py").write_text(TABLE, encoding="utf-8")
    change = Change(root=tmp_path, python=tmp_path, request=UnitRequest(kind="rule", name="half"))
    keys = ["tenth", "half", "third"]
    entries = [RegistryEntry("registry.py", "mapping", "RULES", key, f"shop:{key}") for key in keys]
    register(change, entries)
    lines = change.plan.read("registry.py").decode().splitlines()
    assert [lines[item.line - 1].split('"')[1] for item in change.registered] == keys
    (changed,) = change.plan.changes
    assert changed.reason == "register tenth, half, third in RULES"


def test_an_entry_that_the_registrys_gates_would_refuse_is_not_made(world):
    before = world.tree()
    with pytest.raises(ChecksFailedError, match="would not pass ruff-check") as caught:
        world.plan("rule_" + "x" * 50)
    assert caught.value.where == "shop/rules/registry.py"
    assert "E501" in caught.value.checks[0].detail
    assert world.tree() == before
