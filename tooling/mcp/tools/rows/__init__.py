"""The rows of the table of tools, one file per command.

A command that gains an option agents need gets it here; tests/tooling/mcp/test_table.py holds every row to the
`--help` of its command. Left out on purpose: options that run foreign code (--trust-source), write outside of the
repository (--plan-out, --cache), only shape text for people (--markdown), or belong to a person (hooks, completion).
"""
