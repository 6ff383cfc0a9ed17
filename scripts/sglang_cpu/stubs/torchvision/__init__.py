"""Stands in for torchvision in the environment of SGLang servers on CPUs: names to import, nothing that works.

SGLang and transformers import them at module level, whatever model is served. The package index has torchvision for
CUDA only, which does not load here. A text model calls none of it; what is called says so.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0.28.0"


def missing(*_: object, **__: object) -> NoReturn:
    """In the place of every function."""
    raise NotImplementedError("there is no torchvision in this environment (scripts/setup_sglang.sh): text models only")
