"""Check the weights of a checkpoint from the headers of its files, in milliseconds and without reading a tensor.

    check_weights(Path("models/mine"), config, native=True)             # reads the start of each file
    check_remote_weights(name, to_fetch(name), config, native=True)     # fetches the start of each file

Finds what loading would fail on, after minutes for a large model: absent or cut files, tensors that are missing, left
over or of another shape than config.json says.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from areal.hub.download import RemoteFile
    from areal.hub.names import HubName

    Reader = Callable[[int, int], bytes]
    """Returns so many bytes (second) of a file from a position on (first), fewer at its end."""

_LENGTH: Final = struct.Struct("<Q")
_MOST_HEADER: Final = 100_000_000
"""Bytes of a header that the safetensors library accepts."""
_FIRST_READ: Final = 128 * 1024
"""Bytes that are asked for at once: nearly all headers are shorter, and a second request costs more than the bytes."""
_REQUESTS: Final = 8
"""Files of the hub that are asked for at the same time; a large model has more than a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShape:
    """What a header says about one tensor."""

    shape: tuple[int, ...]
    dtype: str
    file: str


def check_weights(folder: Path, config: Mapping[str, Any], *, native: bool) -> int:
    """Return the bytes of all tensors of a folder. native: also compare names and shapes with our model family's.

    Raises ModelError with everything that is wrong.
    """
    from areal.models.loading import weight_files
    from areal.models.saving import INDEX_FILE

    headers: dict[str, _Header | ModelError] = {}
    for file in weight_files(folder):
        try:
            headers[file.name] = read_header(file)
        except ModelError as error:
            headers[file.name] = error
    index = folder / INDEX_FILE
    listed = index if index.is_file() and len(headers) > 1 else None
    return _check(str(folder), headers, listed, config, native=native)


def check_remote_weights(name: HubName, files: Sequence[RemoteFile], config: Mapping[str, Any], *, native: bool) -> int:
    """Return the bytes of all tensors of a model of the hub, as `check_weights` does; only headers are transferred.

    files: those that the model has (`areal.hub.download.to_fetch`).

    Raises ModelError with everything that is wrong, HubError when the hub cannot be asked.
    """
    from concurrent.futures import ThreadPoolExecutor

    from areal.hub.download import METADATA, fetch, read_range
    from areal.models.saving import INDEX_FILE, WEIGHTS_FILE

    sizes = {file.name: file.num_bytes for file in files}
    index = fetch(name, METADATA) / INDEX_FILE
    wanted = [WEIGHTS_FILE]
    if WEIGHTS_FILE not in sizes and index.is_file():
        wanted = sorted(set(_weight_map(index).values()))
    if absent := [file for file in wanted if file not in sizes]:
        has = f"{name} has no weights: expected {WEIGHTS_FILE} or {INDEX_FILE}"
        lacks = f"{name}: {INDEX_FILE} names files that it does not have: {_few(absent)}"
        raise ModelError(lacks if index.is_file() else has, where=str(name), fix="name a repository with safetensors")

    def header(file: str) -> _Header | ModelError:
        try:
            return parse_header(f"{name}: {file}", file, sizes[file], partial(read_range, name, file))
        except ModelError as error:
            return error

    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="areal-headers") as pool:
        headers = dict(zip(wanted, pool.map(header, wanted), strict=True))
    return _check(str(name), headers, index if len(wanted) > 1 else None, config, native=native)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What a file says about itself."""

    tensors: Mapping[str, StoredShape]
    num_bytes: int
    """Of its tensors."""


def _check(
    where: str,
    headers: Mapping[str, _Header | ModelError],
    index: Path | None,
    config: Mapping[str, Any],
    *,
    native: bool,
) -> int:
    """Compare headers with the index, if there is one, and with the family."""
    import torch

    from areal.models.adapter import TableAdapter
    from areal.models.loading import resolve

    problems = [str(header) for header in headers.values() if isinstance(header, ModelError)]
    whole = [header for header in headers.values() if not isinstance(header, ModelError)]
    stored = {name: entry for header in whole for name, entry in header.tensors.items()}
    if not problems and index is not None:
        listed = _weight_map(index)
        lost = sorted(name for name, file in listed.items() if name not in stored or stored[name].file != file)
        if lost:
            problems.append(f"{index} names {len(lost)} tensors that its files lack: {_few(lost)}")
    if problems:
        raise ModelError("; ".join(problems), where=where, fix="download or write the named files again")
    if native:
        spec, args = resolve(config, names=stored)
        adapter = spec.state_dict_adapter(args)
        assert isinstance(adapter, TableAdapter), "all families of ours have a table"
        try:
            adapter.locate({name: torch.empty(entry.shape, device="meta") for name, entry in stored.items()})
        except ModelError as error:
            raise ModelError(f"{where}: {error}", where=where, fix=error.fix) from error
    return sum(header.num_bytes for header in whole)


def _weight_map(index: Path) -> Mapping[str, str]:
    """Return tensors and their files. Raises ModelError for a file of another kind."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if isinstance(found, dict) and all(isinstance(file, str) for file in found.values()):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise ModelError(f"{index} is not a safetensors index", where=str(index), fix="download or write it again")


def read_header(file: Path) -> _Header:
    """Return what a safetensors file says about itself. Raises ModelError when it is damaged or cut."""
    with file.open("rb") as stream:

        def read(start: int, count: int) -> bytes:
            stream.seek(start)
            return stream.read(count)

        return parse_header(str(file), file.name, file.stat().st_size, read)


def parse_header(shown: str, name: str, size: int, read: Reader) -> _Header:
    """Return what a safetensors file of `size` bytes says about itself. shown: how errors name it.

    Raises ModelError when it is damaged or cut.
    """
    start = read(0, min(size, _FIRST_READ)) if size else b""
    if len(start) < _LENGTH.size:
        raise ModelError(f"{shown} is cut: {size} bytes are no safetensors file")
    length: int = _LENGTH.unpack_from(start)[0]
    if length > _MOST_HEADER:
        raise ModelError(f"{shown} is not a safetensors file: its header would have {length} bytes")
    if _LENGTH.size + length > size:
        raise ModelError(f"{shown} is cut inside its header: {size} bytes, the header alone has {length}")
    if len(start) < _LENGTH.size + length:
        start += read(len(start), _LENGTH.size + length - len(start))
    try:
        header = json.loads(start[_LENGTH.size : _LENGTH.size + length])
        tensors = {
            key: StoredShape(shape=tuple(entry["shape"]), dtype=entry["dtype"], file=name)
            for key, entry in header.items()
            if key != "__metadata__"
        }
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{shown} is damaged: its header is not that of a safetensors file ({error!r})") from error
    expected = _LENGTH.size + length + end
    if size != expected:
        how = f"cut: {expected - size} bytes are missing" if size < expected else "longer than its header says"
        raise ModelError(f"{shown} is {how} ({size} bytes, expected {expected})")
    return _Header(tensors=tensors, num_bytes=end)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
