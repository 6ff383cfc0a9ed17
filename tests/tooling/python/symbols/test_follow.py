"""Expressions of a client followed through a release."""

from __future__ import annotations

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

SOURCE = """
from __future__ import annotations
import asyncio, contextlib, enum
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, TypedDict, TypeVar, Union

T = TypeVar("T", bound="Engine")
Alias = Union["Output", None]

@dataclass
class Output:
    text: str
    parts: list[Part] = field(default_factory=list)

class Part:
    index: int = 0

class Pair(NamedTuple):
    first: Output
    second: Part

class Options(TypedDict):
    out: Output

class Mode(enum.Enum):
    FAST = 1

class Engine:
    def __init__(self, part: Part, other=None):
        self.part = part
        self.maybe = None
        self.maybe = Output("x")
        self.kept = other or Output("y")
        self.unknown = other
    @property
    def output(self) -> Output: ...
    @classmethod
    def make(cls): return cls(Part())
    @classmethod
    def typed(cls: type[T]) -> T: ...
    def me(self: T) -> T: ...
    def run(self) -> list[Output]: ...
    def table(self) -> dict[str, Output]: ...
    def pair(self): return Output("a"), Part()
    async def later(self) -> Output: ...
    async def stream(self) -> AsyncIterator[Output]:
        yield Output("x")
    def loop(self):
        for part in self.run():
            yield part
    def optional(self) -> Optional[Output]: ...
    def alias(self) -> Alias: ...
    def anything(self) -> Any: ...
    def guessed(self):
        made = Output("x")
        return made
    def chained(self): return self.guessed()
    def either(self, x): return Output("") if x else Part()
    def __enter__(self): return self
    async def __aenter__(self) -> Engine: ...
    def __getitem__(self, key) -> Part: ...
    def __iter__(self) -> Iterator[Part]: ...
    def __call__(self) -> Output: ...

@contextlib.contextmanager
def opened() -> Iterator[Output]:
    yield Output("")

def awaits(): return asyncio.run(x())
def itself(): return itself()
ENGINE = Engine(Part())
"""

ENGINE = Called(Name("pkg.Engine"))


def method(name):
    return Called(Attribute(ENGINE, name))


@pytest.mark.parametrize(
    ("access_path", "answer"),
    [
        (Name("pkg.Engine"), "<Engine>"),
        (ENGINE, "Engine"),
        (Attribute(ENGINE, "run"), "<run>"),
        (method("make"), "Engine"),
        (Called(Attribute(Name("pkg.Engine"), "make")), "Engine"),
        (Called(Attribute(Name("pkg.Engine"), "typed")), "Engine"),
        (method("me"), "Engine"),
        (method("run"), "list[Output]"),
        (Iterated(method("run")), "Output"),
        (ItemOf(method("run"), 0), "Output"),
        (Attribute(ItemOf(Attribute(Iterated(method("run")), "parts"), 0), "index"), "<index>"),
        (Attribute(Attribute(ENGINE, "output"), "text"), "<text>"),
        (Attribute(Attribute(ENGINE, "part"), "index"), "<index>"),
        (Attribute(Attribute(ENGINE, "maybe"), "text"), "<text>"),
        (Attribute(Attribute(ENGINE, "unknown"), "text"), "?"),
        (ItemOf(method("table"), "x"), "Output"),
        (ItemOf(Iterated(Called(Attribute(method("table"), "items"))), 1), "Output"),
        (method("pair"), "tuple[Output, Part]"),
        (ItemOf(method("pair"), 1), "Part"),
        (method("later"), "awaitable[Output]"),
        (Awaited(method("later")), "Output"),
        (Iterated(method("stream"), asynchronous=True), "Output"),
        (Iterated(method("loop")), "Output"),
        (Attribute(method("optional"), "text"), "<text>"),
        (method("alias"), "NoneType | Output"),
        (method("anything"), "?"),
        (method("guessed"), "Output"),
        (method("chained"), "Output"),
        (method("either"), "Output | Part"),
        (Entered(ENGINE), "Engine"),
        (Entered(Called(Name("pkg.opened"))), "Output"),
        (ItemOf(ENGINE, "k"), "Part"),
        (Iterated(ENGINE), "Part"),
        (Called(ENGINE), "Output"),
        (Called(Attribute(Name("pkg.ENGINE"), "optional")), "NoneType | Output"),
        (Attribute(Attribute(Name("pkg.Mode"), "FAST"), "value"), "?"),
        (ItemOf(InstanceOf(Name("pkg.Pair")), 1), "Part"),
        (ItemOf(InstanceOf(Name("pkg.Options")), "out"), "Output"),
        (InstanceOf(Name("pkg.Engine")), "Engine"),
        (InstanceOf(Name("pkg.Alias")), "NoneType | Output"),
        (Attribute(SuperOf((Name("pkg.Engine"),)), "run"), "<run>"),
        (Called(ClientClass("mine.Sub", (Name("pkg.Engine"),))), "Engine"),
        (Attribute(Called(ClientClass("mine.Sub", (Name("pkg.Part"), Name("pkg.Engine")))), "run"), "<run>"),
        (Either((ENGINE, InstanceOf(Name("pkg.Part")))), "Engine | Part"),
        (Unknown(), "?"),
        (Called(Name("pkg.itself")), "?"),
        (Called(Name("pkg.awaits")), "?"),
        (Name("numpy.array"), "?"),
    ],
    ids=str,
)
def test_a_value_is_followed(package, access_path, answer):
    assert package(root=SOURCE).follow(access_path) == answer


