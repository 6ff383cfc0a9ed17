"""The commands of `areal-review`."""
