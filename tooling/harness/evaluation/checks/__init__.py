"""The kinds of checks. Each is a function of a workspace and the check's values that returns what is wrong, or ""."""