@pytest.mark.parametrize(
    ("access_path", "answer"),
    [
        (Name("pkg.Nothing"), "gone: pkg.Nothing"),
        (Attribute(ENGINE, "stop"), "gone: pkg.Engine.stop"),
        (Called(Attribute(ENGINE, "stop")), "gone: pkg.Engine.stop"),
        (Attribute(method("guessed"), "tokens"), "gone: pkg.Output.tokens"),
        (Attribute(Either((ENGINE, InstanceOf(Name("pkg.Part")))), "index"), "gone: pkg.Engine.index partly"),
        (Attribute(method("either"), "text"), "gone: pkg.Part.text partly"),
        (Attribute(SuperOf((Name("pkg.Engine"),)), "stop"), "gone: pkg.Engine.stop"),
        (ItemOf(InstanceOf(Name("pkg.Options")), "other"), "gone: pkg.Options.other"),
        (ItemOf(InstanceOf(Name("pkg.Pair")), 2), "gone: pkg.Pair.2"),
    ],
    ids=str,
)
def test_what_is_missing_on_the_way_is_named(package, access_path, answer):
    assert package(root=SOURCE).follow(access_path) == answer


def test_a_value_from_unannotated_code_says_so(package):
    release = package(root=SOURCE)
    assert release.upstream.follow(method("chained")).inferred
    assert not release.upstream.follow(method("run")).inferred


def test_methods_know_what_they_were_reached_through(package):
    release = package(root=SOURCE)
    through_instance = release.upstream.follow(Attribute(ENGINE, "run")).types[0]
    through_class = release.upstream.follow(Attribute(Name("pkg.Engine"), "run")).types[0]
    assert (through_instance.bound, through_class.bound) == (True, False)
    assert through_instance.receiver == "pkg.Engine"


@pytest.mark.parametrize(
    ("access_path", "count"),
    [(method("pair"), 2), (InstanceOf(Name("pkg.Pair")), 2), (method("run"), None), (method("anything"), None)],
    ids=str,
)
def test_the_number_of_values_is_known_where_it_is_sure(package, access_path, count):
    assert package(root=SOURCE).upstream.unpacked(access_path) == count


CLASSES = """
import argparse, enum, torch
class A:
    def only_a(self): ...
class B(A):
    def f(self): ...
class C(A):
    def f(self): ...
    def g(self):
        self.late = 1
class D(B, C):
    x: int
class Foreign(torch.nn.Module):
    def own(self): ...
class Dynamic:
    def __init__(self, values):
        for key in values:
            setattr(self, key, 1)
class Hooked:
    def __getattr__(self, name): ...
class Failing(ValueError): ...
class Patched: ...
Patched.added = lambda self: 1
class Meta(type):
    @property
    def WORLD(cls): ...
class Group(metaclass=Meta): ...
class Circular(Circular): ...
class Parser(argparse.ArgumentParser): ...
class A2(A): ...
class A2(A2):
    pass
class Level(enum.IntEnum):
    LOW = 1
"""


def test_members_are_looked_up_in_the_method_resolution_order(package):
    release = package(root=CLASSES)
    order, complete = release.upstream.bases(release.found("pkg.D"))
    assert ([symbol.dotted for symbol in order], complete) == (["pkg.D", "pkg.B", "pkg.C", "pkg.A"], True)
    assert release.found("pkg.D.f").owner == "pkg.B"
    assert release.found("pkg.D.g").owner == "pkg.C"
    assert release.found("pkg.D.late").owner == "pkg.C"
    assert release.found("pkg.D.only_a").owner == "pkg.A"
    assert release.found("pkg.D.x").line == 12
    release.absent("pkg.D.nothing")


@pytest.mark.parametrize("name", ["Foreign.x", "Dynamic.x", "Hooked.x", "Circular.x", "Parser.prog"])
def test_members_that_may_come_from_elsewhere_are_open(package, name):
    release = package(root=CLASSES)
    assert release.is_open(f"pkg.{name}")
    if name == "Foreign.x":
        assert release.upstream.resolve("pkg.Foreign.x").beside.name == "x"


@pytest.mark.parametrize(
    "name",
    [
        "Failing.args",
        "Patched.added",
        "Group.WORLD",
        "Foreign.own",
        "A.__class__",
        "A2.only_a",
        "Level.LOW",
        "Level.value",
    ],
)
def test_members_of_python_patches_and_metaclasses_are_there(package, name):
    assert package(root=CLASSES).found(f"pkg.{name}")


def test_types_made_of_themselves_end(package):
    release = package(
        root="""
        from typing import Union
        Tree = Union[dict[str, "Tree"], list["Tree"], tuple["Tree", "Tree", "Tree"], "Leaf"]
        class Leaf: ...
        def grow() -> Tree: ...
        """
    )
    assert release.follow(Called(Name("pkg.grow"))) == "Leaf | dict[str, ?] | list[?] | tuple[?, ?, ?]"
