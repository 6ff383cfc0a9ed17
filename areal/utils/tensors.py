"""Tensors as bytes: digests that both ends of a transfer compute alike, and buckets that many tensors travel in.

Used by the trainer and, copied as it is, by worker processes of inference servers: standard library and torch only, and
nothing of ours. It moves nothing itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

_ALIGNMENT: Final = 16
"""Bytes; every tensor in a bucket begins at a multiple, so that its dtype can view it in place."""
_DIGEST_CHARACTERS: Final = 32
_DIGEST_THREADS: Final = 4


def dtype_name(tensor: Tensor) -> str:
    """E.g. "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """Return the dtype of a name, the inverse of `dtype_name`; ValueError for an unknown name."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch; expected a name such as 'float32' or 'bfloat16'")
    return found


def digest(tensor: Tensor) -> str:
    """128 bits of SHA-256 over the row-major bytes of a tensor, in hex. The tensor may be on any device."""
    import torch

    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()[:_DIGEST_CHARACTERS]


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Digest of each tensor; large ones are hashed side by side, for hashing releases the interpreter."""
    names = list(tensors)
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: digest(tensors[name]), names), strict=True))


def listing_digest(entries: Sequence[Mapping[str, Any]]) -> str:
    """128 bits of SHA-256 over name, dtype, shape and digest of many tensors: which tensors these are, in hex."""
    listing = [[entry["name"], entry["dtype"], list(entry["shape"]), entry["digest"]] for entry in entries]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def buckets(entries: Sequence[Mapping[str, Any]], max_bytes: int) -> Iterator[list[Mapping[str, Any]]]:
    """Cut a list of {"dtype", "shape", ...} into runs of at most `max_bytes` (a larger tensor has a run of its own)."""
    run: list[Mapping[str, Any]] = []
    size = 0
    for entry in entries:
        needed = _padded(entry)
        if run and size + needed > max_bytes:
            yield run
            run, size = [], 0
        run.append(entry)
        size += needed
    if run:
        yield run


def bucket_bytes(run: Iterable[Mapping[str, Any]]) -> int:
    """Return the size of the buffer that one run needs."""
    return sum(map(_padded, run))


def views(buffer: Tensor, run: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    """Return the tensors of one run as views into its uint8 buffer."""
    found, offset = [], 0
    for entry in run:
        size = entry_bytes(entry)
        piece = buffer[offset : offset + size].view(dtype_of(entry["dtype"]))
        found.append(piece.view(tuple(entry["shape"])))
        offset += _padded(entry)
    return found


def entry_bytes(entry: Mapping[str, Any]) -> int:
    """Return the bytes of the tensor that {"dtype", "shape", ...} describes."""
    return int(math.prod(entry["shape"])) * int(dtype_of(entry["dtype"]).itemsize)


def _padded(entry: Mapping[str, Any]) -> int:
    return -(-entry_bytes(entry) // _ALIGNMENT) * _ALIGNMENT
