"""The table of kinds: a further one is its function and its line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.harness.evaluation.checks import files, history, programs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tooling.harness.evaluation.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check."""

    problem: Callable[[Workspace, Mapping[str, Any]], str]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


KINDS: Final[dict[str, Kind]] = {
    "call": Kind(programs.call, ("target", "cases")),
    "changed": Kind(history.changed, (), ("must", "only")),
    "clean": Kind(history.clean),
    "command": Kind(programs.command, ("run",), ("contains", "count", "equals", "exit", "json", "lacks")),
    "commits": Kind(history.commits, (), ("count", "parts", "range")),
    "file": Kind(files.file, ("path",), ("contains", "exists", "lacks", "matches")),
    "mutants": Kind(programs.mutants, ("path", "tests", "mutants")),
    "registry": Kind(files.registry, ("path", "table", "key"), ("value",)),
    "remote": Kind(history.remote, ("name", "branch"), ("ahead",)),
    "symbol": Kind(files.symbol, ("path", "name"), ("calls", "never_calls", "type")),
    "tests": Kind(programs.tests, ("paths",), ("least",)),
}
