"""vLLM servers: their command line, their HTTP API, and what runs inside their workers."""
