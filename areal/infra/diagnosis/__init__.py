"""What became of a run, read from its directory alone: `record` reads it, `summary` puts it into words and numbers,
`rules` names causes of what went wrong, with evidence.

Nothing here loads torch, and nothing here writes: a run that goes on is not disturbed.
"""
