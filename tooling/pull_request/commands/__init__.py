"""The commands of `areal-pr`."""
