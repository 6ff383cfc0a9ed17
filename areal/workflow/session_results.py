"""Turn a session of the gateway that is over into what is trained: its late reward, its leaves, its numbers.

Shared by the workflows whose episodes are sessions: agents that the run starts (`areal.workflow.agent`), and whoever
opens a session from outside (`areal.workflow.outside_sessions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from areal.api import Config, ConfigError, FaultError, FaultKind, load
from areal.utils import stats
from areal.workflow.assembly import reward_columns, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.api import Trajectory
    from areal.gateway.capture import Answer
    from areal.gateway.server import Gateway
    from areal.gateway.sessions import Session
    from areal.workflow.assembly import AwaitableReward

_Record = TypeVar("_Record", bound=Config)


async def late_reward(gateway: Gateway, session: Session, seconds: float) -> None:
    """Wait for the reward of a closed session. seconds: what it may take, for the message.

    Raises FaultError(REWARD_MISSING) when none has come by then.
    """
    await gateway.finish(session)
    if not session.is_scored:
        raise FaultError(FaultKind.REWARD_MISSING, f"no reward came within {seconds:g} s of the session's end")


async def run_score(reward: AwaitableReward, session: Session, row: Mapping[str, Any], said: str) -> float:
    """Return what the reward of the run gives for the final answer `said` to the question of a row."""
    last = last_answer(session)
    context, output = list(last.path()[0].added), list(last.output)
    return await score(reward, question_of(row), said, context, output, reward_columns(row))


def last_answer(session: Session) -> Answer:
    """Return the newest answer that arrived, else the newest one. There is one."""
    return max(session.answers, key=lambda answer: (answer.delivered, answer.number))


def question_of(row: Mapping[str, Any]) -> str:
    """Return the text of the last turn of the row's prompt; "" where it has none."""
    messages = row.get("messages")
    if isinstance(messages, str):
        return messages
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        content = messages[-1].get("content")
        return content if isinstance(content, str) else ""
    return ""


def trained_leaves(
    session: Session, reward: float | None, select: Callable[..., bool] | None
) -> list[Trajectory] | None:
    """Return what a session is trained as, None when `select` wants nothing of it; record its numbers as `agent/...`
    (`areal.utils.stats`). reward: of the session; None when only its answers have one.

    Raises FaultError(AGENT_FAILED) when nothing of it can be trained for another reason.
    """
    found = session.trajectories(reward, keep=select)
    for name, value in session.statistics().items():
        stats.record(f"agent/{name}", value)
    if not found and set(session.left_out) - {"not_selected", "auxiliary"}:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(session.left_out.items()))
        raise FaultError(FaultKind.AGENT_FAILED, f"nothing of the session can be trained on: {reasons}")
    return [replace(one, reward_components={**one.reward_components, **session.components}) for one in found] or None


def option_record(kind: type[_Record], option: str, fields: Mapping[str, Any] | None) -> _Record:
    """Return the record that an option of the configuration describes. Raises ConfigError."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(fields or {}))
    except ValidationError as error:
        problem: dict[str, Any] = dict(error.errors()[0])
        place = ".".join([option, *map(str, problem["loc"])])
        raise ConfigError(f"{place}: {problem['msg']}", where=f"workflow_options.{place}") from error


def option_function(option: str, name: str) -> Any:
    """Return the function that an option names, None for "". Raises RegistryError, ConfigError."""
    if not name:
        return None
    found = load(option, name, {})
    if not callable(found):
        raise ConfigError(f"{option} {name!r} is {type(found).__name__}, expected a function")
    return found
