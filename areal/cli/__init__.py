"""Implement the `areal` command: the only place that prints, catches errors and exits.

`main` finds the command, runs it and turns errors into exit codes; `output` prints its report. Each command is one
module of `commands`: its docstring is its page of help, `configure(parser)` adds its arguments, and `run(arguments)`
returns its `CommandReport`.
"""
