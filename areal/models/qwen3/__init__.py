"""Qwen3, dense and mixture of experts: query and key are normalised per head before the rotation."""

from areal.models.qwen3.spec import SPEC

__all__ = ["SPEC"]
