"""Check the weights of a checkpoint folder from the headers of its files, in milliseconds and without reading a tensor.

Finds what loading would fail on, after minutes for a large model: absent or cut files, tensors that are missing, left
over or of another shape than config.json says.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LENGTH: Final = struct.Struct("<Q")
_MOST_HEADER: Final = 100_000_000
"""Bytes of a header that the safetensors library accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShape:
    """What a header says about one tensor."""

    shape: tuple[int, ...]
    dtype: str
    file: str


def check_weights(folder: Path, config: Mapping[str, Any], *, native: bool) -> int:
    """Return the bytes of all tensors. native: also compare names and shapes with those of our model family.

    Raises ModelError with everything that is wrong.
    """
    import torch

    from areal.models.adapter import TableAdapter
    from areal.models.loading import resolve, weight_files
    from areal.models.saving import INDEX_FILE

    files = weight_files(folder)
    stored: dict[str, StoredShape] = {}
    problems: list[str] = []
    num_bytes = 0
    for file in files:
        try:
            found, size = read_header(file)
        except ModelError as error:
            problems.append(str(error))
            continue
        stored |= found
        num_bytes += size
    if not problems and (folder / INDEX_FILE).is_file() and len(files) > 1:
        listed = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"]
        lost = sorted(name for name, file in listed.items() if name not in stored or stored[name].file != file)
        if lost:
            problems.append(f"{folder / INDEX_FILE} names {len(lost)} tensors that its files lack: {_few(lost)}")
    if problems:
        raise ModelError("; ".join(problems), where=str(folder), fix="download or write the named files again")
    if native:
        spec, args = resolve(config)
        adapter = spec.state_dict_adapter(args)
        assert isinstance(adapter, TableAdapter), "all families of ours have a table"
        try:
            adapter.locate({name: torch.empty(entry.shape, device="meta") for name, entry in stored.items()})
        except ModelError as error:
            raise ModelError(f"{folder}: {error}", where=str(folder), fix=error.fix) from error
    return num_bytes


def read_header(file: Path) -> tuple[dict[str, StoredShape], int]:
    """Return the tensors of a safetensors file and their bytes. Raises ModelError when it is damaged or cut."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise ModelError(f"{file} is cut: {size} bytes are no safetensors file")
        length: int = _LENGTH.unpack(start)[0]
        if length > _MOST_HEADER:
            raise ModelError(f"{file} is not a safetensors file: its header would have {length} bytes")
        if _LENGTH.size + length > size:
            raise ModelError(f"{file} is cut inside its header: {size} bytes, the header alone has {length}")
        try:
            header = json.loads(stream.read(length))
            tensors = {
                name: StoredShape(shape=tuple(entry["shape"]), dtype=entry["dtype"], file=file.name)
                for name, entry in header.items()
                if name != "__metadata__"
            }
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"{file} is damaged: its header is not that of a safetensors file ({error!r})") from error
    expected = _LENGTH.size + length + end
    if size != expected:
        how = f"cut: {expected - size} bytes are missing" if size < expected else "longer than its header says"
        raise ModelError(f"{file} is {how} ({size} bytes, expected {expected})")
    return tensors, end


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
