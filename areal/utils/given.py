"""Objects that a Python program hands to a run, found by name like everything that a configuration names.

    with given({"score": score}):
        load("reward", "areal.utils.given:score", {})     # the function itself

A configuration holds plain values only. What cannot be imported (a lambda, a function of a notebook or of the script
that was started) therefore goes by a path into this module, which knows it while its run goes on, in this process.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX: Final = f"{__name__}:"
"""Begin of the paths of such objects."""

_objects: dict[str, Any] = {}


@contextmanager
def given(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let `objects` be found by name inside. Blocks may be nested; the inner names win."""
    before = dict(_objects)
    _objects.update(objects)
    try:
        yield
    finally:
        _objects.clear()
        _objects.update(before)


def is_given(path: object) -> bool:
    """Return whether a path names an object that no file defines."""
    return isinstance(path, str) and path.startswith(PREFIX)


def find_given(path: str) -> Any:
    """Return the object behind a path; None when no program has handed it over."""
    return _objects.get(path.removeprefix(PREFIX)) if is_given(path) else None


def __getattr__(name: str) -> Any:
    """Find an object by its name, for whoever imports it."""
    if name.startswith("__") or name not in _objects:
        raise AttributeError(
            f"{name!r} was handed over by a Python program and is not in this process; move it to an importable module "
            f"and write its path, e.g. my_module:{name}"
        )
    return _objects[name]
