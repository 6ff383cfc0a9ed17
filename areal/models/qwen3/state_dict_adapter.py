"""Names of Qwen3's parameters on disk."""

from __future__ import annotations

from areal.models.adapter import TableAdapter
from areal.models.qwen3.model import Qwen3Model


class Qwen3StateDictAdapter(TableAdapter):
    """On disk every name has "model." in front, except lm_head; nothing else differs."""

    model_class = Qwen3Model
