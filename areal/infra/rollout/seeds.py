"""Stable seeds from names and numbers: the same on every machine, in every process, whatever the load."""

from __future__ import annotations

from hashlib import blake2b

_MASK = (1 << 63) - 1


def derive_seed(*parts: int | str) -> int:
    """63-bit hash of `parts`, e.g. `derive_seed("train", run_seed, ordinal, sample, attempt, call)`.

    Different parts give independent seeds; Python's own `hash` is salted per process and therefore of no use.
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") & _MASK
