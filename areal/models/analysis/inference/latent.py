"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.models.analysis.records import UnsupportedError

if TYPE_CHECKING:
    from areal.models.analysis.inference.view import Found, View


def is_latent(view: View) -> bool:
    return False


def infer(view: View) -> Found:
    raise UnsupportedError("latent attention", where=view.name, detail="")
