"""Conditions that uses stand under: what they are read as, and which code they reach."""

from __future__ import annotations

import textwrap

import pytest

from tooling.python.access_paths import Attribute, Called, Either, Name, Unknown
from tooling.python.conditions import (
    AllOf,
    AnyOf,
    CompareVersion,
    Constant,
    HasName,
    HasParameter,
    ModuleExists,
    Not,
    Undecided,
    VersionSource,
)
from tooling.upgrade.uses import Action


def compare(
    operator: str, literal: str, parts: int = 0, source: VersionSource = VersionSource.MODULE
) -> CompareVersion:
    return CompareVersion(source, "pkg", operator, literal, parts)


def conditions_of_call(found, name: str = "pkg.f") -> tuple:
    (use,) = [use for use in found.uses() if use.action is Action.CALL and use.target == Name(name)]
    return use.conditions


def under(index, test: str, before: str = "") -> tuple:
    """Conditions of a call of pkg.f in the body of `if test:`."""
    return conditions_of_call(index(f"import pkg\n{before}\nif {test}:\n    pkg.f()\n"))


DISTRIBUTION = VersionSource.DISTRIBUTION


@pytest.mark.parametrize(
    ("before", "test", "expected"),
    [
        ("", "pkg.__version__ >= '1.2'", compare(">=", "1.2")),
        ("", "'1.2' <= pkg.__version__", compare(">=", "1.2")),
        ("", "pkg.__version__.startswith('1.')", compare("startswith", "1.")),
        ("from packaging.version import Version", "Version(pkg.__version__) < Version('2')", compare("<", "2")),
        ("from packaging import version", "version.parse(pkg.__version__) == version.parse('2')", compare("==", "2")),
        ("from packaging.version import parse", "parse(pkg.__version__).release >= (1, 2)", compare(">=", "1.2")),
        ("from packaging.version import parse", "parse(pkg.__version__).major >= 5", compare(">=", "5", 1)),
        ("from distutils.version import LooseVersion as V", "V(pkg.__version__) > V('1')", compare(">", "1")),
        ("", "tuple(map(int, pkg.__version__.split('.')[:2])) >= (1, 2)", compare(">=", "1.2", 2)),
        ("", "tuple(int(x) for x in pkg.__version__.split('.')[:2]) < (1, 2)", compare("<", "1.2", 2)),
        ("", "int(pkg.__version__.split('.')[0]) >= 2", compare(">=", "2", 1)),
        ("from pkg import __version__ as V", "V != '1.0'", compare("!=", "1.0")),
        (
            "import importlib.metadata as m\nfrom packaging.version import Version as V",
            "V(m.version('pkg')) >= V('1')",
            compare(">=", "1", 0, DISTRIBUTION),
        ),
        ("from importlib.metadata import version", "version('pkg') >= '1'", compare(">=", "1", 0, DISTRIBUTION)),
        (
            "import pkg_resources as r",
            "r.parse_version(r.get_distribution('pkg').version) < r.parse_version('3')",
            compare("<", "3", 0, DISTRIBUTION),
        ),
        ("", "pkg.__version__ in ('1.0', '1.1')", AnyOf((compare("==", "1.0"), compare("==", "1.1")))),
        (
            "from packaging.version import Version as V",
            "V('1') <= V(pkg.__version__) < V('2')",
            AllOf((compare(">=", "1"), compare("<", "2"))),
        ),
        ("", "not pkg.__version__ >= '1'", Not(compare(">=", "1"))),
        ("", "hasattr(pkg, 'x')", HasName(Name("pkg"), "x")),
        ("", "getattr(pkg, 'x', None) is not None", HasName(Name("pkg"), "x")),
        ("", "getattr(pkg, 'x', None) is None", Not(HasName(Name("pkg"), "x"))),
        ("", "'x' in dir(pkg.sub)", HasName(Name("pkg.sub"), "x")),
        (
            "from inspect import signature as s\nfrom pkg import g",
            "'k' in s(g).parameters",
            HasParameter(Name("pkg.g"), "k"),
        ),
        (
            "import dataclasses\nfrom pkg import C",
            "'k' not in {f.name for f in dataclasses.fields(C)}",
            Not(HasParameter(Name("pkg.C"), "k")),
        ),
        ("import importlib.util", "importlib.util.find_spec('pkg.x') is not None", ModuleExists("pkg.x")),
        ("from importlib.util import find_spec", "find_spec('pkg.x')", ModuleExists("pkg.x")),
        ("from transformers.utils import is_pkg_available", "is_pkg_available()", ModuleExists("pkg")),
        ("from trl.utils import _is_package_available", "_is_package_available('pkg')", ModuleExists("pkg")),
        ("from accelerate.utils import is_pkg_version", "is_pkg_version('>=', '2')", compare(">=", "2")),
        ("NEW = pkg.__version__ >= '1'", "NEW", compare(">=", "1")),
        ("NEW = pkg.__version__ >= '1'", "NEW is True", compare(">=", "1")),
        ("import sys", "sys.version_info >= (3, 12)", Undecided("sys.version_info >= (3, 12)")),
        ("import other", "other.version() >= '1'", Undecided("other.version() >= '1'")),
    ],
)
def test_a_condition_is_read_as(index, before, test, expected):
    assert under(index, test, before) == (expected,)


