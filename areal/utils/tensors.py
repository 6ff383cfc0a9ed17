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
_SUMS_MARK: Final = "sums:"
_SUMS: Final = ((32, 0x9E3779B97F4A7C15 - (1 << 64)), (17, 0xBF58476D1CE4E5B9 - (1 << 64)))
"""Shift and factor, as a signed number, of each sum."""
_CHUNK_WORDS: Final = 1 << 20
"""Of a tensor whose products exist at a time."""


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
    """128 bits over the row-major bytes of a tensor, in hex: of SHA-256, or `bit_sums` of a tensor that is on an
    accelerator, marked as such."""
    return digests({"": tensor})[""]


def digests(tensors: Mapping[str, Tensor], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Digest of each tensor. known: digests of the same names, to be compared with: of their kind, wherever the tensors
    are.

    Large tensors of the host are hashed side by side, for hashing releases the interpreter; sums of the others are made
    where they are and read together.
    """
    summed = [name for name, tensor in tensors.items() if _is_summed(tensor, (known or {}).get(name))]
    found = dict(zip(summed, bit_sums([tensors[name] for name in summed]), strict=True))
    rest = [name for name in tensors if name not in found]
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        found |= dict(zip(rest, pool.map(lambda name: _hashed(tensors[name]), rest), strict=True))
    return {name: found[name] for name in tensors}


def bit_sums(tensors: Sequence[Tensor]) -> list[str]:
    """Two sums over the 64-bit words w_i of each tensor's row-major bytes (the last one filled with zeros), mod 2^64:

        sum_i (w_i xor w_i >> s) (2 i + 1) c,    s, c = 32, 0x9E3779B97F4A7C15 and 17, 0xBF58476D1CE4E5B9

    Integers, so that every device gives the same whatever order it adds in. Each factor is odd: another word changes
    the sum, and words that change places do; the shifts bring high bits, signs among them, down, where changes of two
    words do not cancel. They find damage, not malice.
    """
    import torch

    if not tensors:
        return []
    sums = torch.stack([_sums(tensor) for tensor in tensors]).tolist()
    return [_SUMS_MARK + "".join(f"{value % 2**64:016x}" for value in pair) for pair in sums]


def _sums(tensor: Tensor) -> Tensor:
    """int64 [2]; products of int64 wrap around on every device."""
    import torch

    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() - raw.numel() % 8
    words, rest = raw[:whole].view(torch.int64), raw[whole:]
    if rest.numel():
        last = torch.zeros(8, dtype=torch.uint8, device=raw.device)
        last[: rest.numel()] = rest
        words = torch.cat((words, last.view(torch.int64)))
    total = torch.zeros(2, dtype=torch.int64, device=raw.device)
    for start in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS]
        odd = torch.arange(2 * start + 1, 2 * (start + chunk.numel()), 2, device=raw.device)
        for place, (shift, factor) in enumerate(_SUMS):
            low = (chunk >> shift) & ((1 << (64 - shift)) - 1)  # the shift of signed numbers repeats the sign
            total[place] += (chunk ^ low).mul_(odd).mul_(factor).sum()
    return total


def _is_summed(tensor: Tensor, known: str | None) -> bool:
    return not tensor.is_cpu if known is None else known.startswith(_SUMS_MARK)


def _hashed(tensor: Tensor) -> str:
    import torch

    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()[:_DIGEST_CHARACTERS]


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
