"""Keywords followed through **kwargs."""

from __future__ import annotations

import pytest

SOURCE = """
from typing import TypedDict
from typing_extensions import Unpack
import functools, other

class Options(TypedDict, total=False):
    top: int

def named(a, *, b=1): ...
def popped(**kwargs):
    x = kwargs.pop("a", None)
    if "b" in kwargs:
        y = kwargs["b"]
def checked(**kwargs):
    kwargs.get("a")
    if kwargs:
        raise TypeError(f"unexpected {kwargs}")
def forwards(x, **kwargs):
    return named(x, **kwargs)
def forwards_twice(**kwargs):
    kwargs = dict(kwargs)
    return forwards(1, **kwargs)
def gives_it(**kwargs):
    return named(1, b=2, **kwargs)
def partial(**kwargs):
    return functools.partial(named, **kwargs)
def ignores(**kwargs):
    return 1
def leaks(**kwargs):
    for key, value in kwargs.items():
        setattr(object, key, value)
def outside(**kwargs):
    return other.call(**kwargs)
def typed(**kwargs: Unpack[Options]):
    return named(1, **kwargs)
def circle(**kwargs):
    return circle(**kwargs)
def either(flag, **kwargs):
    if flag:
        return named(1, **kwargs)
    return popped(**kwargs)

class Base:
    def __init__(self, a=1): ...
class Middle(Base):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
class Child(Middle):
    def __init__(self, c, **kwargs):
        super().__init__(**kwargs)
        self.setup(**kwargs)
    def setup(self, late=0, **kwargs): ...
    @classmethod
    def make(cls, **kwargs):
        return cls(1, **kwargs)

def wraps_it(func):
    @functools.wraps(func)
    def inner(*args, **kwargs):
        kwargs.pop("return_dict", None)
        return func(*args, **kwargs)
    return inner
@wraps_it
def wrapped(a): ...
"""


@pytest.mark.parametrize(
    ("function", "keyword", "answer"),
    [
        ("named", "a", "named"),
        ("named", "z", "refused"),
        ("popped", "a", "read"),
        ("popped", "b", "read"),
        ("popped", "z", "ignored"),
        ("checked", "a", "read"),
        ("checked", "z", "refused"),
        ("forwards", "b", "read"),
        ("forwards", "z", "refused"),
        ("forwards_twice", "b", "read"),
        ("forwards_twice", "z", "refused"),
        ("gives_it", "b", "refused"),
        ("partial", "b", "read"),
        ("partial", "z", "refused"),
        ("ignores", "z", "ignored"),
        ("leaks", "z", "open"),
        ("outside", "z", "open"),
        ("typed", "top", "named"),
        ("circle", "z", "open"),
        ("either", "b", "read"),
        ("Middle", "a", "read"),
        ("Middle", "z", "refused"),
        ("Child", "c", "named"),
        ("Child", "late", "read"),
        ("Child.make", "a", "read"),
        ("wrapped", "return_dict", "read"),
        ("wrapped", "z", "refused"),
    ],
)
def test_a_keyword_is_followed(package, function, keyword, answer):
    assert package(root=SOURCE).keyword(f"pkg.{function}", keyword) == answer
