"""Lets test code in one process call functions that live in another process, without trusting that other process.

    tests process                                   program process
    add(1, 2)  -- ["call", 0, [1, 2], {}] -->       add(1, 2)
    3          <-- ["value", 3, [...]] --           3

Plain values (numbers, text, bytes, and lists, tuples, sets and dicts of them) travel as copies, so they are compared
where the tests run. Everything else stays where it is and is reached through a `Remote`. An object of the program
never equals a plain value, whatever its `__eq__` says: an answer that claims to equal everything equals nothing.

This is not a general remote procedure call: the values are those of tests, and both ends run the same Python.
"""

from __future__ import annotations

import builtins
import importlib
import json
import operator
import struct
import sys
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Sequence

_HEADER: Final = struct.Struct("<I")
MAX_FRAME_BYTES: Final = 64 << 20
_LARGE_INTEGER_BITS: Final = 4096
"""Longer integers travel in hexadecimal: decimal conversion is quadratic, and limited by the interpreter."""
SHARED_MODULES: Final = frozenset(
    {"bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json"}
    | {"math", "operator", "random", "re", "statistics", "string", "typing"}
)
"""What a program imported from these, tests get from their own copy: a program must not supply its own `isclose`."""
OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "attribute": getattr,
    "set_attribute": setattr,
    "pick": lambda table, names: {name: table[name] for name in names if name in table},
    "__bool__": bool,
    "__len__": len,
    "__iter__": iter,
    "__next__": next,
    "__str__": str,
    "__repr__": repr,
    "__int__": int,
    "__float__": float,
    "__instancecheck__": lambda kind, value: isinstance(value, kind),
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__add__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__truediv__": operator.truediv,
    "__mod__": operator.mod,
    "__neg__": operator.neg,
    "__abs__": operator.abs,
}
_COMPARISONS: Final = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
RAISED_REMOTELY: Final = "raised by the other process"
"""Note on every exception that came over the wire."""


class PeerGoneError(BaseException):
    """The other process ended. No `Exception`, so that no `except Exception` of a test takes it for an answer."""


