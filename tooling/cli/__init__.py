"""The frame that all command lines of the harness share: arguments, reports, errors, exit codes, settings and git.

A program is a table of commands (`tooling.cli.parser.CommandProgram`), each of which is one module of `commands/` with
a docstring (its page of help), `configure(parser)` and `run(arguments) -> Report`. See `tooling/commit/__main__.py`.
"""
