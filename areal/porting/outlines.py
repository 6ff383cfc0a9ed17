"""Models without memory: names and shapes of what a class would hold, for a fraction of what a real one costs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DRAWN: Final = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_),
        *(nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, nn.init.constant_),
    }
)
"""What only writes values: nothing of a tensor without memory changes by it, and drawing takes half of the time."""


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in DRAWN:
            given = args[0] if args else (kwargs or {}).get("tensor")  # by name, where torch.nn.init asks
            if given is not None and given.is_meta:
                return given
        return func(*args, **(kwargs or {}))


@contextmanager
def outlined() -> Iterator[None]:
    """Make tensors without memory, and draw no values for them."""
    with torch.device("meta"), _Undrawn():
        yield
