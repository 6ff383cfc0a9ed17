"""RLVR on prompts with images: one prompt, one answer, one score from a verifiable reward.

    trajectory = await workflow.arun_episode(
        engine, {"messages": "<image>how many?", "images": ["iVBORw0KGgo..."], "answer": "3"}
    )

Several images per row are read, each where its mark is. The answer is learned with the log-probabilities it was sampled
with; the record refers to the images, whose pixels the trainer computes with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ModelRequest, RolloutWorkflow
from areal.dataset.pixels import ImageLimits
from areal.workflow.assembly import TrajectoryBuilder, completion_text, reward_columns, score
from areal.workflow.pixels import PixelPrompts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import GenerationConfig, InferenceEngine, Trajectory
    from areal.workflow.assembly import AwaitableReward


class VisionRlvrWorkflow(RolloutWorkflow):
    """Prompt with images, answer, score. One instance serves all episodes at once."""

    def __init__(
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        processor: str | Mapping[str, Any],
        max_pixels: int | None = None,
        max_file_bytes: int = 32 * 2**20,
        max_file_pixels: int = 2**25,
        first_frame: bool = False,
        reward_images: bool = False,
        enable_thinking: bool = False,
    ) -> None:
        """reward: awaited with prompt, completion, their token ids and every column of the row but `messages`, and but
        `images` unless reward_images.

        processor: the checkpoint of the model, or the content of its config.json. max_pixels: of an image as the model
        gets it; None for what its image processor allows. max_file_bytes, max_file_pixels: beyond them files are not
        decoded. first_frame: of an animation take the first frame. enable_thinking: handed to the chat template.
        """
        self.reward = reward
        self.gconfig = gconfig
        self.tokenizer = tokenizer
        self._reward_images = reward_images
        self._prompts = PixelPrompts(
            tokenizer,
            processor=processor,
            limits=ImageLimits(max_file_bytes=max_file_bytes, max_file_pixels=max_file_pixels, first_frame=first_frame),
            enable_thinking=enable_thinking,
            max_pixels=max_pixels,
        )

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> Trajectory:
        """Return one trajectory of one answer."""
        columns = reward_columns(data, with_images=self._reward_images)
        prompt_ids, images, prompt = await self._prompts.read(data)
        builder = TrajectoryBuilder()
        builder.add_prompt(prompt_ids, images)
        request = ModelRequest(input_ids=list(prompt_ids), gconfig=self.gconfig, images=images)
        response = await engine.agenerate(request)
        builder.add_response(response, turn=0)
        completion = completion_text(response, self.gconfig, self.tokenizer)
        value = await score(self.reward, prompt, completion, prompt_ids, response.output_tokens, columns)
        return builder.build(
            reward=value, stop_reason=response.stop_reason, text={"prompt": prompt, "completion": completion}
        )
