"""Writes a model as a Hugging Face folder: config.json and safetensors. The folder appears whole or not at all.

Not here: optimizer state and tokenizers, which are the trainer's. Files beside the weights survive a rewrite.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError
from safetensors.torch import save_file

from areal.api import CheckpointError
from areal.models.registry import get_spec
from areal.models.wrapping import whole_config
from areal.utils.atomic import atomic_directory, remove_leftovers
from areal.utils.special_numbers import tagged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

CONFIG_FILE: Final = "config.json"
WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES: Final = 5_000_000_000


def save_pretrained(model: nn.Module, path: str | Path, *, max_shard_bytes: int | None = None) -> None:
    """Write `model` (a CausalModel) to the folder `path`, in the dtype of its parameters.

    max_shard_bytes: weights beyond this size (default 5 GB) are split into several files with an index. An existing
    checkpoint folder is replaced; its other files (tokenizer, generation_config.json) are carried over. Everything is
    written and synced in a sibling folder and renamed into place, so a crash leaves the old folder or the new one, at
    worst under a hidden name beside it.

    Raises CheckpointError when the folder holds something that is not a checkpoint, or cannot be written.
    """
    holder: Any = model
    save_tensors(holder.args, model.state_dict(), path, max_shard_bytes=max_shard_bytes)


def save_tensors(
    args: Any, state_dict: Mapping[str, Tensor], path: str | Path, *, max_shard_bytes: int | None = None
) -> None:
    """Save a model that is not in one piece, as `save_pretrained` does: its arguments, and all its tensors by our
    names."""
    tensors = get_spec(args.model_type).state_dict_adapter(args).to_hf(state_dict)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    wrapping = getattr(args, "wrapping", None)
    if wrapping is not None:
        tensors |= wrapping.kept_tensors()
    config = {**whole_config(args), "dtype": dtype}
    target = Path(path).resolve()
    check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # What a save that was killed left here can be as large as the model.
        remove_leftovers(target.parent, name=target.name)
        with atomic_directory(target, replace=True) as staging:
            _write_weights(tensors, staging, DEFAULT_SHARD_BYTES if max_shard_bytes is None else max_shard_bytes)
            _write_json(config, staging / CONFIG_FILE)
            carry_over(target, staging)
            carry_code(getattr(args, "code_folder", ""), staging)
    except (OSError, SafetensorError) as error:  # a full disk is the latter when safetensors meets it
        raise CheckpointError(f"cannot write checkpoint {target}: {error}") from error


def check_replaceable(target: Path, *, mark: str = CONFIG_FILE) -> None:
    """Raise CheckpointError unless `target` is free, empty or a checkpoint folder, which has a file `mark`."""
    if not target.exists():
        return
    content = list(target.iterdir()) if target.is_dir() else []
    if target.is_dir() and (not content or (target / mark).is_file()) and all(file.is_file() for file in content):
        return
    raise CheckpointError(
        f"{target} exists and is not a checkpoint folder (a folder with {mark} and no subfolders); "
        "choose another path or remove it"
    )


def _write_weights(tensors: Mapping[str, Tensor], folder: Path, max_shard_bytes: int) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    files = [f"model-{index:05d}-of-{len(shards):05d}.safetensors" for index in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = [WEIGHTS_FILE]
    else:
        weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        _write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, folder / INDEX_FILE)
    for file, shard in zip(files, shards, strict=True):
        # transformers refuses files without this mark.
        save_file(shard, folder / file, metadata={"format": "pt"})


def _write_json(content: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(tagged(content), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def carry_code(source: str, staging: Path) -> None:
    """Copy the modeling files of the folder that a checkpoint was loaded from: its config names their classes."""
    for file in sorted(Path(source).glob("*.py")) if source else ():
        shutil.copy2(file, staging / file.name)


def carry_over(target: Path, staging: Path) -> None:
    """Copy the files of the old folder that are neither config nor weights."""
    if not target.exists():
        return
    for file in target.iterdir():
        is_weights = file.suffix == ".safetensors" or file.name in {INDEX_FILE, CONFIG_FILE}
        if not is_weights:
            shutil.copy2(file, staging / file.name)
