"""A name or dotted path becomes an object; a miss is explained; an error inside the target is not swallowed."""

from __future__ import annotations

import sys

import pytest

from areal.api import RegistryError, UsageError, load

TABLE = {
    "arithmetic": "json:dumps",
    "exact_match": "os.path:join",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules of a package `userland` that is importable in this test only."""

    def write(**modules: str) -> None:
        folder = tmp_path / "userland"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "userland"]:
        del sys.modules[name]


def test_a_name_gives_the_object_of_its_table_entry():
    import json

    assert load("reward", "arithmetic", TABLE) is json.dumps


@pytest.mark.parametrize("path", ["userland.rewards:exact", "userland.rewards.exact"])
def test_an_importable_path_needs_no_registration(package, path):
    package(rewards="def exact(): return 'mine'")
    assert load("reward", path, TABLE)() == "mine"


def test_a_path_may_lead_into_a_class(package):
    package(rewards="class Judge:\n    @staticmethod\n    def score(): return 0.5")
    assert load("reward", "userland.rewards:Judge.score", TABLE)() == 0.5


def test_an_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(RegistryError) as caught:
        load("reward", "arithmetik", TABLE)
    message = str(caught.value)
    assert "unknown reward 'arithmetik': did you mean 'arithmetic'?" in message
    assert "arithmetic, exact_match" in message


@pytest.mark.parametrize("name", ["", ":", "json:", ":dumps", "nothing_like_it"])
def test_an_incomplete_or_unknown_name_is_a_usage_error(name):
    with pytest.raises(UsageError, match="unknown reward"):
        load("reward", name, TABLE)


@pytest.mark.parametrize("path", ["userland.absent:exact", "no_such_package.rewards:exact"])
def test_a_module_that_does_not_exist_is_a_miss_and_named(package, path):
    package(rewards="")
    with pytest.raises(RegistryError, match=r"no module '(userland\.absent|no_such_package)'"):
        load("reward", path, TABLE)


def test_a_module_without_the_object_is_a_miss_and_named(package):
    package(rewards="other = 1")
    with pytest.raises(RegistryError, match=r"module 'userland\.rewards' has no object 'exact'"):
        load("reward", "userland.rewards:exact", TABLE)


def test_a_missing_dependency_of_the_target_passes_through(package):
    package(rewards="import a_dependency_nobody_has\ndef exact(): ...")
    with pytest.raises(ModuleNotFoundError, match="a_dependency_nobody_has"):
        load("reward", "userland.rewards:exact", TABLE)


def test_a_missing_sibling_inside_the_targets_own_package_passes_through(package):
    package(rewards="from userland import helpers_that_were_never_written\ndef exact(): ...")
    with pytest.raises(ImportError, match="helpers_that_were_never_written") as caught:
        load("reward", "userland.rewards:exact", TABLE)
    assert not isinstance(caught.value, RegistryError)


def test_any_other_error_while_importing_the_target_passes_through(package):
    package(rewards="raise ZeroDivisionError('in the user module')")
    with pytest.raises(ZeroDivisionError, match="in the user module"):
        load("reward", "userland.rewards:exact", TABLE)
