"""RLVR: one prompt, one answer, one score from a verifiable reward.

workflow = RLVRWorkflow(reward=reward, gconfig=GenerationConfig(max_new_tokens=512), tokenizer=tokenizer)
trajectory = await workflow.arun_episode(engine, {"messages": [{"role": "user", "content": "8*9=?"}], "answer": "72"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ModelRequest, RolloutWorkflow
from areal.workflow.assembly import (
    PromptReader,
    TrajectoryBuilder,
    completion_text,
    reward_columns,
    score,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import GenerationConfig, InferenceEngine, Trajectory
    from areal.workflow.assembly import AwaitableReward


class RLVRWorkflow(RolloutWorkflow):
    """Prompt, answer, score."""

    def __init__(
        self, reward: AwaitableReward, gconfig: GenerationConfig, tokenizer: Any, *, enable_thinking: bool = False
    ) -> None:
        """reward: awaited with prompt, completion, their token ids and every column of the row but `messages`.

        enable_thinking: handed to the chat template; ignored for string prompts and by templates without that switch.
        """
        self.reward = reward
        self.gconfig = gconfig
        self.tokenizer = tokenizer
        self._prompts = PromptReader(tokenizer, enable_thinking=enable_thinking)

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> Trajectory:
        """One trajectory. The completion text has no trailing stop token; `completion_ids` has all tokens."""
        columns = reward_columns(data)
        prompt_ids, prompt = self._prompts.read(data)
        builder = TrajectoryBuilder()
        builder.add_prompt(prompt_ids)
        response = await engine.agenerate(ModelRequest(input_ids=list(prompt_ids), gconfig=self.gconfig))
        builder.add_response(response, turn=0)
        completion = completion_text(response, self.gconfig, self.tokenizer)
        value = await score(self.reward, prompt, completion, prompt_ids, response.output_tokens, columns)
        return builder.build(
            reward=value, stop_reason=response.stop_reason, text={"prompt": prompt, "completion": completion}
        )
