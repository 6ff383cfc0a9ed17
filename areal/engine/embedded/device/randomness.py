"""The random numbers of `areal.engine.embedded.sequence`, drawn where the rows are: equal in every bit.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), by counter. torch has
no arithmetic on unsigned numbers of 64 bits on accelerators, but sums and products of int64 wrap to the same bits; only
a shift to the right has to be cleared of the copies of the sign.

Example: the state 2**64 - 1 is the int64 -1, and its shift by 12 is -1 & (2**52 - 1) = 2**52 - 1 in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor


def signed(bits: int) -> int:
    """Return the int64 that has the 64 bits of a number from 0 to 2**64 - 1."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


_GOLDEN: Final = signed(0x9E3779B97F4A7C15)
_FIRST: Final = signed(0xBF58476D1CE4E5B9)
_SECOND: Final = signed(0x94D049BB133111EB)


def device_uniforms(states: Tensor, counters: Tensor) -> Tensor:
    """Draw number `counters[r]` of stream `states[r]`; see `areal.engine.embedded.sequence.uniforms`.

    states: int64 [N], the bits of the unsigned states. counters: int64 [N]. Returns float64 [N] in (0, 1).
    """
    value = states + (counters + 1) * _GOLDEN
    value = (value ^ _shifted(value, 30)) * _FIRST
    value = (value ^ _shifted(value, 27)) * _SECOND
    value = value ^ _shifted(value, 31)
    return (_shifted(value, 12).double() + 0.5) * 2.0**-52


def _shifted(value: Tensor, count: int) -> Tensor:
    """Shift to the right, as of unsigned numbers."""
    return (value >> count) & ((1 << (64 - count)) - 1)
