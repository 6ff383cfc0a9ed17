"""A specifier changes as little as is honest.

python -m pytest tests/tooling/upgrade/manifests/test_specifiers.py -q
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tooling.cli.errors import UsageError
from tooling.upgrade.declarations.declaration import SpecifierStyle
from tooling.upgrade.manifests.specifiers import allows, changed


@pytest.mark.parametrize(
    ("old", "version", "new"),
    [
        ("==0.11.0", "0.18.0", "==0.18.0"),
        ("== 0.11.0", "0.18.0", "== 0.18.0"),
        ("===0.11.0", "0.18.0", "===0.18.0"),
        ("==2.9.1+cu128", "2.10.0", "==2.10.0+cu128"),
        ("==0.11.*", "0.18.0", "==0.18.*"),
        ("", "0.18.0", ""),
        (">=0.11", "0.18.0", ">=0.11"),
        (">=0.11,<0.20", "0.18.0", ">=0.11,<0.20"),
        (">=0.11,<0.12", "0.18.0", ">=0.11,<0.19"),
        (">=0.11 , < 0.12", "0.18.0", ">=0.11 , < 0.19"),
        ("<5", "5.3.0", "<6"),
        (">=4.0.0,<5.0.0", "5.3.0", ">=4.0.0,<6.0.0"),
        ("<2.11,>=2.9.1", "2.13.0", "<2.14,>=2.9.1"),
        ("<4.57.2", "4.57.2", "<4.57.3"),
        ("<=0.18.1", "0.19.1", "<=0.19.1"),
        ("~=0.11.2", "0.18.0", "~=0.18.0"),
        ("~=4.5", "5.3.0", "~=5.3"),
        ("~=1.0.0", "2.0+cu12", "~=2.0.0"),
        (">=3,<1", "2.0+cu12", ">=2.0,<3"),
        ("<=1", "2.0+cu12", "<=2.0"),
        (">=5.0,!=5.1.*,!=5.3.0", "5.3.0", ">=5.0,!=5.1.*"),
        ("!=5.3.0", "5.3.0", ""),
        (">=5", "4.57.1", ">=4.57.1"),
        (">5", "4.57.1", ">=4.57.1"),
        (">=0.5", "0.6.0rc1", ">=0.5"),
        ("==${TORCH_VER}+cu129", "2.13.0", "==${TORCH_VER}+cu129"),
    ],
)
def test_only_what_forbids_the_version_changes(old, version, new):
    outcome = changed(old, SpecifierStyle.PEP508, version)
    assert outcome.specifier == new
    assert outcome.why
    assert not outcome.problem


def test_a_range_is_raised_where_the_policy_says_so():
    assert changed(">=0.11,<1", SpecifierStyle.PEP508, "0.18.0", "raise").specifier == ">=0.18.0,<1"
    assert changed(">=0.18.0", SpecifierStyle.PEP508, "0.18.0", "raise").specifier == ">=0.18.0"
    assert changed("<1", SpecifierStyle.PEP508, "0.18.0", "raise").specifier == "<1"


@pytest.mark.parametrize(
    ("style", "old", "new"),
    [
        (SpecifierStyle.PLAIN, "0.11.0", "0.18.0"),
        (SpecifierStyle.PLAIN, "0.18.0", "0.18.0"),
        (SpecifierStyle.CONDA, "=0.11", "=0.18"),
        (SpecifierStyle.CONDA, "=0.18", "=0.18"),
        (SpecifierStyle.CONDA, ">=0.11,<0.12", ">=0.11,<0.19"),
        (SpecifierStyle.POETRY, "^0.11.0", "^0.18.0"),
        (SpecifierStyle.POETRY, "^0.18", "^0.18"),
        (SpecifierStyle.POETRY, "~0.11.2", "~0.18.0"),
        (SpecifierStyle.POETRY, "0.11.0", "0.18.0"),
        (SpecifierStyle.POETRY, ">=0.11", ">=0.11"),
    ],
)
def test_each_style_keeps_its_form(style, old, new):
    assert changed(old, style, "0.18.0").specifier == new


@pytest.mark.parametrize("specifier", ["=1.2=py38_0", "=1.2,<2", "=1.2|1.3"])
def test_a_specifier_of_conda_that_is_no_prefix_is_a_problem_and_no_error(specifier):
    assert changed(specifier, SpecifierStyle.CONDA, "2.0").problem


def test_a_commit_cannot_be_moved_to_a_version():
    outcome = changed("310e8fb", SpecifierStyle.OPAQUE, "0.18.0")
    assert outcome.problem
    assert outcome.specifier == "310e8fb"


def test_what_is_no_version_is_refused():
    with pytest.raises(UsageError, match="is not a version"):
        changed("==1", SpecifierStyle.PEP508, "latest")


VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(st.lists(st.tuples(st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), VERSIONS), max_size=4), VERSIONS)
def test_the_outcome_allows_the_version_or_says_that_it_cannot(clauses, version):
    specifier = ",".join(f"{operator}{bound}" for operator, bound in clauses)
    outcome = changed(specifier, SpecifierStyle.PEP508, version)
    if outcome.problem:
        assert outcome.specifier == specifier
    else:
        assert allows(outcome.specifier, Version(version))
        assert changed(outcome.specifier, SpecifierStyle.PEP508, version).specifier == outcome.specifier
