"""Environments on a server of openenv, over the WebSocket of its generic client.

    environment: openenv
    environment_options: {base_url: "http://127.0.0.1:8000", observe: my_games:see, act: my_games:move}
    host: {kind: subprocess, python: /path/to/.venv-openenv/bin/python, max_environments: 4}

Observations and actions of openenv are JSON objects. `observe(observation) -> str` is the text that the policy reads,
`act(text) -> dict` its action, which raises ValueError for a text that names none; without them the policy reads and
writes the objects themselves. An action that the server does not take is answered with an error, and no step is taken.
One connection is one episode: when it is lost the episode is, since the client would go on in another one. A server
that is full is asked again, for `capacity_seconds`, which are part of the time of `reset`: let `max_environments` be
what it serves. openenv knows no truncation, so every end is `terminated`.
"""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import packages_distributions, version
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, StepResult, TurnObservation, load
from areal.environment.adapters import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import AssistantTurn

_OLDEST: Final = (0, 10)
_MESSAGE_MEGABYTES: Final = 16.0
_MESSAGE_SECONDS: Final = 3600.0
"""The limits of a reset and a step are those of the host."""
_SEEDS: Final = 2**31
"""Servers hand seeds to generators that take no more bits."""


class OpenEnvEnvironments:
    """Makes episodes on one server."""

    def __init__(
        self,
        base_url: str,
        *,
        observe: str = "",
        act: str = "",
        reset_columns: Sequence[str] = (),
        capacity_seconds: float = 30.0,
    ) -> None:
        """base_url: of the server, http or ws. observe, act: "module:function"; "" for JSON.

        reset_columns: columns of the dataset row that are handed to the server's `reset` by their names.
        """
        _check_distribution()
        self._client = require("openenv", "openenv").GenericEnvClient
        self._url, self._columns, self._capacity_seconds = base_url, tuple(reset_columns), capacity_seconds
        self._observe: Callable[[Any], str] = load("observe", observe, {}) if observe else _as_json
        self._act: Callable[[str], Any] = load("act", act, {}) if act else _from_json

    def create(self) -> OpenEnvEpisode:
        """Return an episode; it is connected by `reset`."""
        client = self._client(
            base_url=self._url,
            message_timeout_s=_MESSAGE_SECONDS,
            max_message_size_mb=_MESSAGE_MEGABYTES,
            mode="simulation",
        )
        return OpenEnvEpisode(client, self._observe, self._act, self._columns, self._capacity_seconds)


class OpenEnvEpisode:
    """One session of a server."""

    def __init__(
        self,
        client: Any,
        observe: Callable[[Any], str],
        act: Callable[[str], Any],
        columns: tuple[str, ...],
        capacity_seconds: float,
    ) -> None:
        self._client, self._observe, self._act = client, observe, act
        self._columns, self._capacity_seconds = columns, capacity_seconds
        self._socket: Any = None
        """Of the episode; None before it and after it."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """See `areal.api.Environment`. Raises KeyError for a column that the row does not have."""
        columns = {name: row[name] for name in self._columns}
        deadline = asyncio.get_running_loop().time() + self._capacity_seconds
        wait = 0.05
        while True:
            try:
                found = await self._client.reset(seed=seed % _SEEDS, **columns)
                break
            except RuntimeError as error:
                if "CAPACITY_REACHED" not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(wait)
                wait = min(2 * wait, 2.0)
        self._socket = self._client._ws
        return self._shown(self._observe(found.observation))

    async def step(self, answer: AssistantTurn) -> StepResult:
        """See `areal.api.Environment`."""
        if self._socket is None:
            raise RuntimeError("step() after the end of the episode")
        try:
            action = self._act(answer.text)
        except ValueError as error:
            return StepResult(observation=self._shown(f"error: {error}"))
        if not isinstance(action, dict):
            raise TypeError(f"act returned {type(action).__name__}, expected a dict")
        self._check_connection()
        try:
            found = await self._client.step(action)
        except RuntimeError as error:
            self._check_connection()
            if "code: VALIDATION_ERROR" not in str(error):
                raise
            return StepResult(observation=self._shown("error: the environment does not take such an action"))
        self._check_connection()
        if found.done:
            self._socket = None
        return StepResult(
            observation=self._shown(self._observe(found.observation)),
            reward=0.0 if found.reward is None else float(found.reward),
            terminated=bool(found.done),
        )

    async def close(self) -> None:
        """See `areal.api.Environment`."""
        self._socket = None
        await self._client.close()

    def _check_connection(self) -> None:
        """Raise ConnectionError when the client has another connection, which is another episode, or will make one."""
        socket = self._client._ws
        if socket is not self._socket or socket.state.name in {"CLOSING", "CLOSED"}:
            raise ConnectionError("the connection of the episode is lost, and the episode with it")

    def _shown(self, text: str) -> TurnObservation:
        return TurnObservation(messages=({"role": "user", "content": text},))


def _check_distribution() -> None:
    """Raise ConfigError unless the package is openenv, new enough: another distribution installs the same package."""
    found = packages_distributions().get("openenv", [])
    others = sorted(set(found) - {"openenv"})
    fix = "bash scripts/setup_openenv.sh makes an environment with the right one"
    if others:
        raise ConfigError(f"the package openenv is that of {', '.join(others)}, expected that of openenv", fix=fix)
    if found:
        release = version("openenv")
        if tuple(int(part) for part in release.split(".")[:2]) < _OLDEST:
            raise ConfigError(f"openenv {release} is installed, expected 0.10 or newer", fix=fix)


def _as_json(observation: Any) -> str:
    return json.dumps(observation, sort_keys=True, ensure_ascii=False)


def _from_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text.rpartition("</think>")[2])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("say a JSON object, and nothing else")
    return found
