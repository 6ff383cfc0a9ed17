"""What can be said of a model of which there is only a config, and maybe the index of its tensors. Nothing is imported.

describe(Path("qwen4"), {"model_type": "qwen4", ...})["tensors"]["without_place"]   # ["layers.*.mixer.dt_bias"]
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from areal.porting.probe.catalog import installed_catalog
from areal.porting.probe.nearest import nearest_families

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INDEX: Final = "model.safetensors.index.json"
_SECTION: Final = "text_config"
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")
_ATTRIBUTE: Final = re.compile(r"self\.([A-Za-z_][A-Za-z0-9_]*)\s*=")
_ALWAYS: Final = frozenset({"weight", "bias", "model", "language_model", "lm_head", "text_model", "*"})
_OTHER_PARTS: Final = re.compile(r"(^|\.)(vision|visual|audio|image|video|multi_modal|mm_|projector|connector)")


def describe(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nearest proven families, as JSON with what differs, and what the index of the folder lists.

    A wrapped config is compared by its text model. "tensors" has: "listed", their number; "layers", how many the names
    count; "other_parts", modules that look like towers; "without_place", names (`*` for numbers) with a part that no
    module of the nearest family has. None where there is no index.
    """
    inner = config.get(_SECTION)
    own = dict(inner) if isinstance(inner, dict) else dict(config)
    name = str(own.get("model_type") or config["model_type"])
    nearest = [each.as_json() for each in nearest_families(name, own)]
    folder = path if path.is_dir() else path.parent
    return {
        "model_type": str(config["model_type"]),
        "text_type": name if isinstance(inner, dict) else None,
        "nearest": nearest,
        "tensors": _tensors(folder / INDEX, str(nearest[0]["model_type"])) if nearest else None,
    }


def _tensors(index: Path, family: str) -> dict[str, Any] | None:
    try:
        names = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    catalog = installed_catalog()
    folder = catalog.folder / catalog.modules.get(family, family.replace("-", "_"))
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("modeling_*.py")))
    known = _ALWAYS | {*_ATTRIBUTE.findall(text)}
    patterns = {_NUMBER.sub("*", str(name)) for name in names}
    towers = {name for name in patterns if _OTHER_PARTS.search(name)}
    numbers = [int(found[0]) for name in names if (found := re.search(r"(?<=layers\.)\d+", str(name)))]
    return {
        "listed": len(names),
        "layers": max(numbers, default=-1) + 1,
        "other_parts": sorted({".".join(name.split(".")[:2]) for name in towers}),
        "without_place": sorted(name for name in patterns - towers if not known >= {*name.split(".")}),
    }
