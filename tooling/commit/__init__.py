"""`areal-commit`: messages of commits, checked and suggested.

    message.py    a message taken apart: header, body, footers; reverts, merges and fixups are kinds of their own
    rules/        what is wrong with one, where, and how to put it right
    settings.py   `[tool.areal.commit]`: types, widths, and the table of scopes
    scopes.py     which scope a path or a symbol has by that table
    git.py        the only place that runs git
    staged.py     what a commit would change: files, and the symbols of Python files
    habits.py     which scopes people chose for which folders, counted over history
    suggest/      type, scope and skeleton of a message, with the evidence
    learn.py      a table of scopes out of history
    changelog.py  history as a list of changes, of a range or with a section per tag
    hook.py       the commit-msg hook

Checking a message starts no process and loads nothing heavy: it runs at each commit.
"""
