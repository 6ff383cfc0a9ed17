"""Bring a callable of a Python program into the process that rewards run in.

A callable of an importable module travels as its name, so the process imports the module. A lambda, a nested function
or one of `__main__` (a script, a notebook) travels as its code, with the functions and values of `__main__` and of
enclosing functions that it refers to, as they are when the run starts; modules that it refers to are imported there.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.utils.given import find_given

if TYPE_CHECKING:
    from collections.abc import Callable


def transport(reward: str | Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return a name for messages, and how the worker gets hold of the reward: a callable, or a path of one that was
    handed over (`areal.utils.given`).

    Raises ConfigError for a callable that cannot be sent, and for a path behind which there is none.
    """
    if isinstance(reward, str):
        handed_over = find_given(reward)
        if handed_over is None:
            raise ConfigError(
                f"reward {reward!r} was a function of the Python program that started its run, and no file defines it",
                where="reward",
                fix="move it to an importable module and write its path, e.g. my_module:my_reward",
            )
        return transport(handed_over)
    name = str(getattr(reward, "__qualname__", None) or repr(reward))
    if inspect.iscoroutinefunction(reward):
        raise ConfigError(
            f"reward {name!r} is a coroutine function; a reward is a plain function that returns a number"
        )
    try:
        pickled = pickle.dumps(reward, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError):
        pickled = pickle_by_value(name, reward)
    if b"__main__" in pickled:
        pickled = pickle_by_value(name, reward)
    return name, {"pickled": pickled}


def pickle_by_value(name: str, reward: Callable[..., Any]) -> bytes:
    """Return the reward with its code. Raises ConfigError naming what it refers to that no process can be sent."""
    try:
        import dill  # comes with `datasets`
    except ImportError as error:
        raise _unsendable(name, "sending code needs the package dill", "pip install dill, or ") from error
    try:
        file = io.BytesIO()
        pickler = dill.Pickler(file, protocol=5, byref=False, recurse=True)
        # Modules go by name: dill would send the content of those outside of site-packages, this package's for one.
        pickler.reducer_override = _module_by_name
        pickler.dump(reward)
        return file.getvalue()
    # Whatever an object that the function refers to raises when it is pickled.
    except Exception as error:
        raise _unsendable(name, f"it refers to what cannot be sent ({type(error).__name__}: {error})") from error


def _module_by_name(value: Any) -> Any:
    is_importable = isinstance(value, ModuleType) and value.__name__ != "__main__" and value.__name__ in sys.modules
    return (importlib.import_module, (value.__name__,)) if is_importable else NotImplemented


def _unsendable(name: str, why: str, other: str = "") -> ConfigError:
    fix = f'{other}move it to the top level of an importable module and pass it, or its path "package.module:function"'
    return ConfigError(f"reward {name!r} cannot run in a worker process: {why}; {fix}", where="reward", fix=fix)
