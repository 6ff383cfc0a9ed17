"""Whose turn a device is that inference servers and the learner share: one owner, one order, no overlap.

    sampling -> draining -> servers asleep -> learner awake -> learning -> learner asleep -> servers waking -> sampling

Rank 0 owns it. A state is entered once what leads to it is done and acknowledged, so that memory that is still taken is
never given away. Any other order is an error before servers or learner notice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError
from areal.infra.metrics import names
from areal.trainer.policy_models import PolicyModels

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.engine.server.engine import ServerEngine
    from areal.trainer.config import PPOConfig
    from areal.trainer.device_starts import LearnersDevice
    from areal.trainer.rank_group import Distributed

_MIB: Final = 2**20


class DeviceTurn(StrEnum):
    """What the device is used for."""

    SAMPLING = "sampling"
    """Servers have it: weights and cache."""
    DRAINING = "draining"
    """Servers end or cut their requests, and free it."""
    SERVERS_ASLEEP = "servers asleep"
    """Nobody has it: every server has said so, or was evicted."""
    LEARNER_AWAKE = "learner awake"
    """The learner has its parameters and moments there."""
    LEARNING = "learning"
    LEARNER_ASLEEP = "learner asleep"
    """Nobody has it: what the next version is made of is on the host."""
    SERVERS_WAKING = "servers waking"
    """Servers take memory for weights, load a whole version, then take memory for their cache, and are probed."""


_NEXT: Final = dict(zip(DeviceTurn, [*list(DeviceTurn)[1:], DeviceTurn.SAMPLING], strict=True))


class DeviceTurns:
    """The state of one device group. It begins with the learner awake: servers are started later."""

    def __init__(self) -> None:
        self.turn = DeviceTurn.LEARNING
        self.log: list[DeviceTurn] = [self.turn]
        """Every state so far of this round and the one before."""

    def enter(self, turn: DeviceTurn, *, after: Callable[[], None] = lambda: None) -> None:
        """Go on to the next state. after: what has to be done and acknowledged before; if it raises, the state stays.

        Raises EngineError for any other state than the next one, with nothing done.
        """
        expected = _NEXT[self.turn]
        if turn is not expected:
            raise EngineError(
                f"the device of servers and learner cannot go from {self.turn.value!r} to {turn.value!r}: "
                f"{expected.value!r} comes next"
            )
        after()
        self.turn = turn
        self.log = [*self.log[1 - 2 * len(DeviceTurn) :], turn]


def shared_device(
    config: PPOConfig, models: Distributed[PolicyModels], learners: LearnersDevice
) -> SharedDevice | None:
    """Return what servers and learner have in turn, and `learners` has taken; None where the learner keeps its
    device."""
    lends = config.servers.sleep_learner and config.rollout.engine != "embedded"
    return SharedDevice(models, learners) if lends else None


class SharedDevice:
    """A device that a run's servers and its learner have in turn (servers.sleep_learner)."""

    def __init__(self, models: Distributed[PolicyModels], learners: LearnersDevice) -> None:
        self._models, self._learners = models, learners
        self._published: dict[str, Any] = {}
        self._stays = 0
        self.turns = DeviceTurns()

    def publishing(self, weights: dict[str, Any]) -> None:
        """Note what is handed to the engine next: it is let go of once the engine has it, for it is on the device."""
        self._published = weights

    def to_servers(self) -> None:
        """Free the device for servers, which then take it. The engine calls this once it has a version on the host."""
        self.turns.enter(DeviceTurn.LEARNER_ASLEEP, after=self._sleep)
        self.turns.enter(DeviceTurn.SERVERS_WAKING)

    def sampling(self) -> None:
        """Note that servers have it, or take it as they come up."""
        self.turns.enter(DeviceTurn.SAMPLING)

    def to_learner(self, engine: ServerEngine) -> None:
        """Free the device for the learner, which then takes it. Requests in flight wait for the next version."""
        self.turns.enter(DeviceTurn.DRAINING)
        self.turns.enter(DeviceTurn.SERVERS_ASLEEP, after=engine.sleep)
        self.turns.enter(DeviceTurn.LEARNER_AWAKE, after=self._wake)
        self.turns.enter(DeviceTurn.LEARNING)

    def _sleep(self) -> None:
        self._published.clear()
        self._models.run(PolicyModels.sleep)
        self._stays = self._models.local.asleep_bytes
        self._learners.give()

    def _wake(self) -> None:
        self._learners.take()
        self._models.run(PolicyModels.wake)

    def metrics(self) -> dict[str, float]:
        """Return what stayed on the device while the learner slept, and what was in host memory instead."""
        return {
            names.TRAINER_ASLEEP: self._stays / _MIB,
            names.TRAINER_IN_HOST: self._models.local.moved_bytes / _MIB,
        }
