"""How functions and classes are called, and when that is not certain."""

from __future__ import annotations

import pytest

from tooling.python.symbols.symbol import Absent, Found, Open, Provider
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.sources.folder import memory_release


@pytest.mark.parametrize(
    "definition",
    ["f(a, /, b, *, c=1, **kwargs) -> int", "f(a: int = 2, *args: str, b: str)", "f()", "f(a, b=(1, 2))"],
)
def test_a_function_is_called_as_it_is_written(package, definition):
    assert package(root=f"def {definition}: ...").text("pkg.f") == definition


def test_self_and_cls_are_not_parameters(package):
    release = package(
        root="""
        class C:
            def m(self, a): ...
            @classmethod
            def c(cls, a): ...
            @staticmethod
            def s(a): ...
            @property
            def p(self): ...
            def _outside(self, b): ...
            taken = _outside
        def free(self, z): ...
        class D:
            method = free
            made = classmethod(free)
        """
    )
    assert [release.text(f"pkg.C.{name}") for name in "mcsp"] == ["f(a)", "f(a)", "f(a)", "f()"]
    assert [release.found(f"pkg.C.{name}").binding for name in "mcsp"] == [
        "method",
        "classmethod",
        "staticmethod",
        "property",
    ]
    assert release.text("pkg.D.method") == "f(z)"
    assert release.found("pkg.D.made").binding == "classmethod"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 ** 20", "1048576"),
        ("0.50", "0.5"),
        ("'a'", '"a"'),
        ("(1, 2)", "(1, 2,)"),
        ("SIZE", "10"),
        ("SIZE * 2", "20"),
        ("Mode.FAST", "consts.Mode.FAST"),
        ("None", "None"),
        ("-1", "- 1"),
        ("[]", "list()"),
    ],
)
def test_defaults_are_compared_by_value(package, old, new):
    release = package(
        root=f"from .consts import SIZE, Mode\nfrom . import consts\ndef f(x={old}): ...\ndef g(x={new}): ...\n",
        consts="import enum\nSIZE = 5 + 5\nclass Mode(enum.Enum):\n    FAST = 1\n",
    )
    first, second = (release.signature(name).parameters[0].folded for name in ("pkg.f", "pkg.g"))
    assert first is not None
    assert first == second


def test_a_value_that_a_stub_leaves_out_is_no_value():
    files = {"pkg/__init__.py": "from .marks import NONE\ndef f(x=NONE): ...\n", "pkg/marks.py": "NONE = make()\n"}
    stub = {"pkg/marks.pyi": "from typing import Final\nNONE: Final = ...\n"}
    trees = [SymbolTree(memory_release(each, "pkg", "1")) for each in (files, files | stub)]
    bare, typed = (tree.signature(tree.resolve("pkg.f").symbol).parameters[0].folded for tree in trees)
    assert bare == typed == "<pkg.marks.NONE>"


def test_defaults_that_cannot_be_known_are_not_folded(package):
    release = package(root="import os\ndef f(a=os.cpu_count(), b=2 ** 10 ** 10, c=undefined): ...")
    assert [parameter.folded for parameter in release.signature("pkg.f").parameters] == [None, None, None]


@pytest.mark.parametrize(
    "decorator",
    [
        "@functools.lru_cache(maxsize=1)",
        "@contextlib.contextmanager",
        "@torch.no_grad()",
        "@wrapping",
        "@identity",
        "@typed",
        "@factory(1)",
        "@both",
        "@both(x=1)",
        "@passing",
        "@deprecated('use g')",
    ],
)
def test_decorators_that_keep_the_signature(package, decorator):
    release = package(
        root=f"""
        import contextlib, functools, torch
        from typing import TypeVar
        from typing_extensions import deprecated
        F = TypeVar("F")

        def wrapping(func):
            @functools.wraps(func)
            def inner(*args, **kwargs):
                return func(*args, **kwargs)
            return inner

        def identity(func):
            REGISTRY.append(func)
            return func

        def typed(func: F) -> F:
            return make(func)

        def factory(level):
            def decorate(func):
                @functools.wraps(func)
                def inner(*args, **kwargs): ...
                return inner
            return decorate

        def both(func=None, *, x=0):
            if func is None:
                return functools.partial(both, x=x)
            @functools.wraps(func)
            def inner(*args, **kwargs): ...
            return inner

        def passing(func):
            def inner(*args, **kwargs):
                return func(*args, **kwargs)
            return inner

        {decorator}
        def f(a, b): ...
        """
    )
    assert release.signature("pkg.f").exact


