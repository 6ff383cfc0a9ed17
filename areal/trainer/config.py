"""Run configurations: component configs composed. `areal train` reads one of these from YAML and dotted overrides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from areal.algorithm import Objective, get_objective
from areal.algorithm.blocks import BlockChoice
from areal.algorithm.preference import PreferenceConfig
from areal.api import Config, ConfigError, DatasetKind, GenerationConfig, number
from areal.dataset.config import DatasetConfig, ImageReadingConfig
from areal.engine.config import (
    ArchonConfig,
    EmbeddedEngineConfig,
    ServerEngineConfig,
    SGLangConfig,
    TrainEngineConfig,
    VLLMConfig,
)
from areal.hub.names import RepoKind
from areal.infra.checkpoint.config import CheckpointConfig
from areal.infra.jobs.config import JobConfig
from areal.infra.metrics.config import MetricsConfig
from areal.infra.rollout.config import CurriculumConfig, RolloutConfig
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.weights.config import WeightTransferConfig
from areal.reward.components import RewardChoice, resolve_components
from areal.trainer.distillation_config import DistillationConfig
from areal.trainer.evaluation_config import EarlyStopConfig, EvalSetConfig, ExportConfig, check_own_scoring
from areal.utils.given import PREFIX, is_given


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Which model is trained."""

    path: str = ""
    """Hugging Face checkpoint folder to start from, or org/name@revision of the hub (docs/hub.md). Required unless
    `init` is given."""
    init: dict[str, Any] = field(default_factory=dict)
    """Content of a config.json (model_type, hidden_size, ...) for random weights; ignored when `path` is set."""
    implementation: Literal["native", "transformers"] = "native"
    """Whose code computes the model: a family of ours, or any AutoModelForCausalLM of transformers (in RL only with
    rollout.engine vllm or sglang, if that program knows the architecture too; the embedded engine needs ours)."""
    tokenizer_path: str = ""
    """Folder of the tokenizer, org/name@revision of the hub, or one built on the spot: "characters:<each once>",
    "bytes:"; empty means `path`."""

    hub_fields: ClassVar[dict[str, RepoKind]] = {"path": "model", "tokenizer_path": "model"}
    """Fields that take names of the hub."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """The algorithm: a preset of `areal.algorithm` and what is changed in it.

    A block is a name (`surrogate: sapo`), a section with a name and fields of that class (`surrogate: {name: sapo,
    tau_pos: 2}`), or a section without name, which changes the preset's block (`surrogate: {clip_high: 0.28}`). The
    name may be a path to a class of yours (`my_module:MyLoss`).
    """

    preset: str = "grpo"
    """Name of the objective preset; `areal list objectives` shows them with formulas and all settings."""
    advantage: BlockChoice = None
    """How rewards become advantages; null takes the preset's."""
    surrogate: BlockChoice = None
    """Per-token policy loss; null takes the preset's."""
    correction: BlockChoice = None
    """What is done about the distance between the policy that sampled and the one that trains; null takes the preset's.
    Asynchronous runs: decoupled with tis."""
    aggregation: BlockChoice = None
    """What the mean over tokens means; null takes the preset's."""
    kl: BlockChoice = None
    """Distance to the reference model, a section without name; null takes the preset's."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus, >= 0; null takes the preset's (0)."""
    decoupled: bool | None = None
    """Multiply the loss by the behaviour weight w (arXiv 2505.24298); null takes the preset's."""
    anchor: Literal["behave", "prox"] | None = None
    """Policy in the denominator of the importance ratio: prox is recomputed by the trainer, behave sampled; null takes
    the surrogate's."""
    denominator: Literal["kept", "original"] | None = None
    """Divide by the tokens before (original) or after (kept) the correction dropped some; null takes the preset's."""
    num_minibatches: int = number(1, at_least=1)
    """Optimizer steps per batch; prompts are split, never a group."""
    prox_logp: Literal["auto", "behave", "recompute"] = "auto"
    """Where the proximal ("old") log-probabilities come from. recompute: one extra forward before the first minibatch;
    behave: those recorded while sampling; auto: recompute when the objective weighs or masks by their difference, or
    when sampling is filtered by top_p, top_k or min_new_tokens."""
    overlong_buffer: int = 0
    """Soft length limit (DAPO): the last this many tokens of gconfig.max_new_tokens cost reward linearly; 0 is off."""
    overlong_penalty: float = number(1.0, at_least=0)
    """Largest reward subtracted by the soft length limit."""
    mask_truncated: bool = False
    """Leave samples that ran into the token budget out of the loss (they still count in their group's baseline)."""

    def __post_init__(self) -> None:
        """Check that the objective can be built."""
        super().__post_init__()
        self.build()

    def build(self) -> Objective:
        """Return the objective: the preset with what is set here."""
        own = {item.name: getattr(self, item.name) for item in fields(Objective)}
        return get_objective(self.preset, **{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """Settings that every run has."""

    experiment_name: str = "areal"
    """Groups related runs; the default run directory is runs/<experiment_name>/<trial_name>."""
    trial_name: str = "default"
    """Names this run."""
    output_dir: str = ""
    """Run directory; empty means runs/<experiment_name>/<trial_name>."""
    seed: int = number(1, at_least=0, below=2**32)
    """Seed of parameters, data order and sampling; at most 4294967295."""
    num_threads: int = number(0, at_least=0)
    """Threads that one operation is divided over; 0 chooses: no more than CPUs are free, and one for a small model,
    which more would slow down (the log and the dry run say why). A continued run keeps the number it had."""
    matrix_products: Literal["auto", "onednn", "torch"] = "auto"
    """Library of the float32 products of linear layers on CPUs. auto measures both when a run of one process starts,
    and takes oneDNN where it is clearly faster (processors of AMD); a continued run keeps the one it had. Results
    differ in the last digits."""
    total_train_epochs: int = 1
    """Passes over the training rows; ignored when total_train_steps is set."""
    total_train_steps: int | None = number(None, at_least=0)
    """Training steps; null derives them from epochs, rows and batch size."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The trained model."""
    train_dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Rows to train on."""
    actor: TrainEngineConfig = field(default_factory=TrainEngineConfig)
    """Optimizer and micro-batching of the trained model."""
    archon: ArchonConfig | None = None
    """Split the trained model over the run's processes (`areal launch --ranks N -- areal train ...`); null trains in
    one. A run may be continued with another value: none of it changes results beyond rounding."""
    job: JobConfig | None = None
    """Where `areal launch CONFIG` runs this, as which processes; null is one process here. `areal train` ignores it."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Recovery state."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """Metric sinks."""
    eval_every_steps: int = number(0, at_least=0)
    """Evaluate after this many steps; 0 evaluates only before the first and after the last."""
    export: ExportConfig = field(default_factory=ExportConfig)
    """Hugging Face folders written during the run, beside final/ at its end."""
    early_stop: EarlyStopConfig | None = None
    """When to end before the last step; null never does."""

    def __post_init__(self) -> None:
        """Check for what has no effect in a run of this kind."""
        super().__post_init__()
        if self.actor.router_replay and (problem := self._replay_problem()):
            raise ConfigError(
                f"router_replay gives routers the experts that they chose while sampling, and {problem}",
                where="actor.router_replay",
                fix="set actor.router_replay to false",
            )

    def _replay_problem(self) -> str:
        """Return why nobody records what routers are to be given; "" where somebody does."""
        return "this run does not sample"

    @property
    def directory(self) -> Path:
        """Folder of the run: output_dir, or runs/<experiment_name>/<trial_name> below the current folder."""
        return Path(self.output_dir) if self.output_dir else Path("runs", self.experiment_name, self.trial_name)


@dataclass(frozen=True, kw_only=True)
class SFTConfig(RunConfig):
    """Supervised fine-tuning."""

    kind: Literal["sft"] = "sft"
    """Selects the trainer."""
    batch_size: int = number(64, at_least=1)
    """Rows per optimizer step."""
    valid_dataset: DatasetConfig | None = None
    """Rows to evaluate on; null skips evaluation."""
    eval_rows: int = number(256, at_least=0)
    """Validation rows per evaluation (the first ones)."""
    label_smoothing: float = number(0.0, at_least=0, below=1)
    """Mass spread evenly over the vocabulary in the target, 0 .. 1; keeps the policy exploring in later RL."""
    images: ImageReadingConfig = field(default_factory=ImageReadingConfig)
    """How images of rows become pixels; for models that read images (docs/vision.md)."""

    dataset_kind: ClassVar[DatasetKind] = "sft"
    """What the rows must be made for."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Config):
    """One of several sources of training rows."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Rows of the source."""
    weight: float = number(1.0, above=0)
    """Share of the prompts, relative to the weights of the other sources."""
    max_rows: int | None = number(None, at_least=1)
    """Take the first so many rows only; null takes all."""
    reward: RewardChoice = ""
    """What scores, as `reward` of the run: a name or path, a list, or a map; empty takes the run's."""
    workflow: str = ""
    """Workflow: registry name or importable path; empty takes the run's workflow with its options."""
    workflow_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of this source's own workflow."""
    gconfig: GenerationConfig | None = None
    """Sampling, at the run's temperature; null takes the run's gconfig."""
    pass_reward: float = 1.0
    """A sample passes, for pass rates, when its reward is at least this."""

    def __post_init__(self) -> None:
        """Check that options belong to something."""
        super().__post_init__()
        check_own_scoring(self.reward, self.workflow, self.workflow_options)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RunConfig):
    """Reinforcement learning: the GRPO family, and PPO with a critic."""

    kind: Literal["rl"] = "rl"
    """Selects the trainer."""

    dataset_kind: ClassVar[DatasetKind] = "rl"
    """What the rows must be made for."""

    workflow: str = "rlvr"
    """Rollout workflow: registry name or importable path."""
    workflow_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the workflow, e.g. {max_turns: 3}."""
    reward: RewardChoice = ""
    """What scores: a registry name or importable path, a list of them, or a map from name to weight or to a section
    with path, weight, options (keyword arguments of the function or class) and normalize (group, batch or none), e.g.
    {gsm8k: 1.0, short: {path: my_module:short, weight: 0.2}}. Weighted values add up. Required unless distillation is
    set, which then is all there is to learn from."""
    gconfig: GenerationConfig = field(default_factory=GenerationConfig)
    """Sampling during training."""
    sources: dict[str, SourceConfig] = field(default_factory=dict)
    """Several sources of training rows in place of train_dataset, name to section; they take turns by weight, exactly.
    Metrics are source/<name>/reward_mean and others, see docs/training.md."""
    curriculum: CurriculumConfig | None = None
    """Which rows come when, by how often they were solved; null visits every row once in each pass."""
    eval_sets: dict[str, EvalSetConfig] = field(default_factory=dict)
    """What is evaluated before, during and after training: name to section. Metrics are eval/<name>/avg@<samples> and
    others, see docs/evaluation.md; `areal eval` evaluates any checkpoint on the same sets."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Batching, staleness and failure handling."""
    engine: EmbeddedEngineConfig = field(default_factory=EmbeddedEngineConfig)
    """The inference engine of this process; ignored unless rollout.engine is embedded."""
    servers: ServerEngineConfig = field(default_factory=ServerEngineConfig)
    """Inference servers, whatever program; this and the next four are ignored when rollout.engine is embedded."""
    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)
    """How server processes are watched and restarted."""
    weights: WeightTransferConfig = field(default_factory=WeightTransferConfig)
    """How new weights reach the servers."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    """Start of vLLM servers."""
    sglang: SGLangConfig = field(default_factory=SGLangConfig)
    """Start of SGLang servers."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The algorithm."""
    separate_learner: bool = False
    """Train in a process of its own, beside the one that samples: rollouts then do not wait for training, nor training
    for them, wherever both are Python for much of their time (short answers, small models). With rollout.engine
    embedded; results are the same."""
    distillation: DistillationConfig | None = None
    """Teachers whose distributions the policy is moved towards on what it samples; null has none."""
    critic: TrainEngineConfig | None = None
    """Optimizer of the value model; required by objectives that use GAE, refused by the others."""

    def __post_init__(self) -> None:
        """Check combinations that would only fail after loading everything."""
        super().__post_init__()
        if not 0 <= self.objective.overlong_buffer <= self.gconfig.max_new_tokens:
            raise ConfigError(
                f"objective.overlong_buffer is {self.objective.overlong_buffer}, expected 0 .. gconfig.max_new_tokens "
                f"({self.gconfig.max_new_tokens})"
            )
        if self.objective.num_minibatches > self.rollout.batch_size:
            raise ConfigError(
                f"objective.num_minibatches {self.objective.num_minibatches} exceeds rollout.batch_size "
                f"{self.rollout.batch_size}: a minibatch holds at least one prompt"
            )
        for name in self.eval_sets:
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError(
                    f"eval_sets has a set {name!r}; names are part of metrics and files, expected letters, digits, "
                    f"'_', '-' and '.'",
                    fix="rename the set",
                )
        if self.reward != "":
            resolve_components(self.reward)
        if self.distillation is not None:
            for source in self.all_sources.values():
                self.distillation.check_sampling(source.gconfig or self.gconfig)
        if self.sources:
            self._check_sources()
        self._check_servers()
        self._check_ratios()
        if self.separate_learner and (problem := self._separation_problem()):
            raise ConfigError(
                f"separate_learner trains in a process of its own, and {problem}",
                where="separate_learner",
                fix="set separate_learner to false",
            )
        if self.shares_weights and (problem := self._sharing_problem()):
            raise ConfigError(
                f"engine.share_weights samples with the weights that are trained, and {problem}",
                where="engine.share_weights",
                fix="set engine.share_weights to false",
            )
        if self.critic is not None and self.critic.router_replay:
            raise ConfigError(
                "router_replay is set for the critic, whose routers have sampled nothing",
                where="critic.router_replay",
                fix="set critic.router_replay to false",
            )

    def _separation_problem(self) -> str:
        """Return why the learner cannot have a process of its own; "" where it can."""
        if self.rollout.engine != "embedded":
            return f"with rollout.engine {self.rollout.engine} servers sample, which are other processes already"
        if self.archon is not None:
            return "archon has processes for it already"
        if self.distillation is not None:
            return "teachers are asked in the process that samples"
        if self.metrics.profile is not None:
            return "metrics.profile records the process that samples"
        blocks = [getattr(self.objective, item.name) for item in fields(self.objective)]
        names = [block.get("name") if isinstance(block, dict) else block for block in blocks]
        if found := [str(name).removeprefix(PREFIX) for name in names if is_given(name)]:
            return (
                f"objective has {found[0]!r}, which only this Python program has: move it to an importable module and "
                f"write its path, e.g. my_module:{found[0]}"
            )
        return ""

    def _sharing_problem(self) -> str:
        """Return why the engine cannot sample with the learner's weights; "" where it can."""
        if self.rollout.max_head_offpolicyness:
            return "with rollout.max_head_offpolicyness above 0 it samples while they change"
        if self.separate_learner:
            return "a separate learner has them in another process"
        if self.archon is not None:
            return "archon has them in shards"
        if self.model.implementation != "native":
            return f"a model of {self.model.implementation} computes differently while it is trained"
        if self.actor.lora is not None:
            return "with actor.lora what is sampled from is a sum of them and the adapters"
        if self.actor.compile:
            return "actor.compile has compiled what computes with them, for training"
        for name in ("dtype", "device"):
            if getattr(self.engine, name) != "auto":
                return f"engine.{name} {getattr(self.engine, name)!r} needs a copy of them"
        return ""

    def _check_sources(self) -> None:
        """Check sources against the run's sampling, its train_dataset and its length limit."""
        if self.train_dataset.name:
            raise ConfigError(
                f"train_dataset is {self.train_dataset.name!r}, and there are sources, too",
                where="train_dataset.name",
                fix="make it one of the sources, or remove sources",
            )
        for name, source in self.sources.items():
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError(
                    f"sources has {name!r}; names are part of metrics, expected letters, digits, '_', '-' and '.'",
                    fix="rename the source",
                )
            own, run = source.gconfig, self.gconfig
            if own is None:
                continue
            # The trainer computes probabilities at one temperature: the ratios of other samples would be wrong.
            if (own.greedy, own.temperature) != (run.greedy, run.temperature):
                raise ConfigError(
                    f"sources.{name}.gconfig samples at temperature {own.temperature:g} (greedy: {own.greedy}), the "
                    f"run at {run.temperature:g} (greedy: {run.greedy}); one loss needs one temperature",
                    where=f"sources.{name}.gconfig.temperature",
                    fix=f"set sources.{name}.gconfig.temperature to {run.temperature:g}, or the run's gconfig to both",
                )
            if self.objective.overlong_buffer and own.max_new_tokens != run.max_new_tokens:
                raise ConfigError(
                    f"objective.overlong_buffer counts back from gconfig.max_new_tokens {run.max_new_tokens}, and "
                    f"sources.{name} stops at {own.max_new_tokens}",
                    where=f"sources.{name}.gconfig.max_new_tokens",
                    fix="give all sources the same max_new_tokens, or set objective.overlong_buffer to 0",
                )

    @property
    def learns_from_reward(self) -> bool:
        """Whether there is a reward; a run that only distils has none."""
        rewards = [self.reward, *(source.reward for source in self.sources.values())]
        return self.distillation is None or any(reward != "" for reward in rewards)

    @property
    def all_sources(self) -> dict[str, SourceConfig]:
        """Return the sources by name; train_dataset is the one named "" where there are no others."""
        return self.sources or {"": SourceConfig(dataset=self.train_dataset)}

    @property
    def filters_samples(self) -> bool:
        """Whether some source samples from a filtered distribution (`GenerationConfig.filters`)."""
        return any((source.gconfig or self.gconfig).filters for source in self.all_sources.values())

    @property
    def engine_section(self) -> Literal["engine", "servers"]:
        """Section that limits sequences of the engine in use."""
        return "engine" if self.rollout.engine == "embedded" else "servers"

    @property
    def max_seq_len(self) -> int:
        """Longest sequence of the engine in use."""
        return self.engine.max_seq_len if self.rollout.engine == "embedded" else self.servers.max_seq_len

    @property
    def servers_take_turns(self) -> bool:
        """Whether servers free their devices while the learner works."""
        return self.servers.sleep_level > 0 and self.rollout.engine != "embedded"

    @property
    def shares_weights(self) -> bool:
        """Whether the engine samples with the weights that are trained, in turn with the learner."""
        return self.engine.share_weights and self.rollout.engine == "embedded"

    @property
    def adapters_travel_alone(self) -> bool:
        """Whether servers are sent adapters instead of whole models."""
        return self.actor.lora is not None and self.rollout.engine != "embedded" and self.weights.adapters != "merged"

    def _check_servers(self) -> None:
        """Check that the chosen server program can do what is asked."""
        name, given = self.rollout.engine, "directory" if self.servers.directory else "addresses"
        if name != "embedded" and self.weights.carrier == "shards":
            self._check_shards()
        if self.servers.sleep_level and self.rollout.max_head_offpolicyness:
            raise ConfigError(
                f"servers.sleep_level {self.servers.sleep_level} lets servers and learner take turns, which "
                f"rollout.max_head_offpolicyness {self.rollout.max_head_offpolicyness} does not; set it to 0"
            )
        if self.servers.sleep_learner:
            self._check_sleeping_learner()
        if name == "sglang" and self.servers.sleep_level == 1:
            raise ConfigError("servers.sleep_level 1 does not fit sglang servers, which drop their weights; use 2")
        if self.servers.are_given and name != "vllm":
            raise ConfigError(
                f"servers.{given} is for rollout.engine vllm, not {name}: only its servers tell which start of them "
                f"answers"
            )
        if self.weights.carrier == "shared_memory" and not self.servers.all_local:
            raise ConfigError(
                f"weights.carrier shared_memory reaches servers at http://127.0.0.1:PORT only, and servers.{given} "
                "names others; use disk with a weights.folder that all machines see, or broadcast"
            )

    def _check_sleeping_learner(self) -> None:
        """Check that servers may have the learner's device."""
        what = "servers.sleep_learner is true, and"
        if not self.servers.sleep_level:
            raise ConfigError(f"{what} servers never lend the device back; set servers.sleep_level to 1 or 2")
        if self.archon is not None:
            raise ConfigError(f"{what} archon splits the learner over processes; remove archon, or set it to false")
        if self.servers.are_given and not self.servers.device_lock:
            raise ConfigError(f"{what} servers that others start may start at any time; name a file in "
                              "servers.device_lock that they are given too, or let the run start them")  # fmt: skip
        if self.weights.carrier == "shards":
            raise ConfigError(f"{what} weights.carrier shards reads weights from the device; use shared_memory")
        if self.distillation is not None:
            raise ConfigError(f"{what} teachers stay on the device; remove distillation, or set it to false")

    def _check_shards(self) -> None:
        """Check that weights can be streamed from shards."""
        way = "use broadcast, disk or shared_memory"
        if self.actor.lora is not None:
            raise ConfigError(f"weights.carrier shards sends whole models, and actor.lora trains adapters; {way}")
        if self.model.implementation != "native":
            raise ConfigError(f"weights.carrier shards needs model.implementation native; {way}")
        if self.archon is not None and self.archon.engine == "megatron":
            raise ConfigError(f"weights.carrier shards needs archon.engine native; {way}")

    def _replay_problem(self) -> str:
        """See `RunConfig`."""
        if self.rollout.engine == "vllm":
            if self.vllm.api == "completions":
                return "vllm.api completions does not report them; use auto"
            if not self.vllm.prefix_caching or self.servers.parity:
                switched = "servers.parity true" if self.servers.parity else "vllm.prefix_caching false"
                return f"vLLM records them with its prefix cache only, which {switched} turns off"
        if self.archon is not None and self.archon.engine == "megatron":
            return "archon.engine megatron has routers of its own; use native"
        return ""

    def _check_ratios(self) -> None:
        """Check for importance ratios that would silently be wrong, or 1 everywhere."""
        name, objective = self.objective.preset, self.objective.build()
        if self.objective.prox_logp == "behave" and objective.compares_with_sampler:
            raise ConfigError(
                f"objective {name!r} weighs or masks tokens by the difference of proximal and behaviour policy, which "
                f"prox_logp=behave makes 0 everywhere; use auto or recompute"
            )
        if not self.filters_samples:
            return
        # The recorded log-probabilities are those of the filtered distribution, the trainer's those of the full one.
        if self.objective.prox_logp == "behave" or objective.resolved_anchor == "behave":
            raise ConfigError(
                f"gconfig samples from a filtered distribution (top_p, top_k or min_new_tokens), so ratios against the "
                f"behaviour policy would be wrong from the first step; objective {name!r} needs prox_logp=recompute "
                f"and an anchor other than behave, or unfiltered sampling"
            )


