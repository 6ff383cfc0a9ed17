"""Which families of the installed transformers a config resembles, and in which fields it differs."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections import Counter
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from areal.porting.probe.library import quiet

NUM_FAMILIES = 3


def nearest_families(config: dict[str, Any], *, count: int = NUM_FAMILIES) -> list[dict[str, Any]]:
    """The families with the most alike config fields, best first; rare fields count more.

    Each: {"model_type": ..., "differences": [{"field", "theirs", "ours"}]}, theirs from the config and ours the
    family's default; None where one lacks the field.
    """
    families = family_fields()
    frequency = Counter(name for fields in families.values() for name in fields)
    common = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    theirs = {name: value for name, value in config.items() if name not in common | {"auto_map", "torch_dtype"}}

    def weight(name: str) -> float:
        return math.log(1 + len(families) / (1 + frequency[name]))

    def score(model_type: str) -> float:
        ours = families[model_type]
        shared = sum(weight(name) for name in theirs if name in ours)
        return shared / sum(weight(name) for name in {*theirs, *ours})

    best = sorted(families, key=lambda model_type: (-score(model_type), len(model_type), model_type))[:count]
    return [{"model_type": each, "differences": differences(theirs, families[each])} for each in best]


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Fields that only one side has, then fields with another value, in the order of the config."""
    alone = [name for name in theirs if name not in ours]
    changed = [name for name in theirs if name in ours and theirs[name] != ours[name]]
    absent = [name for name in ours if name not in theirs]
    return [{"field": name, "theirs": theirs.get(name), "ours": ours.get(name)} for name in (*alone, *absent, *changed)]


@functools.cache
def family_fields() -> dict[str, dict[str, Any]]:
    """Config fields and defaults of every causal model type, without those that all configs have."""
    common = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    found: dict[str, dict[str, Any]] = {}
    with quiet():
        for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            try:
                config = CONFIG_MAPPING[model_type]()
            except Exception:  # noqa: BLE001 - defaults that contradict each other: no family to resemble
                continue
            declared = {*inspect.signature(type(config)).parameters, *type(config).attribute_map}
            content = json.loads(json.dumps(config.to_dict(), default=str))  # as config.json would hold it
            found[str(model_type)] = {
                name: value
                for name, value in content.items()
                if name not in common and (name in declared or value is not None)
            }
    return found