def test_a_version_in_a_local_variable(index):
    code = """
    import pkg
    from packaging.version import Version

    def go():
        have = Version(pkg.__version__)
        new = have >= Version("1.2")
        if new:
            pkg.f()
    """
    assert conditions_of_call(index(code)) == (compare(">=", "1.2"),)


@pytest.mark.parametrize("name", ["rows", "versions"])
def test_a_list_that_was_empty_says_nothing(index, name):
    code = f"""
    import pkg

    def go(items):
        {name} = []
        for item in items:
            {name}.append(item)
        if not {name}:
            return
        pkg.f()
    """
    assert conditions_of_call(index(code)) == (Undecided(name),)


def test_a_condition_is_followed_into_the_functions_that_it_calls(index):
    files = {
        "proj/__init__.py": "",
        "proj/compat.py": "import pkg\n\n\ndef new():\n    return hasattr(pkg, 'g')\n",
        "proj/check.py": "from proj import compat\n\n\ndef usable(rows):\n    return compat.new()\n",
        "proj/main.py": "import pkg\nfrom proj.check import usable as fits\n\nif fits([]):\n    pkg.f()\n",
    }
    assert conditions_of_call(index(files)) == (HasName(Name("pkg"), "g"),)


def test_a_reassigned_variable_says_nothing(index):
    code = "import pkg\ndef go(x):\n    new = pkg.__version__ >= '1'\n    new = x\n    if new:\n        pkg.f()\n"
    assert conditions_of_call(index(code)) == (Undecided("new"),)


def test_a_constant_in_a_compat_module(index):
    files = {
        "proj/__init__.py": "",
        "proj/compat.py": (
            "import pkg\nfrom packaging.version import Version\nV = Version(pkg.__version__)\nNEW = V >= Version('1')\n"
        ),
        "proj/a.py": "import pkg\nfrom proj.compat import NEW\nif NEW:\n    pkg.f()\n",
        "proj/b.py": (
            "import pkg\nfrom . import compat\nfrom .compat import V\n"
            "if not compat.NEW and V.major == 0:\n    pkg.g()\n"
        ),
    }
    found = index(files)
    assert conditions_of_call(found) == (compare(">=", "1"),)
    assert conditions_of_call(found, "pkg.g") == (AllOf((Not(compare(">=", "1")), compare("==", "0", 1))),)


def test_a_package_and_its_version_are_asked_for_at_once(index):
    found = index(
        {
            "own/found.py": """
                import importlib.metadata
                import importlib.util

                def _is_package_available(name, return_version=False):
                    there = importlib.util.find_spec(name) is not None
                    version = "N/A"
                    if there:
                        try:
                            version = importlib.metadata.version(name)
                        except importlib.metadata.PackageNotFoundError:
                            version = "N/A"
                    return (there, version) if return_version else there
            """,
            "own/compat.py": """
                import pkg
                from packaging.version import Version
                from .found import _is_package_available

                def at_least(name, minimum):
                    try:
                        is_there, version = _is_package_available(name, return_version=True)
                        return is_there and Version(version) >= Version(minimum)
                    except Exception:
                        return False

                if at_least("pkg", "5.0"):
                    pkg.f()
            """,
        }
    )
    assert conditions_of_call(found) == (AllOf((ModuleExists("pkg"), compare(">=", "5.0"))),)


def test_small_functions_are_evaluated_by_substitution(index):
    files = {
        "checks.py": """
            import functools
            import importlib.metadata
            import importlib.util
            import operator
            from packaging import version

            OPERATORS = {">=": operator.ge, "<": operator.lt}

            def _version(name):
                try:
                    return version.parse(importlib.metadata.version(name))
                except Exception:
                    return version.parse("0.0.0")

            @functools.lru_cache
            def is_greater(content: str):
                return _version("pkg") >= version.parse(content)

            def compares(operation, wanted):
                return OPERATORS[operation](_version("pkg"), version.parse(wanted))

            def has(name):
                return importlib.util.find_spec(name) is not None

            def has_by_import():
                try:
                    import pkg.sub  # noqa: F401
                    return True
                except ImportError:
                    return False
        """,
        "a.py": "import pkg\nfrom checks import is_greater\nif is_greater('4.49.0'):\n    pkg.a()\n",
        "b.py": "import pkg, checks\nif checks.compares('<', '2'):\n    pkg.b()\n",
        "c.py": "import pkg, checks\nif checks.has('pkg.sub'):\n    pkg.c()\n",
        "d.py": "import pkg, checks\nif checks.has_by_import():\n    pkg.d()\n",
    }
    found = index({name: textwrap.dedent(text) for name, text in files.items()})
    assert conditions_of_call(found, "pkg.a") == (compare(">=", "4.49.0", 0, DISTRIBUTION),)
    assert conditions_of_call(found, "pkg.b") == (compare("<", "2", 0, DISTRIBUTION),)
    assert conditions_of_call(found, "pkg.c") == (ModuleExists("pkg.sub"),)
    assert conditions_of_call(found, "pkg.d") == (ModuleExists("pkg.sub"),)


