"""What `areal.api` offers is declared, sorted, documented, and complete."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING

import pytest

import areal.api

if TYPE_CHECKING:
    import types

MODULES = [importlib.import_module(f"areal.api.{module.name}") for module in pkgutil.iter_modules(areal.api.__path__)]


def public_objects(module: types.ModuleType) -> dict[str, object]:
    """Classes and functions that this very module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def test_every_exported_name_exists_once():
    assert len(set(areal.api.__all__)) == len(areal.api.__all__)
    assert [name for name in areal.api.__all__ if not hasattr(areal.api, name)] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_object_is_exported_and_documented(module):
    objects = public_objects(module)
    assert [name for name in objects if name not in areal.api.__all__] == []
    assert [name for name, value in objects.items() if not (inspect.getdoc(value) or "").strip()] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_method_is_documented(module):
    silent = [
        f"{name}.{member}"
        for name, value in public_objects(module).items()
        if isinstance(value, type)
        for member, function in vars(value).items()
        if not member.startswith("_")
        and (inspect.isfunction(function) or isinstance(function, property | classmethod | staticmethod))
        and not (getattr(function, "__doc__", None) or "").strip()
    ]
    assert silent == []
