"""Whole analyses, each made once in a run: the expensive part of these tests."""

from __future__ import annotations

import functools

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve


@pytest.fixture(scope="session")
def analysed():
    """analysed("llama"): the `ArchitectureReport` of an installed type."""
    return functools.cache(lambda model_type: analyse(resolve(model_type)))


@pytest.fixture(scope="session")
def report(analysed):
    """report("llama"): the same as the JSON that programs read; not to be changed."""
    return functools.cache(lambda model_type: as_json(analysed(model_type)))


@pytest.fixture(scope="session")
def uses(report):
    """uses("llama"): its account of config fields by name."""
    return lambda model_type: {use["name"]: use for use in report(model_type)["fields"]}
