"""Arguments of calls, also of those that something else makes."""

from __future__ import annotations

import pytest

from tooling.python.access_paths import Attribute, Called, Name
from tooling.upgrade.uses import Action, Use

F = Name("pkg.f")


def call(found, target=F) -> Use:
    (use,) = calls(found, target)
    return use


def calls(found, target=F) -> list[Use]:
    return [use for use in found.uses() if use.action is Action.CALL and use.target == target]


def given(use: Use) -> list[tuple]:
    return [(one.name if one.name is not None else one.position, one.literal) for one in use.arguments.given]


def test_arguments_have_places_of_their_own(index):
    use = call(index("from pkg import f\nf(1,\n  key='x')\n"))
    assert given(use) == [(0, "1"), ("key", "'x'")]
    place = use.arguments.given[1].place
    assert (place.line, place.column, place.end_column) == (3, 2, 9)


@pytest.mark.parametrize(
    ("code", "expected", "star", "double"),
    [
        ("f(*x)", [], True, False),
        ("f(1, *x, 2)", [(0, "1")], True, False),
        ("f(*(1, 2))", [(0, "1"), (1, "2")], False, False),
        ("f(**x)", [], False, True),
        ("f(**{'a': 1})", [("a", "1")], False, False),
        ("f(**dict(a=1, b=2))", [("a", "1"), ("b", "2")], False, False),
        ("f(**{'a': 1, **x})", [("a", "1")], False, True),
        ("f(**{'a': 1, y: 2})", [("a", "1")], False, True),
        ("f(**({'a': 1} | {'b': 2}))", [("a", "1"), ("b", "2")], False, False),
        ("k = {'a': 1}\n    f(**k)", [("a", "1")], False, False),
        ("k = dict(a=1)\n    k['b'] = 2\n    f(**k)", [("a", "1"), ("b", "2")], False, False),
        ("k = {}\n    k.update(a=1)\n    k.update({'b': 2})\n    f(**k)", [("a", "1"), ("b", "2")], False, False),
        ("k = {'a': 1, 'b': 2}\n    del k['a']\n    k.pop('b')\n    f(**k)", [], False, False),
        ("k = {'a': 1}\n    k |= {'b': 2}\n    f(**k)", [("a", "1"), ("b", "2")], False, False),
        ("k = {'a': 1}\n    k[x] = 2\n    f(**k)", [("a", "1")], False, True),
        ("k = {'a': 1}\n    x(k)\n    f(**k)", [("a", "1")], False, True),
        ("k = x()\n    k['a'] = 1\n    f(**k)", [("a", "1")], False, True),
        ("k = {'a': 1}\n    k = x\n    f(**k)", [], False, True),
    ],
)
def test_what_is_unpacked(index, code, expected, star, double):
    use = call(index(f"from pkg import f\n\ndef go(x, y):\n    {code}\n"))
    assert given(use) == expected
    assert (use.arguments.has_star, use.arguments.has_double_star) == (star, double)


def test_a_keyword_from_a_mapping_stands_where_its_key_stands(index):
    use = call(index("from pkg import f\nk = {\n    'a': 1,\n}\nf(**k)\n"))
    assert [(one.place.line, one.from_mapping) for one in use.arguments.given] == [(3, True)]


def test_a_constant_of_the_module_is_unpacked_in_functions(index):
    use = call(index("from pkg import f\nK = {'a': 1}\n\ndef go():\n    f(**K)\n"))
    assert given(use) == [("a", "1")]
    assert use.arguments.has_double_star  # somebody may have added to it


def test_keys_set_under_a_condition_are_judged_under_it(index):
    code = """
    import pkg

    def go():
        k = {"a": 1}
        if pkg.__version__ >= "2":
            k["new"] = 1
        else:
            k["old"] = 1
        pkg.f(**k)
    """
    found = {tuple(given(use)): (len(use.conditions), use.arguments) for use in calls(index(code))}
    assert {key: count for key, (count, _) in found.items()} == {
        (("a", "1"),): 0,
        (("new", "1"),): 1,
        (("old", "1"),): 1,
    }
    assert found[(("a", "1"),)][1].has_double_star  # nothing may be called missing


def test_a_filtered_dict_may_have_each_of_its_keys(index):
    code = "from pkg import f\n\ndef go():\n    k = {'a': 1}\n    k = {x: y for x, y in k.items() if y}\n    f(**k)\n"
    assert sorted(map(tuple, map(given, calls(index(code))))) == [(), (("a", "1"),)]


