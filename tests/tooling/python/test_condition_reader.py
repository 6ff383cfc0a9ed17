"""Tests on conditions read as what a release decides: versions, probes, and functions that make them."""

import ast

import pytest

from tooling.python.access_paths import Name
from tooling.python.condition_reader import GuardDefinition, GuardSymbol, read_condition
from tooling.python.conditions import AllOf, CompareVersion, Constant, HasName, Not, Undecided, VersionSource
from tooling.python.operations import Fuel


class ModuleScope:
    """Names that `source` binds at its top level, and `pkg`, which is watched."""

    def __init__(self, source=""):
        self.names = {"pkg": GuardSymbol("pkg", Name("pkg"))}
        for node in ast.parse(source).body:
            name, value = (node.targets[0].id, node.value) if isinstance(node, ast.Assign) else (node.name, node)
            self.names[name] = GuardDefinition(value, self)

    def find(self, name):
        return self.names.get(name)

    def symbol(self, dotted):
        return None


def read(test, source=""):
    return read_condition(ast.parse(test, mode="eval").body, ModuleScope(source))


def version(operator, literal, parts=0):
    return CompareVersion(VersionSource.MODULE, "pkg", operator, literal, parts)


@pytest.mark.parametrize(
    ("test", "condition"),
    [
        ("'1.2' <= pkg.__version__", version(">=", "1.2")),
        ("tuple(map(int, pkg.__version__.split('.')[:2])) >= (1, 2)", version(">=", "1.2", 2)),
        ("[int(x) for x in pkg.__version__.split('.')] < [2, 0]", version("<", "2.0")),
        ("hasattr(pkg, 'f') is False", Not(HasName(Name("pkg"), "f"))),
        (
            "pkg.__version__ >= '2' and not hasattr(pkg, 'f')",
            AllOf((version(">=", "2"), Not(HasName(Name("pkg"), "f")))),
        ),
        ("pkg.f().g().h()", Undecided("pkg.f().g().h()")),
        ("'9' < '10'", Undecided("'9' < '10'")),
        ("'a' in ('a', 'b')", Constant(True)),
    ],
)
def test_tests_are_read_as_conditions(test, condition):
    assert read(test) == condition


def test_small_functions_are_followed_with_the_arguments_of_the_call():
    source = """
def at_least(minimum, strict=False):
    if minimum is None:
        return True
    if strict:
        return pkg.__version__ > minimum
    return pkg.__version__ >= minimum
"""
    assert read("at_least('3')", source) == version(">=", "3")
    assert read("at_least('3', strict=True)", source) == version(">", "3")
    assert read("at_least(None)", source) == Constant(True)


def test_each_part_of_a_tuple_is_decided_for_itself():
    source = """
def found():
    if hasattr(pkg, "f"):
        return True, pkg.__version__
    return False, "N/A"

def new():
    there, text = found()
    return there
"""
    assert read("new()", source) == HasName(Name("pkg"), "f")


def test_a_test_of_many_parts_takes_steps_in_proportion(monkeypatch):
    steps, test = [], "f()"
    monkeypatch.setattr(Fuel, "burn", lambda _fuel: steps.append(1))
    for _ in range(12):
        test = f"f((not ({test}) and g()) or (1 if h(1) == 2 else 2), size=g(4))"
    found = read(test)
    assert isinstance(found, Undecided)
    assert found.question.about() == frozenset()
    assert len(steps) < 1_000 * test.count("size")
