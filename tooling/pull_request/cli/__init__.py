"""The command line of `areal-pr`."""