@pytest.mark.parametrize(
    "code",
    [
        "import functools\nfunctools.partial(f, 1, key=2)",
        "from threading import Thread\nThread(target=f, args=(1,), kwargs={'key': 2})",
        "import asyncio\nasyncio.to_thread(f, 1, key=2)",
        "def go(executor):\n    executor.submit(f, 1, key=2)",
    ],
)
def test_calls_that_others_make(index, code):
    use = call(index(f"from pkg import f\n{code}\n"))
    assert given(use) == [(0, "1"), ("key", "2")]
    assert use.arguments.partial


def test_a_partial_takes_the_keywords_of_what_it_wraps(index):
    found = index("import functools\nfrom pkg import f\ng = functools.partial(f, 1)\ng(2, key=3).run()\n")
    assert [given(use) for use in calls(found)] == [[(0, "1")], [("key", "3")]]
    assert all(use.arguments.partial for use in calls(found))
    assert calls(found, Attribute(Called(Name("pkg.f")), "run"))


def test_remote_calls_bind_like_calls(index):
    found = index("import ray\nfrom pkg import f\nr = ray.remote(f)\nx = ray.get(r.remote(1, key=2))\nx.run()\n")
    assert [given(use) for use in calls(found)] == [[(0, "1"), ("key", "2")]]
    assert calls(found, Attribute(Called(Name("pkg.f")), "run"))


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        ("await f()", True),
        ("f()", False),
        ("f().x", False),
        ("f()[0]", False),
        ("print(f() + 1)", False),
        ("x = f()", None),
        ("return f()", None),
        ("asyncio.gather(f())", None),
    ],
)
def test_whether_a_call_is_awaited(index, code, awaited):
    assert call(index(f"from pkg import f\n\nasync def go():\n    {code}\n")).awaited is awaited


def test_other_things_done_with_a_value(index):
    code = """
    from pkg import f

    async def go():
        a, b = f()
        f()[0]
        for x in f():
            pass
        async for y in f():
            pass
        with f():
            pass
        async with f():
            pass
        task = f()
        await task
    """
    value = Called(Name("pkg.f"))
    found = [use for use in index(code).uses() if use.target == value]
    assert [(use.action, use.count, use.awaited) for use in found] == [
        (Action.UNPACK, 2, None),
        (Action.SUBSCRIPT, None, None),
        (Action.ITERATE, None, False),
        (Action.ITERATE, None, True),
        (Action.ENTER, None, False),
        (Action.ENTER, None, True),
        (Action.AWAIT, None, None),
    ]


def test_monkey_patches_in_all_their_forms(index):
    code = """
    import pkg.mod
    from unittest import mock

    def mine(a, *, b=1): ...

    pkg.mod.a = mine
    setattr(pkg.mod, "b", mine)
    del pkg.mod.c

    def test_it(monkeypatch):
        monkeypatch.setattr(pkg.mod, "d", mine)
        monkeypatch.setattr("pkg.mod.e", mine)
        with mock.patch.object(pkg.mod, "f"), mock.patch("pkg.mod.g"):
            pass
    """
    found = [use for use in index(code).uses() if use.action is not Action.IMPORT]
    assert [(use.action, use.target) for use in found] == [
        (Action.ASSIGN, Name("pkg.mod.a")),
        (Action.ASSIGN, Name("pkg.mod.b")),
        (Action.DELETE, Name("pkg.mod.c")),
        (Action.ASSIGN, Name("pkg.mod.d")),
        (Action.STRING, Name("pkg.mod.e")),
        (Action.ASSIGN, Name("pkg.mod.f")),
        (Action.STRING, Name("pkg.mod.g")),
    ]
    assert [(one.name, one.kind, one.default is None) for one in found[0].method.signature.parameters] == [
        ("a", "positional", True),
        ("b", "keyword-only", False),
    ]


def test_made_up_modules_are_not_looked_up(index):
    code = (
        "import sys\nfrom unittest import mock\nsys.modules['pkg.x'] = 1\n"
        "with mock.patch.dict('sys.modules', {'pkg.y': 1}):\n    pass\n"
    )
    assert [(use.action, use.place.line) for use in index(code).uses()] == [(Action.ASSIGN, 3)]