@pytest.mark.parametrize("decorator", ["@changing", "@unknown.thing", "@made()", "@Callable_()"])
def test_decorators_that_may_change_the_signature(package, decorator):
    release = package(
        root=f"""
        import unknown
        from somewhere import made
        class Callable_: ...

        def changing(func):
            def inner(request, body=None):
                return func(request)
            return inner

        {decorator}
        def f(a, b): ...
        """
    )
    assert not release.signature("pkg.f").exact


def test_branches_with_different_parameters_leave_the_signature_unsure(package):
    release = package(
        root="if x():\n    def f(a): ...\nelse:\n    def f(a, b): ...\n"
        "if y():\n    def g(a): ...\nelse:\n    def g(a): ...\n"
    )
    assert not release.signature("pkg.f").exact
    assert release.signature("pkg.g").exact


def test_a_class_without_a_constructor_may_get_one_from_a_decorator(package):
    release = package(root="from other import struct\n@struct.dataclass\nclass A:\n    x: int\nclass B: ...\n")
    assert not release.signature("pkg.A").exact
    assert release.signature("pkg.B").exact


def test_the_implementation_decides_and_not_its_overloads(package):
    release = package(
        root="""
        from typing import overload
        @overload
        def f(a: int) -> int: ...
        @overload
        def f(a: str) -> str: ...
        def f(a, b=1): ...
        """
    )
    assert release.text("pkg.f") == "f(a, b=1)"
    assert release.signature("pkg.f").exact


def test_a_stub_says_what_a_compiled_module_has(package):
    release = package(
        root="from ._C import add, compiled_class\nfrom ._C import *\n",
        _C_pyi="from typing import overload\n@overload\ndef add(a: int) -> int: ...\n"
        "@overload\ndef add(a: str, b: int) -> str: ...\n"
        "class compiled_class:\n    def size(self, dim: int = 0) -> int: ...\n",
    )
    assert not release.signature("pkg.add").exact
    assert release.text("pkg.compiled_class.size") == "f(dim: int = 0) -> int"
    assert release.is_open("pkg._C.other")
    assert release.is_open("pkg.compiled_class.other")


def test_a_base_from_a_compiled_module_is_one_that_cannot_be_read():
    files = {"pkg/lib.so": b"", "pkg/__init__.py": "from pkg.lib import Geometry\nclass Point(Geometry): ...\n"}
    release = SymbolTree(memory_release(files, "pkg", "1.0"))
    point = release.resolve("pkg.Point")
    assert isinstance(point, Found)
    missing = release.member(point.symbol, "empty")
    assert isinstance(missing, Open)
    assert missing.beside == Absent("pkg.Point", "empty", "pkg/__init__.py", 2, provider=Provider.BASE)


def test_names_copied_from_a_compiled_module_by_a_loop(package):
    release = package(
        root="""
        from . import _C
        for _name in dir(_C._functions):
            if _name.startswith("__"):
                continue
            globals()[_name] = getattr(_C._functions, _name)
        """,
        _C___pyi="from . import _functions as _functions\n",
        _C___functions_pyi="def zeros(*size: int) -> int: ...\n",
    )
    assert release.text("pkg.zeros") == "f(*size: int) -> int"
    release.absent("pkg.ones")


def test_a_lambda_under_a_name_has_a_signature(package):
    assert package(root="f = lambda a, *, b=2: a").text("pkg.f") == "f(a, *, b=2)"


def test_the_constructor_is_the_first_in_the_order(package):
    release = package(
        root="""
        class Base:
            def __init__(self, a): ...
        class Mixin: ...
        class Child(Mixin, Base): ...
        class Own(Base):
            def __init__(self, a, b): ...
        class Made:
            def __new__(cls, x): ...
        class Plain: ...
        """
    )
    texts = {name: release.text(f"pkg.{name}") for name in ("Child", "Own", "Made", "Plain")}
    assert texts == {"Child": "f(a)", "Own": "f(a, b)", "Made": "f(x)", "Plain": "f()"}


