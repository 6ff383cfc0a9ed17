"""Train on sessions that others open: an application in production, agents on other machines, a person.

    workflow: outside_sessions
    workflow_options:
      key_variable: AREAL_ADMIN_KEY                   # environment variable with the key that opens, scores and closes
      gateway: {port: 8400, reward_deadline: 3600}
    reward: unscored
    rollout: {group_size: 1, consume: drop}

Each prompt of the run is a place for one session. `POST /rl/sessions` with the admin key takes the oldest free place
and gives an address, a key of its own, and the row of the prompt; whoever has that key talks to the model as in
`areal.workflow.agent`, whose limits and outcomes hold. The session ends when it is closed (`DELETE /rl/sessions/NAME`)
or reaches a limit. It has then `gateway.reward_deadline` seconds to be scored (`POST /rl/sessions/NAME/reward`).

A place counts from the admission of its prompt, so that the bound on staleness holds whenever somebody comes; with
consume "drop", places and sessions that became too old are given up, and what is scored later is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from areal.api import ConfigError, RolloutWorkflow
from areal.environment.wire import MIN_KEY_CHARACTERS
from areal.gateway.config import GatewayConfig
from areal.gateway.rendering import Renderer
from areal.gateway.server import Gateway
from areal.gateway.wire.common import RefusedRequestError
from areal.utils import stats
from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger
from areal.workflow.session_results import (
    last_answer,
    late_reward,
    option_function,
    option_record,
    run_score,
    trained_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.api import GenerationConfig, InferenceEngine, Trajectory
    from areal.gateway.sessions import Session
    from areal.workflow.assembly import AwaitableReward

logger = getLogger(__name__)


class OutsideSessionsWorkflow(RolloutWorkflow):
    """See the module. An episode is one session; it gives a trajectory for each leaf of its conversations."""

    def __init__(
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        key_variable: str,
        select: str = "",
        ready_file: str = "",
        gateway: Mapping[str, Any] | None = None,
    ) -> None:
        """key_variable: environment variable with the admin key, at least 32 characters, which opens, scores and closes
        sessions; those who talk to the model never get it. select: as in `areal.workflow.agent`. ready_file: gets the
        address as JSON once requests are answered. gateway: fields of `areal.gateway.config.GatewayConfig`; without
        `reward_deadline`, a session that has no reward when it ends is scored by the run's reward for its last answer.
        """
        self._reward, self._gconfig = reward, gconfig
        self._key = os.environ.get(key_variable, "")
        if len(self._key) < MIN_KEY_CHARACTERS:
            raise ConfigError(
                f"the environment variable {key_variable} holds {len(self._key)} characters, expected a key of at "
                f"least {MIN_KEY_CHARACTERS}",
                where="workflow_options.key_variable",
                fix="python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
            )
        self._select: Callable[..., bool] | None = option_function("select", select)
        self._ready_file = ready_file
        self._config = option_record(GatewayConfig, "gateway", gateway)
        self.with_reward = not self._config.reward_deadline
        """Whether the run's reward is asked."""
        self._renderer = Renderer(
            tokenizer, enable_thinking=self._config.enable_thinking, template_date=self._config.template_date
        )
        self._doors: WeakKeyDictionary[asyncio.AbstractEventLoop, _Door] = WeakKeyDictionary()

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> list[Trajectory] | None:
        """Wait for a session, for its end and for its reward; return its leaves, None when `select` wants none of them.

        A session that asked for nothing gives its place back. Records (`areal.utils.stats`) those of the agent
        workflow, agent/wait_seconds (until somebody came) and agent/unused (sessions that asked for nothing). Raises
        FaultError: REWARD_MISSING, those of the reward, and the engine's where no answer came for it.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._doors:
            self._doors[loop] = _Door(
                self._renderer, self._config, self._gconfig, key=self._key, ready_file=self._ready_file
            )
        door = self._doors[loop]
        await door.is_open()
        came, unused = monotonic(), 0
        while True:
            session = await door.visited(engine, data, first=bool(unused))
            started = monotonic()
            try:
                await session.wait_for_end()
                await door.gateway.close(session)
                if session.error is not None:
                    raise session.error
                if session.answers:
                    reward = await self._rewarded(door.gateway, session, data)
                    break
                if session.fault is not None:
                    raise session.fault
                unused += 1
            finally:  # given up, it is over too: whoever uses or scores it is told so
                await door.gateway.close(session)
                session.finish()
        stats.record("agent/wait_seconds", started - came)
        stats.record("agent/seconds", monotonic() - started)
        stats.record("agent/unused", unused)
        return trained_leaves(session, reward, self._select)

    async def _rewarded(self, gateway: Gateway, session: Session, data: Mapping[str, Any]) -> float | None:
        """Return the reward of the session; None when only its answers have one."""
        if not session.is_scored:
            if not self._config.reward_deadline:
                return await run_score(self._reward, session, data, last_answer(session).reply.text)
            await late_reward(gateway, session, self._config.reward_deadline)
        return session.reward


class _Door:
    """The gateway of one event loop, from its first episode until the loop ends, and the places that are free."""

    def __init__(
        self, renderer: Renderer, config: GatewayConfig, gconfig: GenerationConfig, *, key: str, ready_file: str
    ) -> None:
        self.gateway = Gateway(renderer, config, admin_key=key, on_open=self._open)
        self._gconfig = gconfig
        self._free: deque[tuple[InferenceEngine, Mapping[str, Any], asyncio.Future[Session]]] = deque()
        self._listens = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(ready_file), name="areal-outside-sessions")

    async def is_open(self) -> None:
        """Wait until requests are answered. Raises what keeps it from that."""
        listens = asyncio.ensure_future(self._listens.wait())
        await asyncio.wait({listens, self._keeper}, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if self._keeper.done():
            self._keeper.result()

    async def visited(self, engine: InferenceEngine, row: Mapping[str, Any], *, first: bool) -> Session:
        """Wait until somebody opens a session in this place. first: before the others that wait."""
        visitor: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        (self._free.appendleft if first else self._free.append)((engine, row, visitor))
        try:
            return await visitor
        except asyncio.CancelledError:
            if visitor.done() and not visitor.cancelled():  # it came in the moment in which the place was given up
                await self.gateway.close(visitor.result())
                visitor.result().finish()
            raise

    def _open(self) -> Session:
        while self._free:
            engine, row, visitor = self._free.popleft()
            if visitor.done():
                continue  # given up meanwhile
            session = self.gateway.open(engine, self._gconfig)
            session.row = row
            visitor.set_result(session)
            return session
        raise RefusedRequestError("too_many", "all places of the run are taken; come again when one is free")

    async def _keep(self, ready_file: str) -> None:
        async with self.gateway.running():
            logger.info("sessions can be opened at %s", self.gateway.address)
            if ready_file:
                text = json.dumps({"address": self.gateway.address})
                await asyncio.to_thread(atomic_write, Path(ready_file), text)
            self._listens.set()
            with contextlib.suppress(asyncio.CancelledError):  # the loop ends
                await asyncio.Event().wait()
