"""Checklists of a dependency: which files use it, which of its symbols and how, and which code depends on its version.

`skills/upgrade-deps/checklists/<package>.md` is generated from the usage index and keyed by symbol and function, never
by line number, so that it stays true while code moves. What people write between the generated parts is kept.
"""
