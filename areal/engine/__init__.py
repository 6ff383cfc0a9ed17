"""Backends: `embedded`, `vllm` and `sglang` generate tokens; `train` and `megatron` update weights of split models."""
