"""Train an agent as it is: a command or a Python function that talks to its model over HTTP.

    workflow: agent
    workflow_options:
      agent: my_agents:solve                         # async def solve(row, session) -> None, text, number or rewards
      # or: command: [python, agent.py, "{prompt}"]

Each episode opens a session of the gateway (`areal.gateway`), starts the agent with the session's address and key in
its environment, waits for it, scores what it did, and returns the tokens it caused, as they were sampled.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from areal.api import ArealError, ConfigError, FaultError, FaultKind, RolloutWorkflow, UsageError
from areal.gateway.config import GatewayConfig
from areal.gateway.rendering import Renderer
from areal.gateway.server import Gateway
from areal.utils import stats
from areal.workflow.agent_call import AgentSession
from areal.workflow.agent_process import AgentProcessConfig, agent_folders, run_command
from areal.workflow.session_results import (
    last_answer,
    late_reward,
    option_function,
    option_record,
    question_of,
    run_score,
    trained_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import GenerationConfig, InferenceEngine, Trajectory
    from areal.gateway.capture import Answer
    from areal.gateway.sessions import Session
    from areal.workflow.agent_process import AgentFolders
    from areal.workflow.assembly import AwaitableReward

_PLACEHOLDER: Final = re.compile(r"\{(anthropic_base_url|openai_base_url|prompt|python|row)\}")
_ANSWER_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """What an agent did, for functions that score it."""

    row: Mapping[str, Any]
    answer: str
    """What it returned, else what the model said last."""
    folder: Path
    """Its working folder, as it left it; removed afterwards."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation that the last answer ended: role, text, and calls as name and arguments."""
    timed_out: bool


