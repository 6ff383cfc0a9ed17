"""Models without memory: names and shapes of what a class would hold, for a fraction of what a real one costs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DRAWN: Final = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_})
"""What only writes values: nothing of a tensor without memory changes by it, and drawing takes half of the time."""


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in DRAWN and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def outlined() -> Iterator[None]:
    """Make tensors without memory, and draw no values for them."""
    with torch.device("meta"), _Undrawn():
        yield
