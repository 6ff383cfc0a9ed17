"""The command line of `areal-review`."""
