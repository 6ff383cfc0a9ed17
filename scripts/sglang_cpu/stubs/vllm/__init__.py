"""Stands in for vLLM in the environment of SGLang servers on CPUs; see `_custom_ops`."""
