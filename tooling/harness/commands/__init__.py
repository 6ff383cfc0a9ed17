"""The commands of `areal-harness`."""
