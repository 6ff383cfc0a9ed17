"""Serve one agent's requests to one engine, within limits, and keep the rewards of its answers.

    session = gateway.open(engine, gconfig)
    ...                                              # the agent talks to session.openai_url with session.key
    await session.close()
    trajectories = session.trajectories(reward=1.0)

A session is open, then closed (its requests are refused), or expired, which is the same by a limit. Its key is dead
with it, so that a straggler of one attempt never writes into the next. With `reward_deadline` it may still be given its
reward for a while; then it is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import DataError, FaultError, FaultKind, ModelRequest, StopReason, UsageError
from areal.gateway.capture import Forest, Placement, check_response
from areal.gateway.conversation import digest
from areal.gateway.leaves import Leaf, select_leaves, side_requests
from areal.gateway.parsing import ReadAnswer, read_answer
from areal.gateway.wire.common import RefusedRequestError, Reply, ReplyChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from areal.api import GenerationConfig, InferenceEngine, ModelResponse, Trajectory
    from areal.gateway.capture import Answer, TurnDifference
    from areal.gateway.config import GatewayConfig, SessionLimits
    from areal.gateway.conversation import Conversation
    from areal.gateway.rendering import Renderer
    from areal.gateway.wire.common import AnswerRequest

SessionState = Literal["open", "closed", "expired", "finished"]

_CHARACTERS_PER_TOKEN: Final = 4
_LOOK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUrls:
    """Where clients of a session find it."""

    openai: str
    """Ends in /v1, as OpenAI's clients want it."""
    anthropic: str
    """Does not, as Anthropic's want it."""


