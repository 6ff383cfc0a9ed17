"""Run reward functions in worker processes that can really be killed. Nothing here knows what a reward means.

    reward = AsyncRewardWrapper("gsm8k", timeout_seconds=15.0, max_workers=2)
    score = await reward("8*9=", "72", [5, 9], [11], answer="72")

A worker that exceeds the limit is killed with every process the reward started (outside Linux, those that moved to a
session of their own excepted), and replaced. See `_worker_pool` for how, and `_worker` for what runs on the other side.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import pickle
import sys
import weakref
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError, FaultError, FaultKind, load
from areal.reward._worker_pool import RewardCall, WorkerPool, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class AsyncRewardWrapper:
    """An awaitable reward. Safe to use from several threads and event loops at once.

    reward: a registry name, a path "package.module:function", or an importable callable (also a picklable instance or
        `functools.partial` of one). Lambdas, nested functions and functions of `__main__` are refused, since no other
        process can import them. A class is called once in each worker, and what it returns is the reward.
    options: keyword arguments of that class, or of every call of a function; a column of the row of the same name wins.
    timeout_seconds: wall time of one call, from its start in the worker.
    max_workers: processes. memory_limit_mb: address space of each (RLIMIT_AS); None sets no limit.

    Raises ConfigError for a callable that cannot be sent, RegistryError for an unknown name.
    """

    def __init__(
        self,
        reward: str | Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 15.0,
        max_workers: int = 1,
        memory_limit_mb: int | None = None,
    ) -> None:
        if timeout_seconds <= 0 or max_workers < 1 or (memory_limit_mb is not None and memory_limit_mb < 1):
            raise ConfigError(
                f"reward worker: timeout_seconds {timeout_seconds}, max_workers {max_workers}, memory_limit_mb "
                f"{memory_limit_mb}; expected > 0, at least 1, and None or at least 1"
            )
        self.name, setup = _transport(reward)
        setup |= {"sys_path": [entry or os.getcwd() for entry in sys.path], "memory_limit_mb": memory_limit_mb}
        setup |= {"options": dict(options or {})}
        self._pool = WorkerPool(self.name, frame(setup), timeout_seconds, max_workers)
        # The pool's thread must not keep a forgotten wrapper alive.
        weakref.finalize(self, self._pool.close)

    async def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **data: Any
    ) -> float:
        """Score one completion; arguments as in `areal.api.RewardFunction`.

        Raises FaultError: REWARD_INVALID (not a finite number), REWARD_RAISED (an exception, or the process died),
        REWARD_TIMEOUT, DATA_INVALID (a column cannot be pickled), or the kind of a FaultError that the reward raised.
        Raises ConfigError or RegistryError when the reward cannot be loaded.
        """
        try:
            payload = frame(((prompt, completions, prompt_ids, completion_ids), data))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"the row cannot be sent to the process of reward {self.name!r}: {error}"
            raise FaultError(FaultKind.DATA_INVALID, message) from error
        loop = asyncio.get_running_loop()
        call = RewardCall(payload=payload, loop=loop, future=loop.create_future())
        self._pool.submit(call)
        return await call.future

    def start(self) -> None:
        """Start the workers now and return when the reward is imported.

        Raises ConfigError or RegistryError when it cannot be.
        """
        self._pool.start()

    def close(self) -> None:
        """Kill the workers; calls still waiting fail. Idempotent."""
        self._pool.close()


def _transport(reward: str | Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return a name for messages, and how the worker gets hold of the reward."""
    if isinstance(reward, str):
        from areal.reward.registry import REWARDS

        target = REWARDS.get(reward, reward)
        module, _, _ = target.partition(":") if ":" in target else target.rpartition(".")
        # The worker imports the module, not this process. Only a module that does not exist is reported from here.
        try:
            exists = bool(module) and importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            exists = False
        if not exists:
            load("reward", reward, REWARDS)
        return reward, {"target": target}
    name = str(getattr(reward, "__qualname__", None) or repr(reward))
    if inspect.iscoroutinefunction(reward):
        raise ConfigError(
            f"reward {name!r} is a coroutine function; a reward is a plain function that returns a number"
        )
    try:
        pickled = pickle.dumps(reward, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(_unsendable(name, str(error))) from error
    if b"__main__" in pickled:
        raise ConfigError(_unsendable(name, "it is defined in the script that was started"))
    return name, {"pickled": pickled}


def _unsendable(name: str, why: str) -> str:
    return (
        f"reward {name!r} cannot run in a worker process: {why}. Move it to the top level of an importable module and "
        f'pass it, or its path "package.module:function"'
    )
