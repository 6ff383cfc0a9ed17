"""Start the programs of the developer harness, in a checkout and from an installation.

The harness is the package `tooling`, a name too common to be claimed in an environment that is not ours. A wheel
therefore has it in `areal_harness/lib/`, which is on no import path; a program of the harness puts that folder first,
in its own process only. In a checkout there is no such folder, and `tooling` is found beside this package.

    areal-new = "areal_harness:new"                 # [project.scripts]
    python -P -m areal_harness tooling.mcp.child    # a module of the harness as a child process

Whoever writes a kind of units in a package of their own calls `add_to_path()` before importing `tooling` in its tests.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: Final[dict[str, str]] = {
    "audit": "tooling.upgrade.commands.audit:main",
    "commit": "tooling.commit.__main__:main",
    "docs": "tooling.documentation.__main__:main",
    "harness": "tooling.harness.__main__:main",
    "mcp": "tooling.mcp.__main__:main",
    "new": "tooling.new.command_line:main",
    "pr": "tooling.pull_request.__main__:main",
    "review": "tooling.review.__main__:main",
    "upgrade_deps": "tooling.upgrade.__main__:main",
}
"""Attribute of this module, which `[project.scripts]` names, to what it runs."""

_LIBRARY: Final = Path(__file__).resolve().parent / "lib"


def add_to_path() -> None:
    """Make `tooling` importable in this process; before anything else of that name."""
    if _LIBRARY.is_dir() and str(_LIBRARY) not in sys.path:
        sys.path.insert(0, str(_LIBRARY))


def run_program(name: str) -> int:
    """Run one of `PROGRAMS` with the arguments of this process; returns its exit code."""
    add_to_path()
    module, _, function = PROGRAMS[name].partition(":")
    main: Callable[[], int] = getattr(import_module(module), function)
    return main()


def __getattr__(name: str) -> Callable[[], int]:
    """Return the function that a console script calls: `areal_harness.new`."""
    if name in PROGRAMS:
        return partial(run_program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
