"""Limits of Poetry and conda in the words of PEP 508, and what a resolver is told of such manifests."""

import pytest
from packaging.requirements import Requirement

from tooling.upgrade.declarations.declaration import SpecifierStyle, as_pep508, python_marker
from tooling.upgrade.declarations.find import read_declarations
from tooling.upgrade.locks.resolve import stated_requirements
from tooling.upgrade.policy.watched import Variant


@pytest.mark.parametrize(
    ("style", "written", "meant"),
    [
        (SpecifierStyle.POETRY, "^1.2", ">=1.2,<2"),
        (SpecifierStyle.POETRY, "^0.0.3", ">=0.0.3,<0.0.4"),
        (SpecifierStyle.POETRY, "~1.2", ">=1.2,<1.3"),
        (SpecifierStyle.POETRY, "^1.2,!=1.3", ">=1.2,<2,!=1.3"),
        (SpecifierStyle.POETRY, ">= 1.2 <2", ">=1.2,<2"),
        (SpecifierStyle.POETRY, "1.*", "==1.*"),
        (SpecifierStyle.POETRY, "=1.2", "==1.2"),
        (SpecifierStyle.POETRY, "*", ""),
        (SpecifierStyle.POETRY, "^1.2 || ^2.0", None),
        (SpecifierStyle.CONDA, "1.2", "==1.2"),
        (SpecifierStyle.CONDA, "=1.2", "==1.2.*"),
        (SpecifierStyle.CONDA, "=1.2.*", "==1.2.*"),
        (SpecifierStyle.CONDA, "=1.2=py38_0", "==1.2"),
        (SpecifierStyle.CONDA, ">=1.2,<2", ">=1.2,<2"),
        (SpecifierStyle.CONDA, "1.2|1.3", None),
    ],
)
def test_a_specifier_is_translated_clause_by_clause(style, written, meant):
    assert as_pep508(written, style) == meant


@pytest.mark.parametrize(
    ("python", "marker"),
    [
        ("<3.10", "python_version < '3.10'"),
        ("^3.8.1", "python_full_version >= '3.8.1' and python_version < '4'"),
        ("<3.9 || 3.12", "python_version < '3.9' or python_version == '3.12'"),
        ("*", ""),
        ("any", ""),
    ],
)
def test_limits_of_python_become_markers(python, marker):
    assert python_marker(python) == marker


POETRY = """
[tool.poetry.dependencies]
python = "^3.9"
multi = [{version = "1.0", python = "<3.10"}, {version = "2.0", python = ">=3.10", markers = "os_name == 'posix'"}]
extra = {version = "^1.2", extras = ["a", "b"]}
either = "^1.2 || ^2.0"
odd = {version = "1.0", markers = "no marker"}
"""


def test_requirements_of_poetry_are_stated_and_those_without_an_equivalent_noted():
    text, notes = stated_requirements(
        read_declarations("pyproject.toml", POETRY), Variant(name="default", manifests=("pyproject.toml",))
    )
    stated = [str(Requirement(line)) for line in text.splitlines()]
    assert stated == [
        'multi==1.0; python_version < "3.10"',
        'multi==2.0; python_version >= "3.10" and os_name == "posix"',
        "extra[a,b]<2,>=1.2",
        "either",
        "odd",
    ]
    assert [note.partition(" cannot be")[0] for note in notes] == [
        'pyproject.toml:6: either = "^1.2 || ^2.0"',
        'pyproject.toml:7: odd = "1.0"',
    ]
