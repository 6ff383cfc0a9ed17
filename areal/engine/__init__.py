"""Backends: `embedded` generates tokens in this process, `train` updates weights on one process."""
