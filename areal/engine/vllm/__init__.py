"""Supports vLLM servers: their command line, their HTTP API, and the code inside their workers."""