class Session:
    """See the module. Used from one event loop."""

    def __init__(
        self,
        name: str,
        *,
        engine: InferenceEngine,
        gconfig: GenerationConfig,
        renderer: Renderer,
        config: GatewayConfig,
        limits: SessionLimits,
        urls: SessionUrls,
        may_score: bool = False,
    ) -> None:
        """may_score: whether the session's own key may set rewards; an agent that has it can then reward itself."""
        self.name, self.urls, self.may_score = name, urls, may_score
        self.key = f"areal-{secrets.token_urlsafe(32)}"
        self.limits = limits
        self.state: SessionState = "open"
        self.row: Mapping[str, Any] | None = None
        """What whoever opens it over HTTP gets with it: the row of its prompt. None: nothing."""
        self.counts: Counter[str] = Counter()
        """What happened: requests, replayed, abandoned, broken_calls, context_errors, forced_tools, engine_faults."""
        self.limit_hit = ""
        """The limit that closed it."""
        self.context_full = False
        """Whether the last request did not fit the context."""
        self.model_seconds = 0.0
        self.fault: FaultError | None = None
        """The last one of the engine."""
        self.error: UsageError | None = None
        """What no episode of the run can survive."""
        self.unknown: set[str] = set()
        """Fields of requests that mean nothing here."""
        self.reward: float | None = None
        self.components: dict[str, float] = {}
        self.left_out: Counter[str] = Counter()
        """Leaves that `trajectories` did not return, by reason."""
        self.trained_tokens = 0
        """Of the trajectories that were returned."""
        self._engine, self._gconfig, self._renderer, self._config = engine, gconfig, renderer, config
        self._forest = Forest(renderer, history=config.history)
        self._sampled: Counter[bytes] = Counter()
        self._undelivered: dict[bytes, list[Answer]] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        self._scoring_ended = asyncio.Event()
        self._deadline: float | None = None
        """When a closed session can get no reward any more."""
        self._opened = self._touched = monotonic()
        self._tokens = 0

    # ---- what clients ask

    @property
    def answers(self) -> Sequence[Answer]:
        """All complete answers, in the order they were stored."""
        return self._forest.answers

    @property
    def placed(self) -> Counter[str]:
        """Answers by how they continue ("message", "extension", "ids"), and roots by reason ("root/edited")."""
        return self._forest.placed

    @property
    def differences(self) -> Mapping[str, TurnDifference]:
        """Where conversations parted from what was answered: the first one for each reason of roots."""
        return self._forest.differences

    @property
    def max_leaf_tokens(self) -> int:
        """Most tokens of a conversation, answer included; 0 when the engine does not say."""
        return self._config.max_leaf_tokens or int(getattr(self._engine, "context_length", 0) or 0)

    @contextlib.contextmanager
    def working(self, *, generates: bool) -> Iterator[None]:
        """Hold a place for a request while it is worked on. Raises RefusedRequestError when there is none."""
        self._refuse_ended()
        if len(self._working) >= self.limits.max_parallel:
            raise RefusedRequestError("too_many", f"{len(self._working)} requests of this session are in work already")
        if generates:
            if self.counts["requests"] >= self.limits.max_requests:
                self._expire("max_requests")
            if self._tokens >= self.limits.max_answer_tokens:
                self._expire("max_answer_tokens")
            self.counts["requests"] += 1
        self._touched = monotonic()
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        self._working.add(task)
        try:
            yield
        finally:
            self._working.discard(task)
            self._touched = monotonic()

    def check_clock(self) -> None:
        """Expire the session when it was idle, or open, for too long."""
        if self.state != "open":
            return
        now = monotonic()
        if now - self._opened > self.limits.total_seconds:
            self._end("total_seconds")
        elif not self._working and now - self._touched > self.limits.idle_seconds:
            self._end("idle_seconds")

    async def answer(self, request: AnswerRequest, reply_id: str) -> Reply:
        """Return the answers to a request, each stored. reply_id: of the first one.

        Raises RefusedRequestError, among others for a prompt that does not fit and an engine that fails or is paused.
        """
        self.unknown.update(request.unknown)
        self.counts["forced_tools"] += request.forces_tool
        if request.n > self.limits.max_choices:
            raise RefusedRequestError("invalid", f"n: is {request.n}, expected at most {self.limits.max_choices}")
        conversation = await self._cleaned(request.conversation)
        gconfig = self._sampling(request)
        place = await self._placed(conversation)
        replay = digest(place.request, repr((gconfig, request.n)))
        if kept := self._undelivered.pop(replay, None):
            self.counts["replayed"] += 1
            return self._reply(request, kept, gconfig, replay)
        gconfig = self._fitting(gconfig, place)
        started = monotonic()
        responses = await self._responses(place, gconfig, request.n)
        self.model_seconds += monotonic() - started
        answers = await self._stored(place, responses, gconfig, reply_id)
        return self._reply(request, answers, gconfig, replay)

    async def count(self, request: AnswerRequest) -> int:
        """Return the tokens that the prompt of a request has: the same number that its answer will report."""
        return (await self._placed(await self._cleaned(request.conversation))).num_tokens

    def note_delivered(self, reply: Reply) -> None:
        """Note that the client got an answer as a whole."""
        for choice in reply.choices:
            choice.answer.delivered = True

    def note_lost(self, reply: Reply) -> None:
        """Note that the client was gone before it had a complete answer: the same request gets the same answer."""
        self.counts["not_delivered"] += 1
        self._undelivered[reply.replay] = [choice.answer for choice in reply.choices]

    # ---- rewards and results

    def set_reward(self, value: float, answer_id: str = "") -> None:
        """Give the session, or one of its answers, a reward; the last one counts. That of a closed session ends its
        scoring. Raises UsageError for a number that is not finite, for an answer that is not there, and when no
        reward is waited for any more.
        """
        if self.state == "finished":
            raise UsageError("the reward comes too late: the session is finished")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"the reward is {value!r:.80}, expected a finite number")
        if not answer_id:
            self.reward = float(value)
            if self._deadline is not None:
                self.end_scoring()
            return
        wanted = answer_id.replace("-", "_").rpartition("_")[2]
        found = next((answer for answer in self.answers if answer.id == wanted), None)
        if found is None:
            raise UsageError(f"the session has no answer {answer_id:.60}")
        found.reward = float(value)

    async def close(self) -> None:
        """Refuse requests from now on, let those in work end for a while, then abort them. Idempotent."""
        self._end()
        if self._deadline is None:
            self._deadline = monotonic() + self._config.reward_deadline
        current = asyncio.current_task()
        left = {task for task in self._working if task is not current}
        if left:
            _, left = await asyncio.wait(left, timeout=self._config.drain_seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=self._config.drain_seconds)

    async def wait_for_end(self) -> None:
        """Wait until it was closed, or has reached a limit."""
        await self._ended.wait()

    @property
    def is_scored(self) -> bool:
        """Whether the session or any of its answers has a reward."""
        return self.reward is not None or any(answer.reward is not None for answer in self.answers)

    @property
    def awaits_reward(self) -> bool:
        """Whether it is closed, and may still be given a reward."""
        waits = self._deadline is not None and monotonic() < self._deadline
        return waits and self.state != "finished" and not self._scoring_ended.is_set()

    def end_scoring(self) -> None:
        """Note that no further reward will come."""
        self._scoring_ended.set()

    async def wait_for_reward(self) -> None:
        """Wait for the reward of a closed session, until its deadline; it is finished then."""
        assert self._deadline is not None, "only a closed session waits"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline - monotonic()):
                await self._scoring_ended.wait()
        self.finish()

    def finish(self) -> None:
        """Take the rewards so far as they are: later ones are refused. The session is closed."""
        assert self.state != "open", "only a closed session is finished"
        self.state = "finished"

    def trajectories(self, reward: float | None, *, keep: Callable[[Leaf], bool] | None = None) -> list[Trajectory]:
        """Return what is trained of the session, with its reward, and count what is not.

        reward: of the session; None when only answers have one. A leaf is worth the session's reward and those of the
        answers that are trained in it; a leaf without either is left out. keep: the user's own choice.
        """
        selection = select_leaves(self.answers, train_auxiliary=self._config.train_auxiliary, keep=keep)
        self.left_out = selection.left_out
        self.trained_tokens = 0
        found = []
        for leaf in selection.leaves:
            own = [answer.reward for answer in leaf.path if answer.number in leaf.trained and answer.reward is not None]
            if reward is None and not own:
                self.left_out["no_reward"] += 1
                continue
            self.trained_tokens += leaf.num_trained
            truncated = leaf is selection.leaves[-1] and bool(self.limit_hit or self.context_full)
            value = math.fsum([reward or 0.0, *own])
            tokens, prompt = leaf.last.tokens(), len(leaf.path[0].added)
            text = {
                "prompt": self._renderer.decode(tokens[:prompt]),
                "completion": self._renderer.decode(tokens[prompt:]),
            }
            found.append(leaf.trajectory(reward=value, truncated=truncated, text=text))
        return found

    def statistics(self) -> dict[str, float]:
        """Return the numbers of the session, by name; those of training once `trajectories` was called."""
        placed = self.placed
        answers = len(self.answers)
        roots = sum(count for how, count in placed.items() if how.startswith("root/"))
        # A title that is asked for, before or after, is neither the first answer nor one that could continue.
        side = side_requests([answer for answer in self.answers if not answer.children])
        later = answers - len(side) - 1
        begun = roots - len(side) - 1
        generated = sum(len(answer.output) for answer in self.answers)
        found: dict[str, float] = {
            "answers": answers,
            "roots": roots,
            "leaves": sum(not answer.children for answer in self.answers),
            "tokens_generated": generated,
            "tokens_wasted": generated - self.trained_tokens,
            "model_seconds": self.model_seconds,
            "limit_hits": float(bool(self.limit_hit)),
        }
        if later > 0:
            found["exact_continuation"] = 1 - begun / later
        for how in ("message", "extension", "ids"):
            found[f"continued_by_{how}"] = placed[how]
        found |= {f"roots_{how[5:]}": count for how, count in placed.items() if how.startswith("root/")}
        found |= {f"left_out_{reason}": count for reason, count in self.left_out.items()}
        return found | {name: float(count) for name, count in self.counts.items()}

    # ---- steps of an answer

    def _refuse_ended(self) -> None:
        self.check_clock()
        if self.state != "open":
            why = f"it reached its limit {self.limit_hit}" if self.limit_hit else "its episode is over"
            raise RefusedRequestError("closed", f"this session is closed: {why}")

    def _expire(self, limit: str) -> None:
        self._end(limit)
        self._refuse_ended()

    def _end(self, limit: str = "") -> None:
        """Refuse requests from now on. limit: the one that it has reached."""
        if self.state == "open":
            self.state, self.limit_hit = "expired" if limit else "closed", limit
        self._ended.set()

    async def _cleaned(self, conversation: Conversation) -> Conversation:
        if not conversation.turns or conversation.turns[-1].role == "assistant":
            raise RefusedRequestError(
                "invalid", "messages: the last one is the assistant's; there is nothing to answer"
            )
        control = self._renderer.control
        before = control.removed
        size = sum(len(turn.text) for turn in conversation.turns)
        cleaned = await self._renderer.off_loop(size // 16, control.cleaned, conversation)
        self.counts["control_tokens_removed"] += control.removed - before
        return cleaned

    async def _placed(self, conversation: Conversation) -> Placement:
        try:
            place = await self._forest.place(conversation)
        except DataError as error:
            raise RefusedRequestError("invalid", str(error)) from error
        room = self.max_leaf_tokens
        if room and place.num_tokens >= room:
            self._refuse_context(place.num_tokens, room)
        self.context_full = False
        return place

    def _refuse_context(self, tokens: int, room: int) -> None:
        self.counts["context_errors"] += 1
        self.context_full = True
        raise RefusedRequestError("context", f"prompt is too long: {tokens} tokens > {room - 1} maximum")

    def _sampling(self, request: AnswerRequest) -> GenerationConfig:
        """Return how to sample: the session's way, with the client's stop strings and, if shorter, its budget."""
        own = self._gconfig
        budget = min(own.max_new_tokens, request.max_tokens or own.max_new_tokens)
        changes: dict[str, Any] = {
            "max_new_tokens": budget,
            "min_new_tokens": min(own.min_new_tokens, budget),
            "stop": (*own.stop, *(one for one in request.stop if one not in own.stop)),
        }
        if self._config.allow_client_sampling:
            if request.temperature is not None:
                changes |= {"greedy": True} if request.temperature == 0 else {"temperature": request.temperature}
            if request.top_p:
                changes["top_p"] = min(1.0, request.top_p)
        return replace(own, **changes)

    def _fitting(self, gconfig: GenerationConfig, place: Placement) -> GenerationConfig:
        if place.how == "root" and self._forest.num_roots >= self.limits.max_roots:
            self._expire("max_roots")
        room = self.max_leaf_tokens
        if not room or place.num_tokens + gconfig.max_new_tokens <= room:
            return gconfig
        budget = room - place.num_tokens
        return replace(gconfig, max_new_tokens=budget, min_new_tokens=min(budget, gconfig.min_new_tokens))

    async def _responses(self, place: Placement, gconfig: GenerationConfig, n: int) -> list[ModelResponse]:
        context = place.context()
        name = digest(place.context_bytes())
        tasks = []
        for _ in range(n):
            # Which of several requests comes first does not matter for equal prompts, and for nothing else it counts.
            key = f"{name.hex()}-{self._sampled[name]}"
            self._sampled[name] += 1
            request = ModelRequest(input_ids=context, gconfig=gconfig, metadata={"seed_key": key})
            tasks.append(asyncio.ensure_future(self._generated(request)))
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generated(self, request: ModelRequest) -> ModelResponse:
        """Return the engine's answer. A cancelled request is aborted in the engine at once."""
        work = asyncio.ensure_future(self._engine.agenerate(request))
        moved, last = monotonic(), dict(self._engine.stats())
        patience = self._config.pause_patience
        try:
            while not (await asyncio.wait({work}, timeout=min(_LOOK_SECONDS, patience / 2)))[0]:
                now = dict(self._engine.stats())
                if now != last:
                    moved, last = monotonic(), now
                elif monotonic() - moved >= patience:
                    raise RefusedRequestError("overloaded", f"the engine has not moved for {patience:g} s; come again")
            response = work.result()
            check_response(response, request.input_ids)
        except FaultError as fault:
            if fault.kind is FaultKind.DATA_INVALID:
                self._refuse_context(len(request.input_ids), len(request.input_ids))
            self.fault = fault
            self.counts["engine_faults"] += 1
            raise RefusedRequestError("overloaded", f"the engine failed: {fault.message}") from fault
        except UsageError as error:
            self.error = error
            raise RefusedRequestError("failed", "the run is misconfigured; its log says how") from error
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        return response

    async def _stored(
        self, place: Placement, responses: Sequence[ModelResponse], gconfig: GenerationConfig, reply_id: str
    ) -> list[Answer]:
        size = _CHARACTERS_PER_TOKEN * sum(len(response.output_tokens) for response in responses)
        read = [await self._renderer.off_loop(size, self._read, place, response, gconfig) for response in responses]
        stored = []
        for choice, (response, (found, raw, closed)) in enumerate(zip(responses, read, strict=True)):
            answer = self._forest.add(
                place,
                response,
                reply=found.turn,
                raw=raw,
                closed=closed,
                choice=choice,
                num_choices=len(responses),
                answer_id=reply_id if choice == 0 else "",
            )
            stored.append(answer)
            self.counts["broken_calls"] += found.broken_call
            self._tokens += len(response.output_tokens)
        return stored

    def _read(
        self, place: Placement, response: ModelResponse, gconfig: GenerationConfig
    ) -> tuple[ReadAnswer, str, bool]:
        ids = response.output_tokens
        stops = {self._renderer.eos_token_id, *gconfig.stop_token_ids}
        closed = response.stop_reason is StopReason.STOP and ids[-1] in stops
        raw = self._renderer.decode(ids[:-1] if closed else ids)

        def read(text: str) -> ReadAnswer:
            return read_answer(
                text,
                in_reasoning=place.in_reasoning,
                clean=self._renderer.control.clean,
                new_id=lambda: secrets.token_hex(12),
            )

        found = read(raw)
        if not found.turn.calls and not closed and response.stop_reason is StopReason.STOP:
            first = min((raw.find(stop) for stop in gconfig.stop if stop in raw), default=len(raw))
            found = read(raw[:first])
        return found, raw, closed

    def _reply(
        self, request: AnswerRequest, answers: Sequence[Answer], gconfig: GenerationConfig, replay: bytes
    ) -> Reply:
        choices = []
        for answer in answers:
            ended = answer.stop_reason is StopReason.STOP and not answer.closed and not answer.reply.calls
            stop = next((one for one in gconfig.stop if ended and one in answer.raw), "")
            pairs = zip(answer.output, answer.logprobs, strict=True) if request.with_logprobs else ()
            choices.append(
                ReplyChoice(
                    answer=answer,
                    stop_string=stop,
                    tokens=tuple((self._renderer.decode([token]), logprob) for token, logprob in pairs),
                )
            )
        first = answers[0]
        return Reply(
            id=first.id,
            model=request.model or self._config.model_name,
            choices=tuple(choices),
            prompt_tokens=first.length - len(first.output),
            cached_tokens=first.parent.length if first.parent is not None else 0,
            completion_tokens=sum(len(answer.output) for answer in answers),
            replay=replay,
        )