def test_constructors_that_nobody_can_know_are_open(package):
    release = package(
        root="""
        import torch
        class Child(torch.nn.Module): ...
        class Meta(type):
            def __call__(cls, *args): ...
        class Strange(metaclass=Meta):
            def __init__(self, a): ...
        class Known(torch.nn.Module):
            def __init__(self, a): ...
        """
    )
    for name in ("pkg.Child", "pkg.Strange"):
        assert isinstance(release.upstream.signature(release.found(name)), Open)
    assert release.text("pkg.Known") == "f(a)"


def test_dataclasses_take_their_fields_in_order_of_bases(package):
    release = package(
        root="""
        from dataclasses import dataclass, field, InitVar, KW_ONLY
        from typing import ClassVar

        @dataclass
        class Base:
            a: int
            b: list[int] = field(default_factory=list)
            shared: ClassVar[int] = 1
            hidden: int = field(init=False)

        class NotADataclass:
            ignored: int

        @dataclass
        class Child(Base, NotADataclass):
            a: str = "x"
            seed: InitVar[int] = 0
            _: KW_ONLY
            late: int = 2

        @dataclass(kw_only=True)
        class Keywords:
            x: int
            y: int = field(default=1, kw_only=False)

        @dataclass
        class Explicit:
            a: int
            def __init__(self, z): ...
        """
    )
    assert release.text("pkg.Child") == 'f(a: str = "x", b: list[int] = list(), seed: int = 0, *, late: int = 2)'
    assert release.text("pkg.Keywords") == "f(y: int = 1, *, x: int)"
    assert release.text("pkg.Explicit") == "f(z)"


def test_a_decorator_that_makes_dataclasses_is_one(package):
    release = package(
        root="from .util import config\n@config\nclass Config:\n    a: int = 1\n",
        util="from dataclasses import dataclass\ndef config(cls, **kwargs):\n    return dataclass(cls, **kwargs)\n",
    )
    assert release.text("pkg.Config") == "f(a: int = 1)"


def test_pydantic_models_take_keywords_and_say_what_happens_to_others(package):
    release = package(
        root="""
        from pydantic import BaseModel, ConfigDict, Field

        class Strict(BaseModel):
            model_config = ConfigDict(extra="forbid")
            a: int
            b: int | None = Field(None, alias="bee", deprecated="use a")
            _private: int = 0

        class Child(Strict):
            c: str = Field(default_factory=str)

        class Loose(BaseModel):
            class Config:
                extra = "allow"
        class Default(BaseModel):
            x: int
        """
    )
    parameters = {item.name: item for item in release.signature("pkg.Child").parameters}
    assert list(parameters) == ["a", "bee", "c"]  # pydantic takes a field with an alias by that alone
    assert {item.kind for item in parameters.values()} == {"keyword-only"}
    assert (parameters["bee"].default, parameters["bee"].aliases, parameters["bee"].deprecated) == ("None", (), "use a")
    assert [release.signature(f"pkg.{name}").extra for name in ("Child", "Loose", "Default")] == [
        "forbid",
        "allow",
        "ignore",
    ]
    assert [release.keyword(f"pkg.{name}", "zz") for name in ("Child", "Loose", "Default")] == [
        "refused",
        "read",
        "ignored",
    ]


def test_attrs_named_tuples_typed_dicts_and_enums(package):
    release = package(
        root="""
        import attr, enum
        from typing import NamedTuple, TypedDict

        @attr.s
        class Old:
            _x = attr.ib()
            y = attr.ib(default=1)
        @attr.define(kw_only=True)
        class New:
            z: int = attr.field(factory=list)
        class Row(NamedTuple):
            a: int
            b: str = ""
        class Options(TypedDict, total=False):
            top: int
        class Mode(enum.Enum):
            FAST = "fast"
        """
    )
    assert release.text("pkg.Old") == "f(x, y=1)"
    assert release.text("pkg.New") == "f(*, z: int = list())"
    assert release.text("pkg.Row") == 'f(a: int, b: str = "")'
    assert release.text("pkg.Options") == "f(*, top: int = ...)"
    assert release.found("pkg.Mode.FAST").value == '"fast"'
    release.absent("pkg.Mode.SLOW")


