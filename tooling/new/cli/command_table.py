"""The commands of `areal-new` besides the kinds; `areal-new --help` needs no more than this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    module: str
    """Name in `tooling.new.commands`."""
    summary: str


COMMANDS: Final[dict[str, Command]] = {
    "apply": Command("apply", "carry out a plan that --plan-out saved"),
    "completion": Command("completion", "print a completion script for bash, zsh or fish"),
    "explain": Command("explain", "say what each file of a unit is for and what is left to do"),
    "kinds": Command("kinds", "list what can be generated"),
    "list": Command("listing", "list the generated units"),
    "migrate-registry": Command("migrate_registry", "turn an if/elif dispatch chain into a table, once"),
    "recover": Command("recover", "roll back a run that was interrupted"),
    "rename": Command("rename", "rename a unit: files, symbols, registry entry, tests, documents"),
    "schema": Command("schema", "print the JSON schema of a kind's answers, or of the output of --json"),
    "status": Command("status", "compare generated units with their files, entries and templates"),
    "undo": Command("undo", "remove a unit; edited files are kept"),
    "update": Command("update", "bring a unit to the current template; edits are merged"),
}
