"""What values are: constructors, annotations, attributes of self, returns, containers, narrowing, other files."""

from __future__ import annotations

import textwrap

import pytest

from tooling.python.access_paths import (
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Either,
    Entered,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    SuperOf,
    Unknown,
)
from tooling.upgrade.usage.link.resolve import Resolver
from tooling.upgrade.uses import Action

C = Name("pkg.C")
MADE, GIVEN = Called(C), InstanceOf(C)


def receivers(found) -> list:
    """What `.run` is called on, everywhere."""
    called = (_base(use.target) for use in found.uses() if use.action is Action.CALL)
    return [base for base in called if base is not None]


def _base(target) -> object:
    if isinstance(target, Either):  # one target for each thing the receiver may be
        members = [member if isinstance(member, Unknown) else _base(member) for member in target.members]
        return None if None in members else Either(tuple(members))
    return target.base if isinstance(target, Attribute) and target.name == "run" else None


def receiver(index, body: str, head: str = "x") -> object:
    code = (
        "from __future__ import annotations\nimport asyncio\n"
        "from typing import Annotated, AsyncIterator, Awaitable, Optional, Sequence, Union, cast\n"
        f"from pkg import C, D, make\n\nasync def go({head}):\n"
        f"{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    )
    found = receivers(index(code))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("C().run()", MADE),
        ("c = C()\nc.run()", MADE),
        ("c: C = x\nc.run()", GIVEN),
        ("c = make.build()\nc.run()", Called(Attribute(Name("pkg.make"), "build"))),
        ("c = await make()\nc.run()", Awaited(Called(Name("pkg.make")))),
        ("for c in make():\n    c.run()", Iterated(Called(Name("pkg.make")))),
        ("async for c in make():\n    c.run()", Iterated(Called(Name("pkg.make")), asynchronous=True)),
        ("with make() as c:\n    c.run()", Entered(Called(Name("pkg.make")))),
        ("a, c = make()\nc.run()", ItemOf(Called(Name("pkg.make")), 1)),
        ("make()['k'].run()", ItemOf(Called(Name("pkg.make")), "k")),
        ("make()[x].run()", ItemOf(Called(Name("pkg.make")), None)),
        ("[c.run() for c in make()]", Iterated(Called(Name("pkg.make")))),
        ("cs = [C() for _ in x]\ncs[0].run()", MADE),
        ("cs = [C(), C()]\nfor i, c in enumerate(cs):\n    c.run()", MADE),
        ("cs = {'a': C()}\nfor c in cs.values():\n    c.run()", MADE),
        ("for c, _ in zip([C()], x):\n    c.run()", MADE),
        ("if (c := C()):\n    c.run()", MADE),
        ("c = None\nif x:\n    c = C()\nc.run()", MADE),
        ("c = x or C()\nc.run()", Either((MADE, Unknown()))),
        ("c = C() if x else D()\nc.run()", Either((MADE, Called(Name("pkg.D"))))),
        ("if x:\n    c = C()\nelse:\n    c = D()\nc.run()", Either((MADE, Called(Name("pkg.D"))))),
        ("if isinstance(x, C):\n    x.run()", GIVEN),
        ("if not isinstance(x, C):\n    return\nx.run()", GIVEN),
        ("assert isinstance(x, (C, D))\nx.run()", Either((GIVEN, InstanceOf(Name("pkg.D"))))),
        ("isinstance(x, C) and x.run()", GIVEN),
        ("match x:\n    case C():\n        x.run()", GIVEN),
        ("cast(C, x).run()", GIVEN),
        ("type(C()).run()", C),
    ],
)
def test_a_value_is_known_by(index, body, expected):
    assert receiver(index, body) == expected


@pytest.mark.parametrize(
    ("annotation", "use", "expected"),
    [
        ("C", "x.run()", GIVEN),
        ("'C'", "x.run()", GIVEN),
        ("Optional[C]", "x.run()", GIVEN),
        ("C | None", "x.run()", GIVEN),
        ("'C | None'", "x.run()", GIVEN),
        ("Union[C, D]", "x.run()", Either((GIVEN, InstanceOf(Name("pkg.D"))))),
        ("Annotated[C, 'doc']", "x.run()", GIVEN),
        ("type[C]", "x.run()", C),
        ("list[C]", "x[0].run()", GIVEN),
        ("Sequence['C']", "for c in x:\n    c.run()", GIVEN),
        ("dict[str, C]", "x['a'].run()", GIVEN),
        ("dict[str, C]", "for k, c in x.items():\n    c.run()", GIVEN),
        ("tuple[int, C]", "a, c = x\nc.run()", GIVEN),
        ("AsyncIterator[C]", "async for c in x:\n    c.run()", GIVEN),
        ("Awaitable[C]", "(await x).run()", GIVEN),
    ],
)
def test_a_parameter_is_known_by_its_annotation(index, annotation, use, expected):
    assert receiver(index, use, f"x: {annotation}") == expected


