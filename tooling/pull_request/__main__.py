"""Makes a branch ready, pushes it and opens the pull request: the program `areal-pr`."""

from __future__ import annotations

from tooling.cli.parser import Command, CommandProgram

PROGRAM = CommandProgram(
    name="areal-pr",
    purpose="Makes a branch ready, pushes it and opens the pull request; nothing is lost on the way.",
    commands={
        "create": Command("tooling.pull_request.commands.create", "make ready, push, open or update the pull request"),
        "body": Command("tooling.pull_request.commands.body", "print the text of the pull request"),
        "status": Command("tooling.pull_request.commands.status", "say where the branch stands"),
        "restore": Command("tooling.pull_request.commands.restore", "bring the branch back to a backup"),
        "backups": Command("tooling.pull_request.commands.backups", "list the backups"),
    },
    exit_codes=(0, 1, 2, 3, 5, 10, 11, 12, 75, 130),
    interrupted=("interrupted", "run it again: it goes on, or takes back what was begun"),
)
main = PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