def test_named_tuples_made_by_a_call(package):
    release = package(
        root="""
        from collections import namedtuple
        from typing import NamedTuple
        A = namedtuple("A", "x y")
        B = namedtuple("B", ["x", "y"], defaults=(1,))
        C = NamedTuple("C", [("x", int)])
        """
    )
    assert [release.text(f"pkg.{name}") for name in "ABC"] == [
        "f(x: Any, y: Any)",
        "f(x: Any, y: Any = 1)",
        "f(x: int)",
    ]
    assert release.signature("pkg.B").exact


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ("namedtuple('A', FIELDS, defaults=(1, 2))", ""),
        ("namedtuple('A', '', defaults=[1])", ""),
        ("namedtuple('A', 'x y', defaults=(*D, 1))", "f(x: Any = ..., y: Any = ...)"),
    ],
)
def test_fields_that_are_not_written_out_are_not_made_up(package, made, text):
    release = package(root=f"from collections import namedtuple\nA = {made}\n")
    found = release.upstream.signature(release.found("pkg.A"))
    assert ("" if isinstance(found, Open) else found.text("f")) == text


def test_a_parameter_under_its_old_name_is_an_alias(package):
    release = package(
        root="""
        def deprecate_kwarg(old_name, version, new_name=None): ...
        class T:
            @deprecate_kwarg("tokenizer", version="5.0", new_name="processor")
            def run(self, processor): ...
        """
    )
    assert release.signature("pkg.T.run").parameters[0].aliases == ("tokenizer",)
    assert release.keyword("pkg.T.run", "tokenizer") == "read"
    assert release.keyword("pkg.T.run", "other") == "refused"


def test_announcements_are_read_from_decorators_and_bodies(package):
    release = package(
        root="""
        import warnings
        from typing_extensions import deprecated

        @deprecated("Use g instead; will be removed in v2.1")
        def f(): ...

        def g(new, old=None):
            if old is not None:
                warnings.warn("`old` is deprecated, use `new`", FutureWarning)

        def h():
            '''Docs.'''
            logger.warning_once("h is deprecated "
                                f"and goes in {version}")
            return 1

        class C:
            def __init__(self):
                message = "C is deprecated and will be dropped in version 3.0."
                warnings.warn(message, DeprecationWarning, stacklevel=2)

        def fine():
            warnings.warn("it is cold")
        """
    )
    assert (release.found("pkg.f").removed_in, release.found("pkg.C").removed_in) == ("2.1", "3.0")
    assert release.found("pkg.g").deprecated == ""
    assert [bool(item.deprecated) for item in release.signature("pkg.g").parameters] == [False, True]
    assert "goes in" in release.found("pkg.h").deprecated
    assert release.found("pkg.fine").deprecated == ""


def test_a_body_that_only_raises_refuses(package):
    release = package(
        root="""
        def gone(*args):
            '''Docs.'''
            raise ImportError("moved to pkg2")
        class Gone:
            def __init__(self): raise RuntimeError("no longer supported")
        class Base:
            def hook(self): raise NotImplementedError
        """
    )
    assert release.found("pkg.gone").refuses == "moved to pkg2"
    assert release.found("pkg.Gone").refuses == "no longer supported"
    assert release.found("pkg.Base.hook").refuses == ""


def test_a_digest_says_that_a_definition_was_only_moved_or_renamed(package):
    body = "    '''{0} docs.'''\n    x = [{0} for _ in range(3)]  # {0}\n    return x\n"
    release = package(
        a="def old():\n" + body.format("old"),
        b="\n\n# moved\ndef new():\n" + body.format("new"),
        c="class K:\n    def old(self):\n        return 1\n    def other(self):\n        return 2\n",
        d="class L:\n    def old(self):\n        return 1\n    def other(self):\n        return 2\n",
    )
    assert release.found("pkg.a.old").digest == release.found("pkg.b.new").digest != ""
    assert release.found("pkg.c.K").digest == release.found("pkg.d.L").digest
    assert release.found("pkg.c.K.old").digest != release.found("pkg.c.K.other").digest