def test_a_flag_that_an_import_sets(index):
    code = "try:\n    from pkg import x\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    x()\n"
    assert conditions_of_call(index(code), "pkg.x") == (HasName(Name("pkg"), "x"),)


def test_a_name_that_a_handler_sets_to_none(index):
    code = (
        "import pkg\ntry:\n    import pkg.sub as s\nexcept ImportError:\n    s = None\nif s is not None:\n    pkg.f()\n"
    )
    assert conditions_of_call(index(code)) == (ModuleExists("pkg.sub"),)


NEW = compare(">=", "1")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if NEW:\n    pass\nelse:\n    pkg.f()", (Not(NEW),)),
        ("if NEW:\n    pass\nelif pkg.__version__ >= '0.5':\n    pkg.f()", (Not(NEW), compare(">=", "0.5"))),
        ("if NEW:\n    return\npkg.f()", (Not(NEW),)),
        ("if not NEW:\n    raise RuntimeError\npkg.f()", (NEW,)),
        ("for _ in x:\n    if NEW:\n        continue\n    pkg.f()", (Not(NEW),)),
        ("if NEW:\n    sys.exit()\npkg.f()", (Not(NEW),)),
        ("if NEW:\n    if x:\n        return\n    else:\n        return\npkg.f()", (Not(NEW),)),
        ("if NEW:\n    pass\npkg.f()", ()),
        ("for _ in x:\n    if NEW:\n        break\npkg.f()", ()),
        ("NEW and pkg.f()", (NEW,)),
        ("NEW or pkg.f()", (Not(NEW),)),
        ("not NEW and x and pkg.f()", (Not(NEW), Undecided("x"))),
        ("y = pkg.f() if NEW else None", (NEW,)),
        ("y = None if NEW else pkg.f()", (Not(NEW),)),
        ("assert NEW\npkg.f()", (NEW,)),
        ("while NEW:\n    pkg.f()", (NEW,)),
        ("[pkg.f() for y in x if NEW]", (NEW,)),
        ("if (new := NEW):\n    pkg.f()", (NEW,)),
        ("z = {True: lambda: pkg.f(), False: lambda: None}[NEW]", (NEW,)),
        ("with x:\n    if NEW:\n        return\n    pkg.f()", (Not(NEW),)),
        ("class C:\n    if NEW:\n        y = pkg.f()", (NEW,)),
        ("if NEW:\n    def g():\n        pkg.f()", (NEW,)),
        ("match pkg.__version__:\n    case '1.0':\n        pkg.f()", (compare("==", "1.0"),)),
        (
            "match pkg.__version__:\n    case '1.0':\n        pass\n    case _:\n        pkg.f()",
            (Not(compare("==", "1.0")),),
        ),
    ],
)
def test_what_a_guard_reaches(index, body, expected):
    code = f"import sys\nimport pkg\nNEW = pkg.__version__ >= '1'\n\ndef go(x):\n{textwrap.indent(body, '    ')}\n"
    assert conditions_of_call(index(code)) == expected


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [
        ("@pytest.mark.skipif(NEW, reason='x')", Not(NEW)),
        ("@unittest.skipIf(NEW, 'x')", Not(NEW)),
        ("@unittest.skipUnless(NEW, 'x')", NEW),
    ],
)
def test_decorators_that_skip(index, decorator, expected):
    code = f"import pytest, unittest, pkg\nNEW = pkg.__version__ >= '1'\n{decorator}\ndef test_it():\n    pkg.f()\n"
    assert conditions_of_call(index(code)) == (expected,)
    inside = (
        f"import pytest, unittest, pkg\nNEW = pkg.__version__ >= '1'\n{decorator}\n"
        "class T:\n    def test(self):\n        pkg.f()\n"
    )
    assert conditions_of_call(index(inside)) == (expected,)


def test_a_mark_for_the_whole_file(index):
    code = (
        "import pytest, pkg\n"
        "pytestmark = pytest.mark.skipif(pkg.__version__ < '1', reason='old')\n"
        "def test():\n    pkg.f()\n"
    )
    assert conditions_of_call(index(code)) == (Not(compare("<", "1")),)