class Peer:
    """One end of the conversation. `operations`: what the other end may ask for."""

    def __init__(self, channel: socket.socket, operations: Collection[str]) -> None:
        self._channel = channel
        self._reader = channel.makefile("rb")
        self._operations = operations
        self._exported: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._classes: dict[int, type[Exception]] = {}

    def send(self, message: Any) -> None:
        body = json.dumps(message).encode()
        try:
            self._channel.sendall(_HEADER.pack(len(body)) + body)
        except OSError as error:
            raise PeerGoneError from error

    def receive(self) -> Any:
        """Return the next message. Raises PeerGoneError at the end, ValueError for what is not a message."""
        try:
            header = self._reader.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise PeerGoneError
            size = _HEADER.unpack(header)[0]
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {size} bytes")
            body = self._reader.read(size)
        except OSError as error:
            raise PeerGoneError from error
        if len(body) < size:
            raise PeerGoneError
        return json.loads(body)

    def serve(self) -> None:
        """Answer requests until the other process ends."""
        while True:
            try:
                self._answer(self.receive())
            except PeerGoneError:
                return

    def ask(self, operation: str, target: int, *arguments: Any) -> Any:
        """Have the other process do something, and answer its own requests meanwhile."""
        self.send([operation, target, *(self.encode(argument) for argument in arguments)])
        while True:
            kind, *rest = self.receive()
            if kind == "value":
                _write_back(arguments, [self.decode(item) for item in rest[1]])
                return self.decode(rest[0])
            if kind == "error":
                error_class, message = self.decode(rest[0]), str(rest[1])
                try:
                    error = error_class(message)
                except Exception:  # noqa: BLE001 - e.g. UnicodeDecodeError wants five arguments
                    error = None
                if not isinstance(error, Exception):
                    error = RuntimeError(f"{getattr(error_class, '__name__', 'error')}: {message}")
                error.add_note(RAISED_REMOTELY)
                raise error
            self._answer([kind, *rest])

    def _answer(self, message: Any) -> None:
        try:
            operation, target, *encoded = message
            if operation not in self._operations:
                raise PermissionError(f"{operation!r} is not allowed here")
            arguments = [self.decode(item) for item in encoded]
            value = OPERATIONS[operation](self._exported[target], *arguments)
            # Functions may sort in place: lists of call arguments go back as they are now, if the call changed them.
            changed = [self.encode(item) if isinstance(item, list) else None for item in arguments]
            pairs = zip(changed, encoded, strict=True)
            changed = [None if json.dumps(now) == json.dumps(then) else now for now, then in pairs]
            reply = ["value", self.encode(value), changed]
        except Exception as error:  # noqa: BLE001 - whatever the other side's request raises is its answer
            reply = ["error", self.encode(type(error)), str(error)]
        self.send(reply)

    def encode(self, value: Any) -> Any:
        """As JSON: scalars as they are, everything else as [tag, ...]."""
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _LARGE_INTEGER_BITS else ["int", hex(value)]
        if isinstance(value, bytes | bytearray):
            return [type(value).__name__, value.hex()]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return [kind.__name__, [self.encode(item) for item in value]]
        if isinstance(value, complex | Decimal | Fraction):
            return [type(value).__name__, str(value)]
        return self._encode_reference(value)

    def _encode_reference(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return ["yours", _number(value)]
        if isinstance(value, ModuleType) and value.__name__ in SHARED_MODULES:
            return ["shared", value.__name__, ""]
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if module in SHARED_MODULES and getattr(sys.modules.get(module), str(name), None) is value:
            return ["shared", module, name]
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [kind.__name__ for kind in value.__mro__ if getattr(builtins, kind.__name__, None) is kind]
            return ["exception", self.export(value), value.__name__, bases[0]]
        return ["mine", self.export(value)]

    def export(self, value: Any) -> int:
        """Return the number under which the other process can ask for an object."""
        # The list keeps the object alive, so that its id stays its own.
        number = self._numbers.setdefault(id(value), len(self._exported))
        if number == len(self._exported):
            self._exported.append(value)
        return number

    def decode(self, data: Any) -> Any:
        """Return the inverse. Raises ValueError or TypeError for anything else."""
        if not isinstance(data, list):
            return data
        tag, first, *rest = data
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self.decode(item) for item in first)
        if tag in _SCALARS:
            return _SCALARS[tag](first)
        match tag:
            case "dict":
                return {self.decode(key): self.decode(item) for key, item in first}
            case "mine":
                return Remote(self, int(first))
            case "yours":
                return self._exported[first]
            case "shared":
                name = str(rest[0])
                if first not in SHARED_MODULES or name.startswith("_"):
                    raise ValueError(f"{first}.{name} is not shared")
                module = importlib.import_module(first)
                return getattr(module, name) if name else module
            case "exception":
                name, base = rest
                builtin = getattr(builtins, base, None)
                if not (isinstance(builtin, type) and issubclass(builtin, Exception)):
                    builtin = RuntimeError
                if first not in self._classes:
                    self._classes[first] = type(str(name), (builtin,), {})
                return builtin if name == builtin.__name__ else self._classes[first]
        raise ValueError(f"unknown tag {tag!r:.80}")


_CONTAINERS: Final[dict[str, Callable[[Any], Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "Decimal": Decimal,
    "Fraction": Fraction,
}


def _write_back(arguments: Sequence[Any], changed: Sequence[Any]) -> None:
    """Give the caller's lists, sets and dicts the content that the call left in their copies."""
    for argument, after in zip(arguments, changed, strict=False):
        if not isinstance(argument, list) or not isinstance(after, list):
            continue
        for original, now in zip(argument, after, strict=False):
            if type(original) is not type(now) or original == now:
                continue
            if isinstance(original, list | bytearray):
                original[:] = now
            elif isinstance(original, set | dict):
                original.clear()
                original.update(now)


class Remote:
    """An object of the other process."""

    __slots__ = ("_remote_number", "_remote_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_remote_peer", peer)
        object.__setattr__(self, "_remote_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _ask(self, "call", list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return _ask(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set_attribute", name, value)

    def __hash__(self) -> int:
        return _number(self)


def _number(remote: Remote) -> int:
    number: int = object.__getattribute__(remote, "_remote_number")
    return number


def _ask(remote: Remote, operation: str, *arguments: Any) -> Any:
    peer: Peer = object.__getattribute__(remote, "_remote_peer")
    return peer.ask(operation, _number(remote), *arguments)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        # Only two objects of the program are compared over there; a plain value is not its to compare with.
        if name in _COMPARISONS and not all(isinstance(argument, Remote) for argument in arguments):
            return NotImplemented
        return _ask(self, name, *arguments)

    method.__name__ = name
    return method


for _name in OPERATIONS:
    if _name.startswith("__"):
        setattr(Remote, _name, _forwarded(_name))
