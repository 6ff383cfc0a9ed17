"""Checks and suggests commit messages: the program `areal-commit`."""

from __future__ import annotations

from tooling.cli.parser import Command, CommandProgram

PROGRAM = CommandProgram(
    name="areal-commit",
    purpose="Checks and suggests commit messages.",
    commands={
        "check": Command("tooling.commit.commands.check", "check a message or a range"),
        "suggest": Command("tooling.commit.commands.suggest", "suggest a message for what is staged"),
        "changelog": Command("tooling.commit.commands.changelog", "print history as a list of changes"),
        "learn": Command("tooling.commit.commands.learn", "make a table of scopes out of history"),
        "hook": Command("tooling.commit.commands.hook", "install or uninstall the commit-msg hook"),
    },
    exit_codes=(0, 1, 2, 3, 10, 75, 130),
)
main = PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
