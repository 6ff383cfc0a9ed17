"""The family as the registry hands it out."""

from __future__ import annotations

from typing import Final

from areal.api import ModelSpec
from areal.models.qwen2.args import Qwen2Args
from areal.models.qwen2.model import Qwen2Model
from areal.models.qwen2.parallelize import parallelize
from areal.models.qwen2.state_dict_adapter import Qwen2StateDictAdapter

SPEC: Final = ModelSpec(
    name="qwen2",
    model_class=Qwen2Model,
    args_class=Qwen2Args,
    state_dict_adapter=Qwen2StateDictAdapter,
    parallelize=parallelize,
    model_types=frozenset({"qwen2"}),
)
