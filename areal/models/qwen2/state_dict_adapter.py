"""Names of Qwen2's parameters on disk."""

from __future__ import annotations

from areal.models.adapter import TableAdapter
from areal.models.qwen2.model import Qwen2Model


class Qwen2StateDictAdapter(TableAdapter):
    """On disk every name has "model." in front, except lm_head; nothing else differs."""

    model_class = Qwen2Model
