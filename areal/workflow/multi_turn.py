"""Retries with feedback: answer, read that it is wrong, answer again; later successes are worth less.

    workflow = MultiTurnWorkflow(reward=reward, gconfig=gconfig, tokenizer=tokenizer, max_turns=3, turn_discount=0.9)

The episode is one token list: prompt, answer 0, feedback, answer 1, ... Feedback is masked; every answer is learned
with the reward of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ConfigError, FaultError, FaultKind, ModelRequest, RolloutWorkflow, StopReason
from areal.utils import stats
from areal.workflow.assembly import (
    PromptReader,
    TrajectoryBuilder,
    completion_text,
    decode,
    reward_columns,
    score,
)
from areal.workflow.feedback import after_answer, feedback_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import GenerationConfig, InferenceEngine, ModelResponse, Trajectory
    from areal.workflow.assembly import AwaitableReward

DEFAULT_FEEDBACK = "That answer is not correct. Check each step, then give a new final answer."


class MultiTurnWorkflow(RolloutWorkflow):
    """Retries with feedback until a turn succeeds, turns run out, an answer is cut off, or the context is full."""

    def __init__(
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        max_turns: int = 3,
        turn_discount: float = 1.0,
        success_reward: float = 1.0,
        feedback: str = DEFAULT_FEEDBACK,
        enable_thinking: bool = False,
        strict_template: bool = True,
    ) -> None:
        """max_turns: answers per episode, at least 1. turn_discount: in [0, 1]; the reward is multiplied by it per
        further turn.

        success_reward: a turn with at least this reward ends the episode. feedback: the user turn after a failed
        answer; appended as plain text for tokenizers without chat template, so begin and end it as the prompt format
        needs (e.g. a line break). strict_template: refuse chat templates that change earlier turns (see
        `areal.workflow.feedback`).
        """
        if max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns}, expected at least 1")
        if not 0 <= turn_discount <= 1:
            raise ConfigError(f"turn_discount is {turn_discount}, expected 0 .. 1")
        self.reward = reward
        self.gconfig = gconfig
        self.tokenizer = tokenizer
        self.max_turns = max_turns
        self.turn_discount = turn_discount
        self.success_reward = success_reward
        self._prompts = PromptReader(tokenizer, enable_thinking=enable_thinking)
        self._feedback_ids = (
            feedback_ids(tokenizer, feedback, enable_thinking=enable_thinking, strict_template=strict_template)
            if max_turns > 1
            else []
        )

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> Trajectory:
        """One trajectory of up to `max_turns` answers; `reward_components` has the undiscounted `outcome`;
        `num_turns` is recorded (`areal.utils.stats`).

        The reward sees the original prompt and the answer of its turn alone. An episode that ends because the context
        is full or an answer was cut off has stop reason LENGTH and the reward of its last answer.
        """
        columns = reward_columns(data)
        prompt_ids, prompt = self._prompts.read(data)
        builder = TrajectoryBuilder()
        builder.add_prompt(prompt_ids)
        completions: list[str] = []
        outcome = 0.0
        stop_reason = StopReason.STOP
        observation: list[int] = []
        for turn in range(self.max_turns):
            response = await self._generate(engine, [*builder.tokens, *observation], first=turn == 0)
            if response is None:
                stop_reason = StopReason.LENGTH
                break
            builder.add_observation(observation)
            builder.add_response(response, turn=turn)
            completions.append(completion_text(response, self.gconfig, self.tokenizer))
            stop_reason = response.stop_reason
            outcome = await score(self.reward, prompt, completions[-1], prompt_ids, response.output_tokens, columns)
            if outcome >= self.success_reward or stop_reason is StopReason.LENGTH:
                break
            observation = after_answer(self._feedback_ids, response.output_tokens)
        stats.record("num_turns", len(completions))
        return builder.build(
            reward=outcome * self.turn_discount ** (len(completions) - 1),
            stop_reason=stop_reason,
            text={"prompt": prompt, "completion": decode(builder.tokens[len(prompt_ids) :], self.tokenizer)},
            reward_components={"outcome": outcome},
        )

    async def _generate(self, engine: InferenceEngine, input_ids: list[int], *, first: bool) -> ModelResponse | None:
        """Return the next answer; None when a later turn does not fit the context any more."""
        try:
            return await engine.agenerate(ModelRequest(input_ids=input_ids, gconfig=self.gconfig))
        except FaultError as fault:
            # A later turn has a prompt and token ids that were accepted before: what no longer fits is the context.
            if first or fault.kind is not FaultKind.DATA_INVALID:
                raise
            return None