def test_a_name_without_a_type_says_nothing(index):
    assert receivers(index("import pkg\n\ndef go(x):\n    x.run()\n    json.loads(x).run()\n")) == []


def test_attributes_of_self_are_what_the_class_assigns(index):
    code = """
    from pkg import C

    class A:
        def use(self):
            self.c.run()
            self.unknown.run()

        def __init__(self, given: C | None = None):
            self.c = None
            self.c = given or C()
    """
    assert receivers(index(code)) == [Either((GIVEN, MADE))]


def test_assignments_that_disagree_are_a_union(index):
    code = """
    from pkg import C

    class A:
        def __init__(self, x):
            self.c = C()
            self.d: C = x

        def reset(self, x):
            self.c = x

        def use(self):
            self.c.run()
            self.d.run()
    """
    assert receivers(index(code)) == [Either((MADE, Unknown())), GIVEN]


def test_properties_methods_and_functions_give_what_they_return(index):
    code = """
    from contextlib import contextmanager
    from pkg import C

    def build():
        if 1:
            return C()
        return None

    async def later() -> "C": ...

    def several():
        yield C()

    @contextmanager
    def opened():
        yield C()

    def unknown_decorator(f): ...

    @unknown_decorator
    def wrapped():
        return C()

    class A:
        @property
        def c(self):
            return C()

        @classmethod
        def make(cls):
            return cls()

    async def go():
        build().run()
        (await later()).run()
        for c in several():
            c.run()
        with opened() as d:
            d.run()
        A.make().c.run()
        wrapped().run()
        later().run()
    """
    assert receivers(index(code)) == [MADE, GIVEN, MADE, MADE, MADE]


def test_values_are_followed_through_the_repositorys_own_modules(index):
    files = {
        "src/proj/__init__.py": "from .compat import Thing\nfrom proj.parts import *\n",
        "src/proj/compat.py": "try:\n    from pkg import C as Thing\nexcept ImportError:\n    Thing = None\n",
        "src/proj/parts.py": (
            "from pkg import D\n\nclass Holder:\n    def __init__(self):\n        self.c = D()\n\nholder = Holder()\n"
        ),
        "tests/test_a.py": (
            "from proj import Thing, Holder\nfrom proj.parts import holder\nThing().run()\n"
            "Holder().c.run()\nholder.c.run()\n"
        ),
        "unrelated.py": "print(1)\n",
    }
    found = index(files)
    D = Called(Name("pkg.D"))
    assert receivers(found) == [MADE, D, D]
    assert found.scanned == 4


def test_circles_of_imports_end(index):
    files = {
        "a.py": "import pkg\nfrom b import *\nfrom b import x\nx.run()\n",
        "b.py": "from a import *\nfrom a import x\n",
    }
    assert receivers(index(files)) == []


# ------------------------------------------------------------------------------------------------------------- classes


def test_a_subclass_brings_its_bases_along(index):
    code = """
    from pkg import C

    class Mine(C, metaclass=abc, flag=True):
        def step(self, batch, *, flag=False, **rest):
            super().step(batch)
            self.helper()
            self.run()

        async def helper(self): ...

        @staticmethod
        def fixed(a): ...

    Mine(1).run()
    Mine.build()
    """
    found = index(code)
    mine = ClientClass("client.Mine", (C,))
    uses = {(use.action, use.target): use for use in found.uses()}
    assert [one.name for one in uses[Action.SUBCLASS, C].arguments.given] == ["metaclass", "flag"]
    step = uses[Action.OVERRIDE, Attribute(C, "step")]
    assert step.place.line == 5
    assert [(one.name, one.kind, one.default is None) for one in step.method.signature.parameters] == [
        ("batch", "positional", True),
        ("flag", "keyword-only", False),
        ("rest", "double-star", True),
    ]
    assert uses[Action.OVERRIDE, Attribute(C, "helper")].method.is_async
    assert uses[Action.OVERRIDE, Attribute(C, "fixed")].method.binding == "staticmethod"
    assert (Action.CALL, Attribute(SuperOf((C,)), "step")) in uses
    assert (Action.CALL, Attribute(InstanceOf(mine), "run")) in uses
    assert (Action.CALL, mine) in uses
    assert (Action.CALL, Attribute(mine, "build")) in uses
    assert not [
        target
        for action, target in uses
        if isinstance(target, Attribute) and target.name == "helper" and action is Action.CALL
    ]


def test_bases_are_followed_through_classes_of_the_repository(index):
    files = {
        "base.py": "from pkg import C\n\nclass Base(C):\n    def own(self): ...\n",
        "sub.py": (
            "from base import Base\n\nclass Sub(Base):\n    def step(self):\n"
            "        super().step()\n        super().own()\n        self.own()\n"
        ),
    }
    targets = [(use.action, use.target) for use in index(files).uses() if use.place.path == "sub.py"]
    assert targets == [(Action.OVERRIDE, Attribute(C, "step")), (Action.CALL, Attribute(SuperOf((C,)), "step"))]


