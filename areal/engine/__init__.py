"""Backends: `embedded`, `vllm` and `sglang` generate tokens, `train` updates weights, in one process or over many."""
