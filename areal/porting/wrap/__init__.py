"""Checkpoints of several models: how the text model lies in them, found and proven on tiny whole instances."""
