"""Code that tries one thing and falls back to another."""

from __future__ import annotations

from tooling.python.access_paths import Name
from tooling.upgrade.uses import Action


def attempts(found, dotted: str, action: Action = Action.IMPORT) -> list[tuple]:
    (use,) = [use for use in found.uses() if use.action is action and use.target == Name(dotted)]
    return [(one.part, one.handler, set(one.catches)) for one in use.attempts]


def test_an_import_and_its_fallback_belong_to_one_attempt(index):
    code = "try:\n    from pkg.new import f\nexcept ImportError:\n    from pkg.old import f\n"
    found = index(code)
    assert attempts(found, "pkg.new.f") == [("body", -1, {"ImportError"})]
    assert attempts(found, "pkg.old.f") == [("handler", 0, {"ImportError"})]
    assert len({attempt.number for use in found.uses() for attempt in use.attempts}) == 1


def test_a_body_is_caught_by_all_handlers(index):
    code = """
    try:
        from pkg import f
    except (ImportError, AttributeError):
        from pkg import g
    except:
        from pkg import h
    else:
        from pkg import i
    finally:
        from pkg import j
    """
    found = index(code)
    assert attempts(found, "pkg.f") == [("body", -1, {"ImportError", "AttributeError", "*"})]
    assert attempts(found, "pkg.h") == [("handler", 1, {"*"})]
    assert attempts(found, "pkg.i") == [("else", -1, {"ImportError", "AttributeError", "*"})]
    assert attempts(found, "pkg.j") == []


def test_attempts_nest_outermost_first(index):
    code = """
    try:
        from pkg import a
    except ImportError:
        try:
            from pkg import b
        except ImportError:
            from pkg import c
    """
    found = index(code)
    assert [part for part, _, _ in attempts(found, "pkg.b")] == ["handler", "body"]
    assert [part for part, _, _ in attempts(found, "pkg.c")] == ["handler", "handler"]


def test_what_follows_a_returning_attempt_is_its_fallback(index):
    code = """
    def go():
        try:
            from pkg.new import f
            return f
        except ImportError:
            pass
        from pkg.old import f
        return f
    """
    assert attempts(index(code), "pkg.old.f") == [("handler", 0, {"ImportError"})]


def test_handlers_that_raise_again_are_marked(index):
    code = "try:\n    from pkg import f\nexcept ImportError as error:\n    raise RuntimeError from error\n"
    (use,) = index(code).uses()
    assert [attempt.reraises for attempt in use.attempts] == [True]


def test_names_that_are_switched_off(index):
    code = "try:\n    from pkg import f\nexcept ImportError:\n    f = None\n    HAS = False\n"
    (use,) = index(code).uses()
    assert use.switches == (Name("f"), Name("HAS"))


def test_suppressed_errors_are_an_attempt(index):
    code = "import contextlib\nwith contextlib.suppress(ImportError):\n    from pkg import f\n"
    assert attempts(index(code), "pkg.f") == [("body", -1, {"ImportError"})]


def test_exceptions_of_packages_have_their_dotted_name(index):
    found = index("import pkg\ntry:\n    pkg.f()\nexcept pkg.Gone:\n    pass\n")
    assert attempts(found, "pkg.f", Action.CALL) == [("body", -1, {"pkg.Gone"})]
    assert attempts(found, "pkg.Gone", Action.EXCEPT) == []


def test_a_use_of_a_name_with_a_fallback_is_one_use_for_each_way(index):
    code = """
    try:
        from pkg.new import f
    except Exception:
        from pkg.old import f

    def go():
        f(1)
    """
    found = index(code)
    assert attempts(found, "pkg.new.f", Action.CALL) == [("else", -1, {"Exception"})]
    assert attempts(found, "pkg.old.f", Action.CALL) == [("handler", 0, {"Exception"})]


def test_functions_defined_in_an_attempt_do_not_run_in_it(index):
    code = "import pkg\ntry:\n    def go():\n        pkg.f()\nexcept ImportError:\n    pass\n"
    assert attempts(index(code), "pkg.f", Action.CALL) == []


def test_a_local_name_that_a_handler_sets_to_none_remembers_the_attempt(index):
    code = """
    def go():
        try:
            from pkg import f
        except Exception:
            f = None
        if f is not None:
            f()
    """
    assert attempts(index(code), "pkg.f", Action.CALL) == [("else", -1, {"Exception"})]


def test_a_value_made_before_an_attempt_is_none_of_its_business(index):
    code = """
    from pkg import f

    def go(x):
        try:
            x.load()
        except ImportError:
            pass
        f()
    """
    assert attempts(index(code), "pkg.f", Action.CALL) == []
