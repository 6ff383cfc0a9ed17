"""The family as the registry hands it out."""

from __future__ import annotations

from typing import Final

from areal.api import ModelSpec
from areal.models.qwen3.args import Qwen3Args
from areal.models.qwen3.model import Qwen3Model
from areal.models.qwen3.parallelize import parallelize
from areal.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

SPEC: Final = ModelSpec(
    name="qwen3",
    model_class=Qwen3Model,
    args_class=Qwen3Args,
    state_dict_adapter=Qwen3StateDictAdapter,
    parallelize=parallelize,
    model_types=frozenset({"qwen3"}),
)
