"""Edits for findings that have one certain answer: moved and renamed imports, names, members and parameters, arguments
that need their keyword, properties that became methods.

LibCST locates the place, bytes are spliced, so that all other lines stay as they are; whoever calls audits again and
throws away what did not help. What is not sure is left to people, with the reason.
"""
