"""Compiles nothing; see the package."""

from __future__ import annotations

from triton.backends.compiler import BaseBackend


class CPUCompiler(BaseBackend):
    """Stands where Triton looks for the compiler of a backend."""


CPUCompiler.__abstractmethods__ = frozenset()  # Triton takes a class without abstract methods only
