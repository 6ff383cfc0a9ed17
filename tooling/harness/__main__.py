"""Compiles skills and experts for every agent platform, and checks them: the program `areal-harness`."""

from __future__ import annotations

from tooling.cli.parser import Command, CommandProgram

PROGRAM = CommandProgram(
    name="areal-harness",
    purpose="Compiles skills/ and agents/ for every agent platform, and checks that what they say exists.",
    commands={
        "sync": Command(
            "tooling.harness.commands.sync", "write the platforms' copies; files of others and edits by hand are kept"
        ),
        "check": Command(
            "tooling.harness.commands.check",
            "check every path, symbol, command and option that the pages mention; sizes",
        ),
        "list": Command(
            "tooling.harness.commands.list", "skills and experts, their size in tokens, and where each is compiled to"
        ),
        "doctor": Command(
            "tooling.harness.commands.doctor", "ask the agent programs that are installed what they see here"
        ),
        "eval": Command(
            "tooling.harness.commands.eval",
            "let an agent do the tasks of skills in scratch copies, and judge what is left",
        ),
    },
    exit_codes=(0, 1, 2, 3, 4, 10, 13, 75, 130),
)
main = PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
