"""Qwen2: pre-norm blocks of biased grouped-query attention and SwiGLU; windowed layers."""

from areal.models.qwen2.spec import SPEC

__all__ = ["SPEC"]
