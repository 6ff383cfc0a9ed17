"""The commands of `areal-commit`."""
