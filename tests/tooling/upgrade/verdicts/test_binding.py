"""Arguments bound as Python binds them."""

from __future__ import annotations

import ast

import pytest

from tooling.python.symbols.calls import STAR, STARS, bind, fits, misfit, why_refused, written_signature
from tooling.python.symbols.symbol import Keyword, Signature
from tooling.upgrade.uses import Argument, PassedArguments, SourcePlace
from tooling.upgrade.verdicts.overrides import call_arguments

HERE = SourcePlace("client.py", 1, 0, 1, 1)


def signature(text: str) -> Signature:
    """The signature of `def f(<text>)`."""
    return written_signature(ast.parse(f"def f({text}): ...").body[0].args)


def call(
    *positional: int, partial: bool = False, star: bool = False, stars: bool = False, **named: int
) -> PassedArguments:
    given = [Argument(HERE, None, index) for index in range(len(positional))]
    given += [Argument(HERE, name, -1) for name in named]
    return PassedArguments(tuple(given), star, stars, partial)


def refuse(_name: str) -> Keyword:
    return Keyword.REFUSED


@pytest.mark.parametrize("text", ["a, b=1", "a, /, b=1", "a, *rest, b=1", "a, *, b", "a, b=1, **more", "*all", ""])
@pytest.mark.parametrize("positional", [(), (1,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("named", [{}, {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "b": 2}])
def test_a_call_fits_exactly_if_python_says_so(text, positional, named) -> None:
    space: dict[str, object] = {}
    exec(f"def f({text}): ...", space)
    try:
        space["f"](*positional, **named)
        expected = True
    except TypeError:
        expected = False
    assert fits(signature(text), call(*positional, **named)) is expected


def test_arguments_beyond_the_named_ones_land_in_star() -> None:
    bound = bind(signature("a, *rest, **more"), call(1, 2, x=3), lambda _name: Keyword.OPEN)
    assert list(bound.slots.values()) == ["a", STAR, STARS]
    assert list(bound.keywords.values()) == [Keyword.OPEN]


def test_what_is_hidden_in_stars_is_not_missing() -> None:
    assert bind(signature("a, b"), call(1), refuse).missing
    assert not bind(signature("a, b"), call(1, star=True), refuse).missing
    assert not bind(signature("a, *, b"), call(1, stars=True), refuse).missing
    assert not bind(signature("a, b"), call(1, partial=True), refuse).missing


def test_a_positional_only_parameter_cannot_come_from_a_dictionary() -> None:
    assert bind(signature("a, b, /"), call(1, stars=True), refuse).missing


def test_pydantic_says_what_becomes_of_extras() -> None:
    for extra, keyword in (("forbid", Keyword.REFUSED), ("ignore", Keyword.IGNORED), ("allow", Keyword.READ)):
        model = Signature(signature("*, prompt").parameters, extra=extra)
        assert bind(model, call(prompt=1, more=2), refuse).keywords == {1: keyword}


def test_what_hides_nothing_is_refused_with_a_reason() -> None:
    given = signature("a, *, b=1")
    expected = {"f(1)": "", "f(*x)": "", "f(**x)": "", "f()": "needs `a`", "f(1, c=2, d=3)": "takes no `c`"}
    expected["f(1, 2)"] = "takes 1 positional arguments, 2 are passed"
    for text, why in expected.items():
        assert why_refused(given, ast.parse(text, mode="eval").body) == why


def test_what_stands_for_another_takes_all_that_may_be_passed() -> None:
    assert misfit(signature("a, b=1, *, c=2"), signature("a, b=1, *, c=2")) == ""
    assert misfit(signature("*all, **more"), signature("a, b=1")) == ""
    assert misfit(signature("a, b"), signature("a, b=1")) == "it cannot be called with the required arguments alone"
    assert misfit(signature("a"), signature("a, b=1")) == "it does not take all arguments that may be passed"


def test_calls_in_a_release_are_read_unless_they_hide_arguments() -> None:
    assert len(call_arguments("await self.step(1, size=2)", "step").given) == 2
    assert call_arguments("self.step(*values)", "step") is None
    assert call_arguments("self.step(**values)", "step") is None
    assert call_arguments("not python (", "step") is None
    assert call_arguments("self.other(1)", "step") is None


@pytest.mark.parametrize(("text", "left"), [("self, x", ["x"]), ("*args, **kwargs", ["args", "kwargs"]), ("", [])])
def test_a_bound_method_loses_a_parameter_that_has_a_position(text, left):
    arguments = ast.parse(f"def f({text}): ...").body[0].args
    assert [each.name for each in written_signature(arguments, bound=True).parameters] == left