def test_an_own_constructor_is_the_one_that_is_called(index):
    code = "from pkg import C\n\nclass Mine(C):\n    def __init__(self, x):\n        super().__init__(y=x)\n\nMine(1)\n"
    called = [use.target for use in index(code).uses() if use.action is Action.CALL]
    assert called == [Attribute(SuperOf((C,)), "__init__")]


def test_own_fields_of_a_dataclass_are_no_arguments_of_the_base(index):
    code = (
        "from dataclasses import dataclass\nfrom pkg import C\n\n@dataclass\n"
        "class Mine(C):\n    own: int = 0\n\nMine(1, own=2, theirs=3)\n"
    )
    (use,) = [use for use in index(code).uses() if use.action is Action.CALL]
    assert [one.name for one in use.arguments.given] == ["theirs"]
    assert use.arguments.partial


def test_a_base_nobody_knows_leaves_attributes_open(index):
    code = "from pkg import C\nfrom elsewhere import E\n\nclass Mine(E, C):\n    def go(self):\n        self.run()\n"
    (target,) = [use.target for use in index(code).uses() if use.action is Action.CALL]
    assert isinstance(target, Either)
    assert Unknown() in target.members


def test_annotations_know_whether_they_are_run(index):
    code = "from pkg import C\n\ndef f(a: C, b: 'C'):\n    c: C = 1\n\nx: C\n"
    found = [use for use in index(code).uses() if use.action is Action.ANNOTATION]
    assert [use.evaluated for use in found] == [True, False, False, True]
    later = index({"client.py": "from __future__ import annotations\n" + code})
    assert not any(use.evaluated for use in later.uses() if use.action is Action.ANNOTATION)


def test_annotations_of_models_are_run_even_in_strings(index):
    code = """
    from __future__ import annotations
    from pydantic import BaseModel
    from pkg import C

    class Settings(BaseModel):
        a: C
        b: "C | None" = None

    class Plain:
        a: C
    """
    found = [use for use in index(code).uses() if use.action is Action.ANNOTATION]
    assert [use.evaluated for use in found] == [True, True, False]


def test_checks_and_decorators(index):
    code = "import pkg\nisinstance(1, (pkg.A, pkg.B))\n\n@pkg.mark\ndef f(): ...\n\n@pkg.register(1)\nclass C: ...\n"
    found = [(use.action, use.target) for use in index(code).uses() if use.action is not Action.IMPORT]
    assert found == [
        (Action.ISINSTANCE, Name("pkg.A")),
        (Action.ISINSTANCE, Name("pkg.B")),
        (Action.DECORATE, Name("pkg.mark")),
        (Action.CALL, Name("pkg.register")),
    ]


def test_functions_that_call_each_other_give_the_same_whichever_is_asked_first(index):
    code = """
    import pkg

    def left(depth):
        return right(depth) if depth else pkg.make()

    def right(depth):
        return left(depth - 1)

    left(3).start()
    right(3).stop()
    """
    assert {"left(3).start()", "right(3).stop()"} <= {use.symbol_text for use in index(code).uses()}


def clique(size: int) -> str:
    functions = [
        f"def f{own}(x):\n"
        + "".join(f"    if x == {other}:\n        return f{other}(x)\n" for other in range(size) if other != own)
        for own in range(size)
    ]
    return "import pkg\n" + "".join(f"{each}    return pkg.C()\n" for each in functions) + "f0(1).run()\n"


def descent(rules: int) -> str:
    methods = [
        f"    def r{own}(self):\n"
        f"        return self.r{(own + 1) % rules}() if self.at({own}) else self.r{(own + 2) % rules}() or pkg.C()\n"
        for own in range(rules)
    ]
    return "import pkg\nclass Parser:\n" + "".join(methods) + "Parser().r0().run()\n"


@pytest.mark.parametrize("code", [clique(12), descent(40)])
def test_a_circle_of_functions_is_not_walked_once_for_each_way_through_it(index, code, monkeypatch):
    looked_up = []
    read_row = Resolver._row
    monkeypatch.setattr(Resolver, "_row", lambda *given: looked_up.append(given[2]) or read_row(*given))
    assert receivers(index(code)) == [Either((MADE, Unknown()))]
    assert len(looked_up) < 5_000


@pytest.mark.parametrize(
    ("definitions", "last"),
    [
        ("".join(f"def r{each}(): return r{each + 1}()\n" for each in range(150)) + "def r150(): return pkg.C()\n", ""),
        (
            "class P:\n"
            + "".join(f"    def r{each}(self): return self.r{each + 1}()\n" for each in range(150))
            + "    def r150(self): return pkg.C()\n",
            "P().",
        ),
    ],
)
def test_a_long_way_of_returns_is_followed_as_far_as_python_allows(index, definitions, last):
    code = f"import pkg\n{definitions}{last}r0().run()\n{last}r145().run()\n"
    assert receivers(index(code)) == [MADE]


def test_an_instance_that_calls_itself_ends(index):
    code = "import pkg\nclass A(pkg.C):\n    __call__: 'A'\ndef make():\n    return A()\nmake()().run()\n"
    assert receivers(index(code)) == []
