"""The commands of `areal-docs`."""
