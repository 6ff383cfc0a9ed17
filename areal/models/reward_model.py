"""Reward models on disk: the layout of `transformers`' sequence classifiers with one label.

In memory a reward model is a `ValueModel` whose head has no bias, asked for the value of a whole sequence
(`areal.algorithm.preference`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from areal.api import CheckpointError, ModelError
from areal.hub.download import local_folder
from areal.models.loading import SafetensorsFolder, from_tensors, read_config
from areal.models.saving import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, check_replaceable
from areal.models.value_head import ValueModel
from areal.utils.atomic import atomic_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor

HEAD_FILE: Final = "value_head.safetensors"
"""What a training engine writes beside the backbone of a critic."""
BODY_FILE: Final = "backbone.safetensors"
SCORE_FILE: Final = "score.safetensors"
SCORE: Final = "score.weight"
_KIND: Final = "ForSequenceClassification"


def save_reward_model(save_critic: Callable[[Path], None], path: str | Path, *, pad_token_id: int | None) -> None:
    """Write a folder that `AutoModelForSequenceClassification` and `load_reward_model` read, replacing an existing one.

    save_critic: writes the backbone and its value head into the folder it is given (`TrainEngine.save_pretrained`).
    pad_token_id: recorded in the config, where `transformers` wants it for batches. The folder appears whole or not at
    all. Raises ModelError for a head with a bias, which that layout has no place for, CheckpointError when the folder
    cannot be written.
    """
    target = Path(path).resolve()
    check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(target, replace=True) as staging:
            critic = staging / "critic"
            save_critic(critic)
            _add_score(critic, pad_token_id)
            for file in sorted(critic.iterdir()):
                file.rename(staging / file.name)
            critic.rmdir()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write reward model {target}: {error}") from error


def load_reward_model(
    path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> ValueModel:
    """Read what `save_reward_model`, or `transformers` for a classifier with one label, wrote.

    Raises ModelError when the folder is not such a checkpoint or of a family that is not implemented.
    """
    folder = local_folder(path)
    config = read_config(folder)
    architectures = config.get("architectures") or []
    tensors = SafetensorsFolder(folder)
    if not any(str(name).endswith(_KIND) for name in architectures) or SCORE not in tensors:
        raise ModelError(
            f"{folder} is not a reward model: expected architectures [...{_KIND}] and a tensor {SCORE!r}, found "
            f"architectures {architectures}"
        )
    weight = tensors[SCORE]
    if weight.shape[0] != 1:
        raise ModelError(f"{folder} has {weight.shape[0]} scores per sequence, a reward model has one")
    # There is no projection to the vocabulary in the file, and none is needed: one that is tied costs nothing.
    body = {name: tensors[name] for name in tensors if name != SCORE}
    try:
        backbone = from_tensors({**config, "tie_word_embeddings": True}, body, dtype=dtype, device=device)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    model = ValueModel(backbone, bias=False)
    model.head.weight.data.copy_(weight)
    return model


def _add_score(folder: Path, pad_token_id: int | None) -> None:
    """Turn a saved critic into a classifier: the head under the name it has there, no vocabulary projection."""
    head = load_file(folder / HEAD_FILE)
    if set(head) != {"weight"}:
        raise ModelError(f"the head of a reward model has a weight and nothing else, found {sorted(head)}")
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    save_file({SCORE: head["weight"]}, folder / SCORE_FILE, metadata={"format": "pt"})
    (folder / HEAD_FILE).unlink()
    if (folder / WEIGHTS_FILE).is_file():
        # Readers look for this name first, and would find no score in it.
        (folder / WEIGHTS_FILE).rename(folder / BODY_FILE)
    weight_map, total = _index(folder)
    _write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, folder / INDEX_FILE)
    _write_json(_classifier_config(config, pad_token_id), folder / CONFIG_FILE)


def _index(folder: Path) -> tuple[dict[str, str], int]:
    """(tensor name to file, bytes) of everything but the vocabulary projection, which is taken out of its file."""
    weight_map: dict[str, str] = {}
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as handle:
            tensors: dict[str, Tensor] = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - a safetensors handle is not iterable
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}
        if len(kept) < len(tensors):
            file.unlink()
            if kept:
                save_file(kept, file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(kept, file.name)
        total += sum(tensor.nbytes for tensor in kept.values())
    return dict(sorted(weight_map.items())), total


def _classifier_config(config: Mapping[str, Any], pad_token_id: int | None) -> dict[str, Any]:
    architectures = [str(name).replace("ForCausalLM", _KIND) for name in config.get("architectures") or []]
    return {
        **config,
        "architectures": architectures,
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "pad_token_id": config.get("pad_token_id") if pad_token_id is None else pad_token_id,
    }


def _write_json(content: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
