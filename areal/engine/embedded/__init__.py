"""Embedded inference engine: batched, KV-cached continuous batching in plain PyTorch; the oracle in tests."""
