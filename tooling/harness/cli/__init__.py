"""The `areal-harness` command line."""
