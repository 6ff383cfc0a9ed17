"""Releases of distributions as text: from package indexes, wheel folders, the cache, or a plain folder.

Nothing that comes from an archive is ever extracted, imported or run.
"""
