"""Finds translated pages that lag behind their source: the program `areal-docs`."""

from __future__ import annotations

from tooling.cli.parser import Command, CommandProgram

PROGRAM = CommandProgram(
    name="areal-docs",
    purpose="Finds translated pages that lag behind their source, and with what ([tool.areal.docs] names both).",
    commands={
        "zh-check": Command("tooling.documentation.commands.zh_check", "say which sections lag, and what changed"),
        "zh-mark": Command("tooling.documentation.commands.zh_mark", "record that pages follow their source now"),
        "zh-plan": Command("tooling.documentation.commands.zh_plan", "print what is left to do, with all texts needed"),
    },
    exit_codes=(0, 1, 2, 3, 10, 75, 130),
)
main = PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
