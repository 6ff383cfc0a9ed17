"""Qwen3Moe: pre-norm blocks of grouped-query attention with query and key norms and SwiGLU or a mixture of
experts; windowed layers."""

from areal.models.qwen3_moe.spec import SPEC

__all__ = ["SPEC"]
