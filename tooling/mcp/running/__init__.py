"""Commands as child processes. Knows nothing of the protocol."""
