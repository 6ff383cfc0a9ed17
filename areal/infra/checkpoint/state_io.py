"""Write a tree of plain values and tensors to `<name>.json` + `<name>.safetensors`, and read it back exactly. No
pickle.

Leaves: None, bool, int of any size, float (NaN and infinities too), str, bytes, torch.Tensor of any dense dtype.
Nodes: dict with scalar or tuple keys (order kept), list, tuple. A tensor that occurs twice is stored once and comes
back as one object. Anything else is refused with its path: what cannot be restored exactly must not be saved at all.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from areal.api import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

_TAG: Final = "$"
"""Key that marks a JSON object as an encoded value instead of a dict."""


def save_state(folder: Path, name: str, tree: Any) -> None:
    """Write `tree` into `folder`. Tensors are copied to the CPU one file at a time; gradients are not kept.

    Raises TypeError naming the place of a value that has no exact form here, OSError when the disk refuses.
    """
    encoder = _Encoder()
    document = json.dumps(encoder.encode(tree, name), separators=(",", ":"), allow_nan=False)
    if encoder.tensors:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(encoder.tensors, folder / f"{name}.safetensors")
        except SafetensorError as error:
            # The library reports I/O errors under its own type; callers handle the disk through OSError.
            raise OSError(f"cannot write {folder / name}.safetensors: {error}") from error
    (folder / f"{name}.json").write_text(document)


def load_state(folder: Path, name: str) -> Any:
    """Read what `save_state` wrote; tensors are on the CPU. Raises CheckpointError when the files are missing or
    damaged."""
    try:
        document = json.loads((folder / f"{name}.json").read_bytes())
        tensors: dict[str, Tensor] = {}
        if (folder / f"{name}.safetensors").exists():
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                tensors = load_file(folder / f"{name}.safetensors")
            except SafetensorError as error:
                raise CheckpointError(f"{folder / name}.safetensors is not readable: {error}") from error
        return _decode(document, tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"cannot read state {name!r} in {folder}: {type(error).__name__}: {error}") from error


def state_bytes(tree: Any) -> int:
    """Bytes of all tensors in `tree` (the rest is small), to compare with the free space of a disk."""
    import torch

    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(map(state_bytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(state_bytes, tree))
    return len(tree) if isinstance(tree, (bytes, str)) else 8


class _Encoder:
    """Turns a tree into JSON values and collects its tensors under short names."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def encode(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
        if type(value) is bytes:
            return {_TAG: "bytes", "v": base64.b64encode(value).decode()}
        if type(value) is list:
            return [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if type(value) is tuple:
            return {_TAG: "tuple", "v": [self.encode(item, f"{where}[{index}]") for index, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return self._encode_mapping(value, where)
        return self._encode_tensor(value, where)

    def _encode_mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            if isinstance(key, (Mapping, list)):
                raise TypeError(f"{where}: key {key!r} cannot be saved")
            pairs.append([self.encode(key, f"{where} key"), self.encode(item, f"{where}[{key!r}]")])
        return {_TAG: "dict", "v": pairs}

    def _encode_tensor(self, value: Any, where: str) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{where} is {type(value).__module__}.{type(value).__qualname__}, which cannot be saved exactly; "
                f"convert it to None, bool, int, float, str, bytes, list, tuple, dict or torch.Tensor"
            )
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise TypeError(f"{where}: only dense tensors with storage can be saved, this one is {value.layout}")
        plain = value.detach()
        identity = (plain.data_ptr(), plain.dtype, tuple(plain.shape), plain.stride(), str(plain.device))
        name = self._names.get(identity) if plain.numel() else None
        if name is None:
            name = self._names[identity] = f"t{len(self.tensors)}"
            # Copied unless it is the first and only user of its storage: safetensors refuses tensors that share memory.
            storage = plain.untyped_storage()
            alone = (
                storage.nbytes() == plain.numel() * plain.element_size() and storage.data_ptr() not in self._storages
            )
            self._storages.add(storage.data_ptr())
            host = plain.cpu()
            self.tensors[name] = (
                host if alone and host.is_contiguous() else host.clone(memory_format=torch.contiguous_format)
            )
        return {_TAG: "tensor", "v": name}


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item, tensors) for key, item in value.items()}
    kind, content = value[_TAG], value["v"]
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in content)
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    raise ValueError(f"unknown value kind {kind!r}")
