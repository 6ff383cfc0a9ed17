"""Atomic checkpoints with hashes, and recovery from damage."""