def test_an_import_that_skips_gives_the_least_version(index):
    found = index("import pytest\npkg = pytest.importorskip('pkg', minversion='1.5')\npkg.f()\n")
    assert conditions_of_call(found) == (compare(">=", "1.5"),)
    (use,) = [use for use in found.uses() if use.action is Action.IMPORT]
    assert [attempt.catches for attempt in use.attempts] == [frozenset({"ImportError"})]
    assert use.switches == (Name("pytest.skip"),)


def test_type_checking_blocks_are_never_run(index):
    found = index(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import C\nelse:\n    from pkg import D\n"
    )
    assert [(use.target, use.evaluated) for use in found.uses()] == [(Name("pkg.C"), False), (Name("pkg.D"), True)]


def test_type_checking_inside_another_condition_is_false(index):
    assert under(index, "TYPE_CHECKING or hasattr(pkg, 'x')", "from typing import TYPE_CHECKING") == (
        HasName(Name("pkg"), "x"),
    )
    assert under(index, "TYPE_CHECKING and True", "from typing import TYPE_CHECKING") == (Constant(False),)


def test_a_name_bound_under_a_guard_brings_it_along(index):
    code = """
    import pkg
    if pkg.__version__ >= "1":
        from pkg.new import f
    else:
        from pkg.old import f

    def go():
        f()
    """
    found = index(code)
    assert conditions_of_call(found, "pkg.new.f") == (NEW,)
    assert conditions_of_call(found, "pkg.old.f") == (Not(NEW),)


def test_probes_of_values_use_what_is_known_of_them(index):
    code = "from pkg import C\n\ndef go():\n    c = C()\n    if hasattr(c.engine, 'run'):\n        c.engine.run()\n"
    calls = [use for use in index(code).uses() if use.action is Action.CALL and use.target != Name("pkg.C")]
    assert [use.conditions for use in calls] == [(HasName(Attribute(Called(Name("pkg.C")), "engine"), "run"),)]


def test_guards_are_listed_for_the_day_they_are_pointless(index):
    found = index("import pkg\nif pkg.__version__ >= '1':\n    pass\nif len('x') > 1:\n    pass\n")
    assert [guard.condition for file in found.files for guard in file.guards] == [NEW]


def test_branches_that_the_run_chooses_make_a_union(index):
    code = """
    import pkg

    def go(flag, model):
        if flag and hasattr(pkg, "wrap"):
            model = pkg.wrap(model)
        model.run()
    """
    (use,) = [use for use in index(code).uses() if use.symbol_text == "model.run()"]
    assert use.target == Either((Attribute(Called(Name("pkg.wrap")), "run"), Unknown()))
    assert use.conditions == ()


def test_branches_that_the_version_chooses_are_told_apart(index):
    code = """
    import pkg

    def go(flag):
        if flag:
            if pkg.__version__ >= "1":
                x = pkg.new()
            else:
                x = pkg.old()
            x.run()
    """
    uses = {use.target: use.conditions for use in index(code).uses() if use.symbol_text == "x.run()"}
    assert uses == {
        Attribute(Called(Name("pkg.new")), "run"): (NEW, Undecided("flag")),
        Attribute(Called(Name("pkg.old")), "run"): (Not(NEW), Undecided("flag")),
    }


def test_conditions_of_the_run_stay_undecided_in_words(index):
    code = "import os, pkg\n\ndef go(x):\n    if not os.path.exists(x):\n        pkg.f()\n"
    assert conditions_of_call(index(code)) == (Not(Undecided("os.path.exists(x)")),)
    code = "import os, pkg\n\ndef ready(): return os.getpid() > 1\n\ndef go():\n    if ready():\n        pkg.f()\n"
    assert conditions_of_call(index(code)) == (Undecided("ready()"),)


@pytest.mark.parametrize(
    ("more", "guarded"),
    [
        ({}, True),
        ({"README.md": "python -m own.part_1\n", "other.py": "from importlib import import_module\n"}, True),
        ({"run.yaml": "command: python -m own.part_1\n"}, False),
        ({"run.sh": "python own/part_1.py\n"}, False),
        ({"parts.py": 'import importlib\npart = importlib.import_module(f"own.part_{number}")\n'}, False),
        ({"own/part_1.py": 'import pkg\npkg.f()\nif __name__ == "__main__":\n    print()\n'}, False),
    ],
)
def test_a_module_that_runs_in_other_ways_too_is_not_guarded_by_its_import(index, more, guarded):
    main = "import pkg\nif pkg.__version__ < '2':\n    import own.part_1\n"
    found = index({"main.py": main, "own/__init__.py": "", "own/part_1.py": "import pkg\npkg.f()\n", **more})
    assert bool(conditions_of_call(found)) == guarded
