"""Every error this framework raises on purpose, as one tree.

    ArealError                      exit code; `code` in JSON is the name without Error, in lower case
    +-- UsageError                  2   wrong arguments
    |   +-- ConfigError             2   a configuration that cannot be run
    |   +-- RegistryError           2   unknown name, or a target that cannot be loaded
    |   +-- ModelError              2   an architecture, checkpoint or feature we do not implement
    +-- DataError                   20  rows that contradict the schema
    +-- CheckpointError             21  damaged, missing or unwritable checkpoint
    +-- FaultError                  1   one episode failed (typed; counted, excluded, never a score)
    +-- RolloutError                22  rollouts cannot make progress
    +-- NumericsError               23  too many non-finite steps
    +-- FinishedError               24  the run was finished before: nothing trained
    +-- HubError                    25  the Hugging Face hub lacks or refuses something, or is out of reach
    +-- EngineError                 1   an engine was misused or broke
    +-- BusyError                   75  another process owns the resource

Only `areal.cli` turns an error into an exit. A code has one meaning over all programs of the repository: 3 to 13 belong
to the harness, of which `areal doctor` shares 10, a check found something. A message says what happened, where, what
was expected and what to do.

Adding an error: subclass the nearest category, also inherit the standard error it replaces, add a line to the tree
above.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ArealError(Exception):
    """Root of all errors raised on purpose by this package."""

    exit_code: int = 1
    code: str = "failed"
    """Names the kind of error in the JSON object of a command."""

    def __init__(
        self, *arguments: object, where: str = "", fix: str = "", problems: Sequence[Mapping[str, str]] = ()
    ) -> None:
        """where: file, file:line or key the message is about; fix: what to do, as an instruction. "" when unknown.
        problems: each by itself (key, where, message, fix), for an error that lists them.
        """
        super().__init__(*arguments)
        self.problems = tuple(problems)
        self.where = where
        self.fix = fix


class UsageError(ArealError, ValueError):
    """The caller asked for something that makes no sense; the message names the fix."""

    exit_code = 2
    code = "usage"


class ConfigError(UsageError):
    """A configuration has an unknown key, a wrong type, or fields that contradict each other."""

    code = "config"


class RegistryError(UsageError, LookupError):
    """A registry has no such name, or the name's target does not exist in its module."""

    code = "registry"


class ModelError(UsageError):
    """A model, checkpoint or model feature is not supported; nothing was loaded."""

    code = "model"


class DataError(ArealError, ValueError):
    """Rows of a dataset contradict the schema; the message carries row numbers."""

    exit_code = 20
    code = "data"


class CheckpointError(ArealError, OSError):
    """A checkpoint is damaged, incompatible, missing, or could not be written."""

    exit_code = 21
    code = "checkpoint"


class RolloutError(ArealError, RuntimeError):
    """Rollouts cannot make progress: everything fails, or the data ran out; the message has the tally of reasons."""

    exit_code = 22
    code = "rollout"


class NumericsError(ArealError, ArithmeticError):
    """More optimizer steps were skipped for non-finite gradients than the budget allows."""

    exit_code = 23
    code = "numerics"


class FinishedError(ArealError, RuntimeError):
    """The run has done all its steps and written its model: there was nothing left to train."""

    exit_code = 24
    code = "finished"


class EngineError(ArealError, RuntimeError):
    """An engine was used against its contract, or its backend failed."""

    code = "engine"


class HubError(ArealError, OSError):
    """The Hugging Face hub has no such repository, refuses access, or cannot be reached."""

    exit_code = 25
    code = "hub"


class BusyError(ArealError, RuntimeError):
    """Another live process owns the run directory, port or lock; the message names its pid and host."""

    exit_code = 75
    code = "busy"


class FaultKind(StrEnum):
    """Why one episode yielded no training sample. The kind decides whether a retry can help."""

    AGENT_FAILED = "agent_failed"
    """The agent crashed, or never called the model. Never retried: what it depends on may be what the policy did."""
    AGENT_TIMEOUT = "agent_timeout"
    """The agent did not end in time and was ended. Never retried, for the same reason."""
    DATA_INVALID = "data_invalid"
    """The row cannot be used (empty prompt, prompt longer than the context). Never retried."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The environment of the episode raised, broke its contract, or lost its process. Retried with a new one."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """A reset or step did not end in time. Retried with a new environment."""
    GENERATION_FAILED = "generation_failed"
    """The inference engine failed or broke its contract (missing or non-finite log-probabilities). Retried."""
    REWARD_DIED = "reward_died"
    """The reward's process ended during the call (exit, signal, out of memory). Retried."""
    REWARD_INVALID = "reward_invalid"
    """The reward returned something that is not a finite number. Never retried."""
    REWARD_MISSING = "reward_missing"
    """Nobody gave the session a reward before the deadline. Never retried: that would run the whole agent again, and
    whether a reward comes may depend on what the policy did."""
    REWARD_RAISED = "reward_raised"
    """The reward function raised. Retried, since external judges fail transiently."""
    REWARD_TIMEOUT = "reward_timeout"
    """The reward did not finish in time and its process was killed. Retried."""
    WORKFLOW_RAISED = "workflow_raised"
    """The workflow itself raised an untyped exception. Never retried: it is a bug."""

    @property
    def retryable(self) -> bool:
        """Whether running the same episode again may succeed."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        FaultKind.ENVIRONMENT_FAILED,
        FaultKind.ENVIRONMENT_TIMEOUT,
        FaultKind.GENERATION_FAILED,
        FaultKind.REWARD_DIED,
        FaultKind.REWARD_RAISED,
        FaultKind.REWARD_TIMEOUT,
    }
)


class FaultError(ArealError, RuntimeError):
    """One episode failed for a reason of `kind`. The executor counts it; it never becomes a reward of 0.

    Example: `raise FaultError(FaultKind.DATA_INVALID, "prompt of 4100 tokens exceeds the context of 4096")`.
    """

    code = "fault"

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(f"{kind.value}: {message}")
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[FaultError], tuple[FaultKind, str]]:
        """Survive a trip through a worker process (the default would pass one argument to a two-argument init)."""
        return type(self), (self.kind, self.message)
