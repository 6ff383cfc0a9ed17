"""Qwen2 and Qwen2.5: dense decoders with biases on query, key and value, and optionally windowed upper layers."""

from areal.models.qwen2.spec import SPEC

__all__ = ["SPEC"]
