"""Names: how they are imported, rebound, shadowed, and what an attribute chain on them is."""

from __future__ import annotations

import time

import pytest

from tooling.python.access_paths import Attribute, Called, Name
from tooling.upgrade.usage.config_files import config_uses
from tooling.upgrade.uses import Action, Use


def targets(index, action: Action) -> list:
    return [use.target for use in index.uses() if use.action is action]


def calls(index) -> list:
    return targets(index, Action.CALL)


def lines(index, action: Action = Action.CALL) -> list[int]:
    return [use.place.line for use in index.uses() if use.action is action]


def only(index, action: Action) -> Use:
    (use,) = [use for use in index.uses() if use.action is action]
    return use


def test_a_from_import_and_its_call_are_two_uses(index):
    found = index("from pkg.sub import f as g\ng(1)\n")
    assert targets(found, Action.IMPORT) == [Name("pkg.sub.f")]
    assert calls(found) == [Name("pkg.sub.f")]


def test_the_place_of_an_import_is_that_of_the_name(index):
    use = only(index("from pkg import (\n    a as b,\n)\n"), Action.IMPORT)
    assert (use.place.line, use.place.column, use.place.end_column) == (2, 4, 10)


def test_a_plain_import_makes_a_dotted_path(index):
    assert calls(index("import pkg.sub\npkg.sub.f()\n")) == [Name("pkg.sub.f")]


def test_an_alias_of_a_module_stands_for_it(index):
    assert calls(index("import pkg.sub as s\ns.f()\n")) == [Name("pkg.sub.f")]


def test_an_import_inside_a_function_is_seen_there_only(index):
    found = index("def f():\n    from pkg import g\n    g()\n\ndef h():\n    g()\n")
    assert lines(found) == [3]


def test_functions_see_what_the_module_imports_later(index):
    assert calls(index("def f():\n    return g()\n\nfrom pkg import g\n")) == [Name("pkg.g")]


def test_a_rebound_name_is_no_longer_the_packages(index):
    assert lines(index("from pkg import f\nf()\nf = print\nf()\n")) == [2]


def test_a_parameter_shadows_an_import(index):
    assert lines(index("from pkg import f\n\ndef g(f):\n    f()\n")) == []


def test_a_local_bound_below_shadows_the_global_from_the_start(index):
    assert lines(index("from pkg import f\n\ndef g():\n    f()\n    f = 1\n")) == []


def test_a_global_statement_reaches_the_module(index):
    found = index("from pkg import f\nx = None\n\ndef g():\n    global x\n    x = f()\n\ndef h():\n    x.run()\n")
    assert Attribute(Called(Name("pkg.f")), "run") in calls(found)


def test_nonlocal_names_are_followed_into_closures(index):
    found = index(
        """
        from pkg import f

        def outer():
            x = None

            def fill():
                nonlocal x
                x = f()

            def use():
                x.run()
        """
    )
    assert Attribute(Called(Name("pkg.f")), "run") in calls(found)


def test_names_of_a_class_body_are_not_seen_by_its_methods(index):
    assert lines(index("class C:\n    from pkg import f\n    f()\n    def m(self):\n        f()\n")) == [3]


def test_a_comprehension_has_a_scope_of_its_own(index):
    found = index("from pkg import f\n[f() for f in range(3)]\nf()\n")
    assert lines(found) == [3]


def test_a_walrus_in_a_comprehension_binds_outside(index):
    found = index("from pkg import f\n\ndef g():\n    [y for x in [1] if (y := f())]\n    y.run()\n")
    assert Attribute(Called(Name("pkg.f")), "run") in calls(found)


def test_a_deleted_name_is_gone(index):
    assert lines(index("from pkg import f\nf()\ndel f\nf()\n")) == [2]


def test_a_star_import_supplies_names_that_nothing_else_does(index):
    found = index("from pkg.sub import *\n\ndef mine(): ...\n\nf()\nmine()\nlen('')\n")
    assert targets(found, Action.STAR_IMPORT) == [Name("pkg.sub")]
    assert calls(found) == [Name("pkg.sub.f")]


def test_imports_by_name_are_strings_and_values(index):
    found = index("import importlib\nm = importlib.import_module('pkg.sub')\nm.f()\n__import__('pkg').g()\n")
    assert targets(found, Action.STRING) == [Name("pkg.sub"), Name("pkg")]
    assert calls(found) == [Name("pkg.sub.f"), Name("pkg.g")]


def test_dotted_strings_name_things(index):
    found = index("conf = {'_target_': 'pkg.sub.C'}\nentry = 'pkg.mod:main'\nother = 'package.sub'\n")
    assert targets(found, Action.STRING) == [Name("pkg.sub.C"), Name("pkg.mod.main")]


def test_docstrings_and_names_of_loggers_name_nothing(index):
    assert not list(index('"pkg.sub.C"\nimport logging\nlogging.getLogger("pkg.sub")\n').uses())


def test_prose_in_the_place_of_a_type_does_not_make_a_file_unreadable(index):
    found = index('import pkg\n\ndef f(a):\n    """Go.\n\n    a (if given): what\n    """\n    pkg.go(a)\n')
    assert [file.problem for file in found.files] == [""]
    assert calls(found) == [Name("pkg.go")]


def test_getattr_with_a_constant_reads_and_with_a_default_probes(index):
    found = index("import pkg\ngetattr(pkg, 'a')\ngetattr(pkg, 'b', None)\nhasattr(pkg, 'c')\n")
    assert targets(found, Action.READ) == [Name("pkg.a")]
    assert targets(found, Action.PROBE) == [Name("pkg.b"), Name("pkg.c")]


def test_parts_of_a_namespace_are_told_apart(index):
    code = "import megatron.core.a\nimport megatron.bridge\nmegatron.core.a.f()\nmegatron.bridge.g()\n"
    assert calls(index(code, "megatron.core")) == [Name("megatron.core.a.f")]


def test_private_parts_are_marked(index):
    found = index("from pkg._impl import f\nimport pkg\npkg.g._h()\npkg.__version__\n")
    assert [use.private for use in found.uses()] == [True, False, True, False]


def test_a_file_that_cannot_be_parsed_is_a_problem_and_no_more(index):
    found = index({"bad.py": "import pkg\nprint 'x'\n", "good.py": "import pkg\n"})
    assert [(file.path, bool(file.problem), len(file.uses)) for file in found.files] == [
        ("bad.py", True, 0),
        ("good.py", False, 1),
    ]


def test_a_byte_order_mark_moves_nothing(index, tmp_path):
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "bom.py").write_bytes(b"\xef\xbb\xbfimport pkg; pkg.f()\n")
    found = index({})
    assert [(use.symbol_text, use.place.column) for use in found.uses()] == [("pkg", 7), ("pkg.f()", 12)]


@pytest.mark.exhaustive
def test_a_file_that_names_thousands_of_callables_is_read_in_a_moment(tmp_path):
    (tmp_path / "a.yaml").write_text("_target_: pkg.f\nx: 1\n" * 20_000)
    started = time.process_time()
    (found,) = config_uses(tmp_path, ["a.yaml"], lambda dotted: dotted.partition(".")[0])
    assert len(found.uses) >= 40_000
    assert time.process_time() - started < 100, "each of them was looked for in the whole file"
