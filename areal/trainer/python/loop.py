"""A training loop of your own: the parts of an RL run on this machine, without its rollouts, files and steps.

    with areal.PolicyLoop(model="models/Qwen3-0.6B", gconfig={"max_new_tokens": 64}) as policy:
        for step in range(100):
            samples = policy.sample(prompts, group_size=8)
            for sample in samples:
                sample.reward = score(sample.prompt, sample.completion)
            metrics = policy.update(samples)          # by the objective, GRPO unless another is chosen
        policy.save("my-model")

Everything is in one process and in turn: sampling waits for the update, so every sample is of the present weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from areal.api import ConfigError, ModelRequest, UsageError
from areal.dataset.encoding import as_messages, encode_prompt
from areal.infra.rollout.episode import derive_seed
from areal.infra.rollout.loop_thread import LoopThread
from areal.trainer.assembly import tokenizer_of
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.computing import start_computing
from areal.trainer.device_sharing import shared_device
from areal.trainer.device_starts import LearnersDevice
from areal.trainer.hub_sources import pin_sources
from areal.trainer.inference import build_inference_engine, lend_devices, publish_weights
from areal.trainer.learner import PolicyLearner, TrainedPolicy
from areal.trainer.policy_models import build_models
from areal.trainer.python.arguments import build
from areal.trainer.rank_group import RankGroup
from areal.trainer.server_command import SERVERS_FOLDER
from areal.utils.seeding import seed_everything
from areal.workflow.assembly import TrajectoryBuilder, completion_text, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.api import ModelResponse, Trajectory


@dataclass(slots=True, kw_only=True)
class LoopSample:
    """An answer to a prompt, with what an update needs of it."""

    prompt: str
    completion: str
    group: int
    """Samples of one prompt have the same number; their rewards are compared."""
    prompt_number: int
    """Index in the prompts that were given."""
    response: ModelResponse = field(repr=False)
    """Token ids, log-probabilities and versions."""
    reward: float | None = None
    """To be set before `update`."""

    def trajectory(self) -> Trajectory:
        """Return the record that is learned from. Raises UsageError without a reward."""
        if self.reward is None:
            fix = "set sample.reward of every sample before the update"
            raise UsageError(f"a sample of prompt {self.prompt_number} has no reward", where="update", fix=fix)
        builder = TrajectoryBuilder()
        builder.add_prompt(self.response.input_tokens)
        builder.add_response(self.response, turn=0)
        made = builder.build(
            reward=float(self.reward),
            stop_reason=self.response.stop_reason,
            text={"prompt": self.prompt, "completion": self.completion},
        )
        return replace(made, group_id=self.group)


class PolicyLoop:
    """A model that samples and learns. It owns threads and memory: use `with`."""

    def __init__(self, *, model: Any, total_steps: int = 1000, **fields: Any) -> None:
        """model, fields: as of `areal.GRPO`; what belongs to datasets, rewards and rollouts has no effect. total_steps:
        updates that the schedule of the learning rate is made for.
        """
        values = {"trial_name": "loop", "rollout": {}, **fields, "model": model}
        if isinstance(values["rollout"], dict):
            # Sampling waits for updates here, whatever a run would do.
            values["rollout"] = {"max_head_offpolicyness": 0, **values["rollout"]}
        if isinstance(model, dict) and "tokenizer_path" in fields:
            values["model"] = {"init": model, "tokenizer_path": values.pop("tokenizer_path")}
        config = build("rl", values, source="PolicyLoop(...)").config
        assert isinstance(config, PPOConfig), "of kind rl"
        _check(config)
        config = pin_sources(config, {}).config
        self.config = config
        """A configuration of kind `rl`, as it is used."""
        self._groups = self._calls = 0
        self._learning = False
        """Whether the devices of servers are lent to the learner."""
        self._stack = contextlib.ExitStack()
        try:
            self._open(total_steps)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, total_steps: int) -> None:
        """Build the parts; what is to be closed goes on the stack."""
        config = self.config
        seed_everything(config.seed)
        start_computing(config)
        self.tokenizer = tokenizer_of(config.model)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-loop-")))
        learners = LearnersDevice(config, folder / SERVERS_FOLDER)
        self._stack.callback(learners.close)
        learners.begin()
        group = RankGroup()
        models = group.create(build_models, config, self.tokenizer, total_steps)
        self.models = models.local
        """Actor, and critic and reference if there are any."""
        self.learner = PolicyLearner(models)
        """Computes log-probabilities and advantages, `prepare(trajectories)`, and learns, `update(batch)`."""
        self.actor = self.learner.actor
        """The training engine: `actor.train_batch(batch, loss_function)` takes a loss of one's own."""
        policy = TrainedPolicy(config, models, self.tokenizer)
        self._device = shared_device(config, models, learners)
        self.engine = build_inference_engine(
            config,
            actor=policy,
            tokenizer=self.tokenizer,
            directory=folder,
            version=0,
            device=self._device,
            learns=True,
        )
        """The inference engine, whose `agenerate` takes token ids."""
        self._stack.callback(self.engine.close)
        # A loop of its own: a notebook runs one in the calling thread.
        self._loop = LoopThread("areal-loop", on_end=lambda: None)
        self._stack.callback(self._loop.close)
        self._loop.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop threads and free memory."""
        self._stack.close()

    def sample(self, prompts: Sequence[Any], *, group_size: int = 1) -> list[LoopSample]:
        """Return `group_size` answers to each prompt, a text or a chat, sampled as `gconfig` says; in their order.

        Raises UsageError when `group_size` is not positive or servers sleep, DataError for a prompt that is none,
        FaultError for one that leaves no room for an answer.
        """
        if self._learning:
            raise UsageError(
                "the servers sleep until the next version is published", where="sample", fix="call `publish` first"
            )
        if group_size < 1:
            raise UsageError(f"group_size is {group_size}, expected >= 1", where="group_size", fix="set group_size=8")
        rendered = [as_messages(item, self.tokenizer) if isinstance(item, str) else item for item in prompts]
        ids = [encode_prompt(item, self.tokenizer) for item in rendered]
        responses = self._loop.run(self._answers([each for each in ids for _ in range(group_size)]))
        first, self._groups = self._groups, self._groups + len(ids)
        return [
            LoopSample(
                prompt=decode(ids[number // group_size], self.tokenizer),
                completion=completion_text(response, self.config.gconfig, self.tokenizer),
                group=first + number // group_size,
                prompt_number=number // group_size,
                response=response,
            )
            for number, response in enumerate(responses)
        ]

    def update(self, samples: Sequence[LoopSample]) -> dict[str, float]:
        """Learn from rewarded samples by the objective of the configuration; the next samples are of the new weights.

        Returns the metrics of the step. Raises UsageError for no samples and for one without a reward.
        """
        if not samples:
            raise UsageError("there are no samples to learn from", where="update", fix="give those of `sample`")
        # Each is a sample of its own: trajectories of one number would be parts of one sample.
        own = [replace(sample.trajectory(), sample_index=number) for number, sample in enumerate(samples)]
        self.learn()
        metrics = self.learner.update(self.learner.prepare(own))
        self.publish()
        return metrics

    def learn(self) -> None:
        """Take the devices of servers for the learner until `publish`, where they are shared (servers.sleep_level);
        before `learner.prepare` in a loop with a loss of one's own. `update` does it by itself. Idempotent.
        """
        if self.config.servers_take_turns and not self._learning:
            lend_devices(self.config, self.engine, self._device)
            self._learning = True

    def publish(self) -> None:
        """Give the trained weights to the inference engine; after updates by `actor.train_batch`."""
        publish_weights(self.config, self.engine, self.models.publish, self.actor.version + 1, self._device)
        self._learning = False

    def save(self, folder: str | Path) -> Path:
        """Write the model and its tokenizer in Hugging Face format; returns the folder."""
        place = Path(folder)
        self.models.export(place)
        self.tokenizer.save_pretrained(place)
        return place

    async def _answers(self, prompts: Sequence[list[int]]) -> list[ModelResponse]:
        self._calls += 1
        seeds = (derive_seed("loop", self.config.seed, self._calls, number) for number in range(len(prompts)))
        requests = [
            ModelRequest(input_ids=ids, gconfig=self.config.gconfig, seed=seed)
            for ids, seed in zip(prompts, seeds, strict=True)
        ]
        return await asyncio.gather(*(self.engine.agenerate(request) for request in requests))


def _check(config: PPOConfig) -> None:
    """Raise ConfigError for what a loop in one process cannot do."""
    problems = {
        "archon": (config.archon is not None, "splits the model over processes"),
        "distillation": (config.distillation is not None, "asks teachers about the rows of a dataset"),
        "separate_learner": (config.separate_learner, "trains in another process"),
        "engine.share_weights": (config.shares_weights, "has the engine stand still while a trainer learns"),
    }
    for key, (found, why) in problems.items():
        if found:
            raise ConfigError(
                f"{key} {why}, and a PolicyLoop cannot", where=key, fix=f"remove {key}, or use areal.GRPO"
            )
