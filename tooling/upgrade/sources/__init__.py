"""Releases of distributions as text: from package indexes, wheel folders, the cache, or an environment.

Nothing that comes from an archive is ever extracted, imported or run.
"""
