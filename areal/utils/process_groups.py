"""Process groups beside the default one, between processes of different programs: a store, a backend, nothing global.

Used by the trainer and, copied as it is, by worker processes of inference servers: torch only, nothing of ours.
`torch.distributed.init_process_group` would not do: both programs may have a default group of their own already.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.005


def open_store(host: str, *, world_size: int, timeout_seconds: float) -> tuple[Any, int]:
    """Rank 0's side of a rendezvous: a store, and the port (a free one) at which the other ranks find it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    limit = timedelta(seconds=timeout_seconds)
    store = TCPStore(host, 0, world_size, is_master=True, timeout=limit, wait_for_workers=False)
    return store, store.port


def connect_store(host: str, port: int, *, world_size: int, timeout_seconds: float) -> Any:
    """Connect another rank to the store that rank zero opened."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    limit = timedelta(seconds=timeout_seconds)
    return TCPStore(host, port, world_size, is_master=False, timeout=limit, wait_for_workers=False)


def join_group(
    store: Any, *, rank: int, world_size: int, backend: str, timeout_seconds: float, name: str = "areal"
) -> Any:
    """Meet the other ranks at the store; returns the group, to be handed to `broadcast`.

    backend: "gloo" or "nccl". name: of the group among those that meet at this store. Raises RuntimeError, or a
    subclass, when the others do not come in time.
    """
    from torch.distributed import ProcessGroupGloo
    from torch.distributed.distributed_c10d import PrefixStore

    limit = timedelta(seconds=timeout_seconds)
    prefixed = PrefixStore(f"{name}-{backend}", store)
    if backend == "gloo":
        return ProcessGroupGloo(prefixed, rank, world_size, limit)
    from torch.distributed import ProcessGroupNCCL  # not in every build of torch

    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(prefixed, rank, world_size, options)


def begin_transfer(
    store: Any, number: int, *, ranks: range, called_off: Callable[[], str], timeout_seconds: float
) -> None:
    """Return when all others are in `await_transfer`, on rank 0, and let them go on.

    Without it, one that does not come would keep all others in a collective call, which nobody can end, for the whole
    timeout. It waits for half of that, so that the others learn who is missing before their own requests time out.

    number: of the transfer at this store. called_off: returns why it is not to take place, or "". Raises RuntimeError
    with that, or when somebody is late; so do those that came.
    """
    waiting = {rank: f"transfer-{number}/rank-{rank}" for rank in ranks}
    patience = timeout_seconds / 2
    deadline, reason = time.monotonic() + patience, ""
    while waiting and not reason:
        waiting = {rank: key for rank, key in waiting.items() if not store.check([key])}
        if waiting:
            late = time.monotonic() > deadline
            reason = called_off() or (f"ranks {sorted(waiting)} did not come in {patience:g} s" if late else "")
            time.sleep(_POLL_SECONDS)
    store.set(f"transfer-{number}", f"called off: {reason}" if reason else "begins")
    if reason:
        raise RuntimeError(reason)


def await_transfer(store: Any, number: int, *, rank: int) -> None:
    """Return when rank 0 begins the transfer, on another rank. Raises RuntimeError when it was called off."""
    store.set(f"transfer-{number}/rank-{rank}", "here")
    said = store.get(f"transfer-{number}").decode()
    if said != "begins":
        raise RuntimeError(said)


def send(group: Any, tensor: Any, rank: int, tag: int) -> None:
    """Send `tensor` to one rank; returns when it may be changed."""
    group.send([tensor], rank, tag).wait()


def receive(group: Any, tensor: Any, rank: int, tag: int) -> Any:
    """Begin to receive into `tensor` what a rank sends with this tag; call `wait()` of the result."""
    return group.recv([tensor], rank, tag)


def say(group: Any, text: str, device: Any) -> None:
    """Send a text from rank 0 to all others."""
    import torch

    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    broadcast(group, torch.tensor([data.numel()], device=device))
    broadcast(group, data)


def hear(group: Any, device: Any) -> str:
    """Receive a text from rank 0."""
    import torch

    size = torch.zeros(1, dtype=torch.int64, device=device)
    broadcast(group, size)
    data = torch.empty(int(size), dtype=torch.uint8, device=device)
    broadcast(group, data)
    return bytes(data.cpu().tolist()).decode()


def broadcast(group: Any, tensor: Any) -> None:
    """Send `tensor` from rank 0, or receive into it; returns when it is there."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor], options).wait()
