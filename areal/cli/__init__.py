"""The `areal` command: the only place that prints, catches errors and exits.

Commands are one module each; see `main`.
"""
