"""`areal-commit`: messages of commits, checked and suggested.

    message.py       a message taken apart: header, body, footers; reverts, merges and fixups are kinds of their own
    rules.py         what is wrong with one, where, and how to put it right
    settings.py      `[tool.areal.commit]`: types, widths, and the table of scopes
    changes.py       what commits change, and what the next one would: files, roles, symbols
    habits.py        which scopes people chose for which folders, counted over history
    shapes.py        what files and numbers of lines tell about the type of a change, anywhere
    type_history.py  which types people chose for which kinds of change
    history.py       both, read from the latest commits
    suggestion.py    type, scope and skeleton of a message, with the evidence
    changelog.py     history as a list of changes, of a range or with a section per tag
    commands/        the command line; learn.py and hook.py with what they do

Checking a message starts no process and loads nothing heavy: it runs at each commit.
"""
