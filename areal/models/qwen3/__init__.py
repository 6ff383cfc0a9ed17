"""Qwen3: pre-norm blocks of grouped-query attention with query and key norms and SwiGLU; windowed layers."""

from areal.models.qwen3.spec import SPEC

__all__ = ["SPEC"]
