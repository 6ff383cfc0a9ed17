"""The command line of `areal-docs`."""
