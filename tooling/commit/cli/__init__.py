"""The command line of `areal-commit`."""
