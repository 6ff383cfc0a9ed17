"""The commands of `areal-new`, one module each; `generate` answers for every kind.

A module has `configure(parser)`, which adds its arguments, and `run(invocation) -> Report`. It is loaded when it is
called. `tooling.new.command_line` lists them.
"""
