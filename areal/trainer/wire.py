"""Objects as bytes between processes of a run: what holds them is pickled, large tensors travel beside it as they are.

    WireMessage(value).send(connection)
    value = receive(connection).load()    # its tensors are new, and may be written to

A message is a frame that says how many buffers follow and how long they are, with the pickle, and then the buffers.
Only processes that have authenticated each other may use it: a pickle can run code.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_BESIDE: Final = 1 << 14
"""Bytes from which on a buffer has a frame of its own."""
_BY_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that NumPy has, for those that it has not."""
_COUNT: Final = struct.Struct("!I")
_LENGTH: Final = struct.Struct("!Q")


class WireMessage:
    """An object that can be sent to several processes; made at once, so that what cannot be pickled harms nobody."""

    def __init__(self, value: Any) -> None:
        self._buffers: list[memoryview] = []
        stream = io.BytesIO()
        _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=self._keeps_inside).dump(value)
        head = _COUNT.pack(len(self._buffers)) + b"".join(_LENGTH.pack(each.nbytes) for each in self._buffers)
        self._first = head + stream.getvalue()

    @property
    def num_bytes(self) -> int:
        """Of all frames."""
        return len(self._first) + sum(each.nbytes for each in self._buffers)

    def send(self, connection: Connection[Any, Any]) -> None:
        """Send it. Raises OSError when the other end is gone."""
        connection.send_bytes(self._first)
        for each in self._buffers:
            connection.send_bytes(each)

    def _keeps_inside(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _BESIDE:
            return True
        self._buffers.append(view)
        return False


class Received:
    """A message that has arrived."""

    def __init__(self, pickled: memoryview, buffers: list[bytearray]) -> None:
        self._pickled, self._buffers = pickled, buffers

    def load(self) -> Any:
        """Return the object. Raises whatever making it raises."""
        return pickle.loads(self._pickled, buffers=self._buffers)


def receive(connection: Connection[Any, Any]) -> Received:
    """Return the next message. Raises EOFError or OSError when the other end is gone."""
    first = connection.recv_bytes()
    (count,) = _COUNT.unpack_from(first)
    buffers = []
    for number in range(count):
        (length,) = _LENGTH.unpack_from(first, _COUNT.size + number * _LENGTH.size)
        buffer = bytearray(length)
        connection.recv_bytes_into(buffer)
        buffers.append(buffer)
    return Received(memoryview(first)[_COUNT.size + count * _LENGTH.size :], buffers)


class _Pickler(pickle.Pickler):
    """Gives tensors of the host to NumPy, whose arrays are pickled without a copy."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or value.is_complex() or value.is_quantized:
            return NotImplemented
        plain = value.contiguous()
        return _tensor, (plain.view(_BY_SIZE[value.element_size()]).numpy(), value.dtype)


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    # What was small came inside the pickle, as an array over bytes that nobody may write to.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).view(dtype)