@dataclass(frozen=True, kw_only=True)
class DPOConfig(RunConfig):
    """Learning a policy from preference pairs: DPO and its relatives."""

    kind: Literal["dpo"] = "dpo"
    """Selects the trainer."""
    batch_size: int = number(64, at_least=1)
    """Pairs of answers per optimizer step."""
    valid_dataset: DatasetConfig | None = None
    """Pairs to evaluate on; null skips evaluation."""
    eval_rows: int = number(256, at_least=0)
    """Validation pairs per evaluation (the first ones)."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    """The loss."""
    reference_path: str = ""
    """Checkpoint folder of the reference model, or org/name@revision of the hub; empty means the trained model before
    its first step. It is only needed before the run, which keeps two numbers per row, and takes no memory while the run
    trains."""

    hub_fields: ClassVar[dict[str, RepoKind]] = {"reference_path": "model"}
    """Fields that take names of the hub."""

    dataset_kind: ClassVar[DatasetKind] = "preference"
    """What the rows must be made for."""

    def __post_init__(self) -> None:
        """Check that the loss uses the reference."""
        super().__post_init__()
        if self.reference_path and not self.preference.uses_reference:
            raise ConfigError(
                f"reference_path is set, but the loss {self.preference.loss!r} uses no reference; remove it"
            )


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(RunConfig):
    """Training a reward model on preference pairs (Bradley-Terry)."""

    kind: Literal["reward_model"] = "reward_model"
    """Selects the trainer."""
    batch_size: int = number(64, at_least=1)
    """Pairs of answers per optimizer step."""
    valid_dataset: DatasetConfig | None = None
    """Pairs to evaluate on; null skips evaluation."""
    eval_rows: int = number(256, at_least=0)
    """Validation pairs per evaluation (the first ones)."""
    use_margins: bool = False
    """Ask for a difference of scores of at least the column `margin` of each row."""
    center_coef: float = number(0.0, at_least=0, below=math.inf)
    """Weight of (sum of the two scores)^2, which keeps scores around 0; 0.01 is usual where scores are used as rewards,
    0 leaves their level open."""

    dataset_kind: ClassVar[DatasetKind] = "preference"
    """What the rows must be made for."""


RowsConfig = SFTConfig | DPOConfig | RewardModelConfig
"""Runs that learn from the rows of a dataset as they are."""
