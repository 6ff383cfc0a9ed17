"""Modules that compute with a part of their parameters: the same class, with parameters read through a function.

A parameter stays where it is, under its name and in its distributed form, so that state dicts, optimizers and FSDP2
find it. What `forward` reads is the local part. No computation goes through the dispatcher of distributed tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh


def adopt(
    module: nn.Module,
    *,
    reads: Mapping[str, Callable[[Tensor], Tensor | None]] | None = None,
    mesh: DeviceMesh | None = None,
    forward: Callable[..., Any] | None = None,
) -> None:
    """Make `module` read its parameters through `reads`, and run `forward(inner, self, ...)` in place of its own
    forward method, which is `inner(self, ...)`.

    mesh: over which the parameters are split; None where they are whole. A parameter in another distributed form, the
    one that FSDP2 keeps between passes, is read as it is. The module's class becomes a subclass of what it was; its
    state does not change.
    """
    cls = type(module)
    namespace: dict[str, Any] = {name: _reading_property(name, read, mesh) for name, read in (reads or {}).items()}
    if forward is not None:
        inner, outer = cls.forward, forward
        namespace["forward"] = lambda self, *args, **kwargs: outer(inner, self, *args, **kwargs)
    module.__class__ = type(f"Parallel{cls.__name__.removeprefix('Parallel')}", (cls,), namespace)


def local_part(parameter: Tensor) -> Tensor:
    """Return the part of a parameter that this rank holds of a mesh; differentiable."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _reading_property(name: str, read: Callable[[Tensor], Tensor | None], mesh: DeviceMesh | None) -> property:
    def get(self: nn.Module) -> Tensor | None:
        parameter = self._parameters[name]
        if parameter is None or (isinstance(parameter, DTensor) and parameter.device_mesh != mesh):
            return parameter
        return read(parameter)

    return property(get)