class AgentWorkflow(RolloutWorkflow):
    """See the module. An episode gives one trajectory, or several where the agent's conversation branched."""

    def __init__(
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        agent: str = "",
        command: Sequence[str] = (),
        score: str = "",
        select: str = "",
        process: Mapping[str, Any] | None = None,
        gateway: Mapping[str, Any] | None = None,
    ) -> None:
        """agent: "module:function", called with the row and an `AgentSession`. An async function runs on the event loop
        and must not block it; any other runs in a process of its own. command: instead of it, a program and its
        arguments, without a shell; {prompt}, {row} (a JSON file), {python}, {openai_base_url} and
        {anthropic_base_url} are replaced. score: "module:function" that is called with an `AgentRun` and returns the
        reward; else an agent function's own number counts, else the run's reward is given the question and the final
        answer. select: "module:function" that is called with each `areal.gateway.leaves.Leaf` and says whether it is
        trained. process: fields of `areal.workflow.agent_process.AgentProcessConfig`. gateway: fields of
        `areal.gateway.config.GatewayConfig`.
        """
        if bool(agent) == bool(command):
            raise ConfigError(
                f"agent is {agent!r} and command {list(command)}: exactly one of them says what runs",
                fix="set workflow_options.agent=module:function, or workflow_options.command=[program, argument]",
            )
        self._reward, self._gconfig = reward, gconfig
        self._agent_name, self._command = agent, tuple(str(part) for part in command)
        self._function: Any = option_function("agent", agent)
        self._score = option_function("score", score)
        self._select: Callable[..., bool] | None = option_function("select", select)
        self._process = option_record(AgentProcessConfig, "process", process)
        self._prepare = option_function("prepare", self._process.prepare)
        self._config = option_record(GatewayConfig, "gateway", gateway)
        self._check_options()
        self._renderer = Renderer(
            tokenizer, enable_thinking=self._config.enable_thinking, template_date=self._config.template_date
        )
        self._gateways: WeakKeyDictionary[asyncio.AbstractEventLoop, Gateway] = WeakKeyDictionary()

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> list[Trajectory] | None:
        """Run the agent once and return its leaves with their rewards, None when `select` wants none of them.

        Numbers of the session are recorded as `agent/...` (`areal.utils.stats`). Raises FaultError: AGENT_FAILED,
        AGENT_TIMEOUT, those of the reward, and the engine's where the agent failed because of it.
        """
        loop = asyncio.get_running_loop()
        gateway = self._gateways.setdefault(loop, Gateway(self._renderer, self._config))
        started = monotonic()
        async with agent_folders(self._process.folder) as folders, gateway.running():
            session = gateway.open(engine, self._gconfig, may_score=self._process.allow_agent_reward)
            try:
                if self._prepare is not None:
                    await _called(self._prepare, data, folders.work)
                returned, timed_out = await self._ran(session, data, folders)
            finally:
                await gateway.close(session)
            if session.error is not None:
                raise session.error
            if not session.answers:
                raise FaultError(FaultKind.AGENT_FAILED, "the agent never called the model: is its base URL set?")
            reward = await self._rewarded(gateway, session, data, folders, returned, timed_out)
        stats.record("agent/seconds", monotonic() - started)
        return trained_leaves(session, reward, self._select)

    # ---- steps of an episode

    async def _ran(self, session: Session, data: Mapping[str, Any], folders: AgentFolders) -> tuple[Any, bool]:
        """Return what the agent returned, and whether it had to be ended. Raises FaultError."""
        given = AgentSession(
            openai_base_url=session.urls.openai, anthropic_base_url=session.urls.anthropic, key=session.key
        )
        if self._function is not None and inspect.iscoroutinefunction(self._function):
            return await self._awaited(session, data, given)
        row, result = folders.base / "row.json", folders.base / "result.json"
        await asyncio.to_thread(row.write_text, json.dumps(dict(data), default=str), encoding="utf-8")
        values = {
            "anthropic_base_url": given.anthropic_base_url,
            "openai_base_url": given.openai_base_url,
            "prompt": question_of(data),
            "python": sys.executable,
            "row": str(row),
        }
        environment = given.environment() | {"AREAL_ROW": str(row)}
        command = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in self._command]
        if self._function is not None:
            command = [sys.executable, "-m", "areal.workflow.agent_call", self._agent_name, str(row), str(result)]
            environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        environment |= {name: os.environ[name] for name in self._process.pass_environment if name in os.environ}
        environment |= self._process.environment
        ended = await run_command(command, folders, environment=environment, config=self._process)
        if ended.too_large:
            limit = self._process.max_folder_bytes
            raise FaultError(FaultKind.AGENT_FAILED, f"the agent wrote more than {limit} bytes")
        if ended.timed_out:
            self._refuse_timeout()
        elif ended.status not in self._process.accept_exit_codes:
            self._excuse(session, f"the agent ended with exit code {ended.status}; it said: {ended.tail[-1000:]}")
        if self._function is not None and result.is_file() and not ended.timed_out:
            return json.loads(await asyncio.to_thread(_read_start, result)), False
        return None, ended.timed_out

    async def _awaited(self, session: Session, data: Mapping[str, Any], given: AgentSession) -> tuple[Any, bool]:
        try:
            async with asyncio.timeout(self._process.seconds) as limit:
                return await self._function(data, given), False
        except ArealError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an agent raises is its failure
            if isinstance(error, TimeoutError) and limit.expired():
                self._refuse_timeout()
                return None, True
            self._excuse(session, f"the agent raised {type(error).__name__}: {error}")
            return None, False

    def _refuse_timeout(self) -> None:
        if not self._process.grade_timeouts:
            raise FaultError(FaultKind.AGENT_TIMEOUT, f"the agent did not end within {self._process.seconds:g} seconds")

    def _excuse(self, session: Session, failure: str) -> None:
        """Raise the fault of an agent that failed, unless it had to: at a limit of the session, it is scored."""
        if session.error is not None:
            raise session.error
        if session.fault is not None:
            raise session.fault
        if not (session.limit_hit or session.context_full):
            raise FaultError(FaultKind.AGENT_FAILED, failure)

    async def _rewarded(
        self,
        gateway: Gateway,
        session: Session,
        data: Mapping[str, Any],
        folders: AgentFolders,
        returned: Any,
        timed_out: bool,
    ) -> float | None:
        """Return the reward of the session; None when only its answers have one. Raises FaultError."""
        if isinstance(returned, dict):
            for answer, value in returned.items():
                _checked(session.set_reward, value, str(answer))
            returned = None
        last = last_answer(session)
        said = returned if isinstance(returned, str) else await asyncio.to_thread(self._final_answer, folders, last)
        if self._score is not None:
            run = AgentRun(row=data, answer=said, folder=folders.work, messages=last.transcript(), timed_out=timed_out)
            value = await _called(self._score, run)
            _checked(session.set_reward, value)
        elif isinstance(returned, (int, float)):
            _checked(session.set_reward, returned)
        elif returned is not None and not isinstance(returned, str):
            kind = type(returned).__name__
            raise FaultError(
                FaultKind.REWARD_INVALID, f"the agent returned {kind}: not a text, number or rewards by id"
            )
        elif not session.is_scored and self._config.reward_deadline:
            await late_reward(gateway, session, self._config.reward_deadline)
        elif not session.is_scored:
            return await run_score(self._reward, session, data, said)
        return session.reward

    def _final_answer(self, folders: AgentFolders, last: Answer) -> str:
        if self._process.answer_file and (place := folders.work / self._process.answer_file).is_file():
            return _read_start(place)
        return last.reply.text

    def _check_options(self) -> None:
        if self._config.reward_deadline and (self._score is not None or not self._process.allow_agent_reward):
            raise ConfigError(
                "gateway.reward_deadline waits for rewards over HTTP, which "
                + ("score gives instead" if self._score is not None else "nobody may give"),
                where="workflow_options.gateway.reward_deadline",
                fix="remove it, or leave score out and set process.allow_agent_reward=true",
            )
        folder, answer = self._process.folder, Path(self._process.answer_file)
        if folder and not Path(folder).is_dir():
            raise ConfigError(
                f"process.folder is {folder!r}, expected an existing folder", where="workflow_options.process.folder"
            )
        program = self._command[0] if self._command else "{python}"
        if not _PLACEHOLDER.search(program) and "/" not in program and shutil.which(program) is None:
            raise ConfigError(
                f"command starts {program!r}, which is not installed here", fix="give the path of the program"
            )
        if answer.is_absolute() or ".." in answer.parts:
            raise ConfigError(f"process.answer_file is {str(answer)!r}, expected a path inside of the working folder")


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user: async on the loop, any other in a thread."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        return await asyncio.to_thread(function, *arguments)
    except ArealError:
        raise
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise FaultError(FaultKind.REWARD_RAISED, f"{name} raised {type(error).__name__}: {error}") from error


def _checked(set_reward: Callable[..., None], *arguments: Any) -> None:
    try:
        set_reward(*arguments)
    except UsageError as error:
        raise FaultError(FaultKind.REWARD_INVALID, str(error)) from error


def _read_start(place: Path) -> str:
    with place.open("rb") as file:
        return file.read(_ANSWER_BYTES).decode(errors="replace")
