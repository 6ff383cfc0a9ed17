"""Configures the engines: what is trained and how, and what generates tokens in this process or on servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from areal.api import Config, ConfigError, number
from areal.models.parallel.dims import ParallelDims
from areal.models.parallel.schedules import pipeline_layout

_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """Low-rank adapters in place of training the model itself. Needs the package peft."""

    rank: int = number(16, at_least=1)
    """Rank of the update of each layer."""
    alpha: int = number(32, at_least=1)
    """The update is scaled by alpha / rank."""
    targets: list[str] = field(default_factory=list)
    """Last names of the linear layers that get an adapter, e.g. [q_proj, v_proj]; empty: all but heads and routers."""
    scope: list[Literal["language", "projector", "tower"]] = field(default_factory=lambda: ["language"])
    """Parts of an image-text model in which layers get adapters; targets act inside them. projector: what maps features
    of patches to embeddings. Models of text have the first only."""
    rank_stabilized: bool = False
    """Scale by alpha / sqrt(rank) instead, which suits large ranks (arXiv 2312.03732)."""
    seed: int = 0
    """Seed of the adapters' random half; the other half starts at 0, so they change nothing at first."""


@dataclass(frozen=True, kw_only=True)
class VisionTrainConfig(Config):
    """What of the image half of a model is trained. Models of text have none."""

    train: Literal["none", "projector", "all"] = "none"
    """none: nothing, so that features of images are kept; projector: what maps features of patches to embeddings; all:
    the tower too."""


@dataclass(frozen=True, kw_only=True)
class TrainEngineConfig(Config):
    """One trained model (actor or critic) and how it is updated."""

    vision: VisionTrainConfig = field(default_factory=VisionTrainConfig)
    """The tower of an image-text model. With lora it stays none, and lora.scope says what gets adapters."""
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """How parameters are updated. muon: matrices between embedding and head, those of experts too, by orthogonalised
    momentum (half the state of AdamW), all others by AdamW; updates are scaled like those of AdamW, so the same lr
    fits. sgd: with momentum."""
    lr: float = number(1e-5, at_least=0)
    """Peak learning rate."""
    weight_decay: float = number(0.0, at_least=0)
    """Decoupled weight decay, for sgd part of the gradient; not applied to norms, biases and other 1-D parameters."""
    momentum: float = number(0.95, at_least=0, below=1)
    """Of muon and sgd, 0 .. 1 (excluded); adamw has beta1."""
    beta1: float = number(0.9, at_least=0, below=1)
    """AdamW first-moment decay."""
    beta2: float = number(0.95, at_least=0, below=1)
    """AdamW second-moment decay."""
    adam_eps: float = number(1e-8, above=0)
    """AdamW denominator offset."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Shape of the learning rate after warm-up; cosine and linear end at min_lr_ratio * lr after the last step."""
    warmup_steps: int = number(0, at_least=0)
    """Optimizer steps of linear warm-up from 0."""
    min_lr_ratio: float = number(0.0, at_least=0, at_most=1)
    """Final learning rate as a fraction of lr; ignored by the constant schedule."""
    max_grad_norm: float = number(1.0, at_least=0)
    """Gradients are scaled down to this L2 norm; 0 turns clipping off."""
    max_tokens_per_micro_batch: int = number(16384, at_least=1)
    """Tokens of one forward/backward; a longer single sequence still gets a micro-batch of its own. A prompt that
    sequences share counts once, as it is computed; a tenth more is possible, where little is shared."""
    logprob_chunk_size: int = number(1024, at_least=1)
    """Tokens per slice of the vocabulary projection; bounds the memory of logits at chunk * vocab_size."""
    max_skipped_steps: int = number(10, at_least=0)
    """Consecutive optimizer steps that may be skipped for non-finite gradients before the run stops."""
    offload_optimizer: bool = False
    """Moments and float32 masters live in host memory and are updated there: 8 to 12 bytes less per parameter on the
    device, for a copy of gradients and weights in every step and a slower update. Does not change results beyond
    rounding, nor what checkpoints hold."""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """Dtype of parameters and computation; bfloat16 keeps float32 master weights in the optimizer, float64 is for
    numerical checks. auto: bfloat16 on GPUs that compute in it, float32 elsewhere; the dry run says which."""
    device: str = "auto"
    """"auto" takes an accelerator when present, else "cpu"."""
    gradient_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """Compile blocks with torch.compile, attention and experts of other ranks left out; pays off on accelerators, and
    costs minutes at the first steps. Families of ours only."""
    router_replay: bool = False
    """Mixtures of experts only: record which experts each token was sent to while it was sampled, and send it to the
    same ones in training, where other kernels would choose otherwise between two that score alike
    (docs/rl-configuration.md)."""
    lora: LoraConfig | None = None
    """Train low-rank adapters and leave the model frozen; null trains the model."""


@dataclass(frozen=True, kw_only=True)
class MegatronConfig(Config):
    """Settings of megatron-core, when archon.engine is megatron."""

    transformer_engine: bool = False
    """Build layers from NVIDIA's Transformer Engine in place of megatron's own: fused kernels, GPUs only."""


@dataclass(frozen=True, kw_only=True)
class ArchonConfig(Config):
    """How one trained model is split over processes. None of it changes results beyond rounding."""

    engine: Literal["megatron", "native"] = "native"
    """What splits and computes the model. native: PyTorch alone, every family and all of the settings below. megatron:
    megatron-core (`pip install 'areal[megatron]'`), for dense decoders with parallel.tp, pp and dp_replicate; what it
    cannot do is refused. Frozen models and critics are computed natively either way."""
    megatron: MegatronConfig = field(default_factory=MegatronConfig)
    """Settings of megatron-core; ignored by the native engine."""
    parallel: ParallelDims = field(default_factory=ParallelDims)
    """Numbers of ranks along each way of splitting."""
    sequence_parallel: bool = False
    """Each rank of tp keeps only its part of the tokens between attention and feed-forward layers: tp-fold less memory
    for those activations."""
    reshard_after_forward: bool = True
    """Blocks give back gathered parameters between forward and backward pass: less memory, half as much communication
    again."""
    offload_parameters: bool = False
    """Between their uses, parameters, gradients and moments live in host memory (FSDP2's CPU offload), and are updated
    there: memory for little more than activations, at the price of copying every parameter several times per
    micro-batch. Needs an accelerator, and a model that was loaded as a whole."""
    keep_groups: bool = True
    """All samples of a prompt go to one rank, where their common prompt is computed once; False balances ranks better
    when groups are large."""
    pp_schedule: Literal["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"] = "1F1B"
    """Order of passes in a pipeline, ignored when parallel.pp is 1. GPipe holds the activations of all micro-batches,
    1F1B of as many as there are ranks. The others hold several pieces per rank and wait less; ZeroBubble fills what is
    left with gradients of parameters, keeps them gathered for a whole step, and takes neither compile nor
    gradient_checkpointing. `areal plan` prints the idle share of each."""
    pp_pieces: int = 2
    """Pieces of the model on each rank of a pipeline, at least 1, with an interleaved schedule: more wait less and send
    more. 1F1B and GPipe have one, ZBVZeroBubble two."""

    def __post_init__(self) -> None:
        """Check that a pipeline with this number of pieces exists."""
        super().__post_init__()
        pipeline_layout(self.pp_schedule, max(1, self.parallel.pp), self.pp_pieces)


@dataclass(frozen=True, kw_only=True)
class EmbeddedEngineConfig(Config):
    """The engine that runs in the trainer's process."""

    max_batch_size: int = number(128, at_least=1)
    """Sequences decoded together; further requests wait."""
    max_seq_len: int = number(2048, at_least=2)
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the engine's copy of the weights; "auto" keeps the trained model's."""
    device: str = "auto"
    """"auto" uses the trained model's device."""
    num_threads: int = number(0, at_least=0)
    """Threads of the decode loop; 0 takes as many as training. The compiled kernel uses a quarter of them, at least
    one, while training computes in the same process, and all of them while it does not."""
    kernel: Literal["auto", "torch"] = "auto"
    """What computes tokens: "auto", on CPUs a kernel in C, built with the machine's compiler at first use, for dense
    float32 decoders, else torch; "torch" always. The two agree within 1e-5, not in every bit."""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """Capture decode steps on a GPU and replay them, instead of launching every kernel: "auto" decodes without where a
    capture fails, and says so once in the log; "on" makes that an error; "off" captures nothing. Where steps
    cannot be captured to begin with (on CPUs, with actor.router_replay, for models of transformers, and for layers that
    choose their keys or are gated linear recurrences), "auto" changes nothing, and "on" is an error as well."""
    share_weights: bool = False
    """Generate with the trained weights themselves instead of a copy, which saves its memory: the engine stands still
    while the learner works. For training runs of one process with rollout.max_head_offpolicyness 0."""


@dataclass(frozen=True, kw_only=True)
class ServerEngineConfig(Config):
    """Client-side settings for inference servers: limits, timeouts, routing, checks."""

    num_servers: int = number(1, at_least=1)
    """Servers to start on this machine; with addresses ignored, with directory how many are expected."""
    addresses: tuple[str, ...] = ()
    """Addresses of servers started elsewhere (`areal serve`), e.g. ["http://node1:8000", "http://node2:8000"]. The run
    uses them while they answer and neither starts nor stops any. vllm only."""
    directory: str = ""
    """Where servers started elsewhere (`areal serve --directory`) announce themselves: "tcp://HOST:PORT", or
    "file:///FOLDER" for a folder that all machines see. They join and leave while the run goes on. vllm only."""
    directory_key: str = ""
    """File with the key of the directory, at least 16 bytes; readable by this user only."""
    sleep_level: Literal[0, 1, 2] = 0
    """Free the servers' device memory while the learner works on the same devices; needs max_head_offpolicyness 0. 1:
    weights stay in host memory; 2: they are dropped, and come anew with the update; 0: servers stay awake."""
    sleep_learner: bool = False
    """With sleep_level, also the other way round: parameters and moments of the learner are in host memory (locked,
    with CUDA) while servers sample. For a learner of one process."""
    device_lock: str = ""
    """File on the machine of both, which whoever takes the device holds locked, with sleep_learner. Needed for servers
    started elsewhere, whose `areal serve` has to be given the same; empty for one in the run directory."""
    max_adapters: int = number(0, at_least=0)
    """Adapters that servers hold by name beside their weights, each of which requests may ask for
    (`ServerEngine.load_adapter`); one that is replaced stays until its requests have ended. Not with sleep_level."""
    max_adapter_rank: int = number(16, at_least=1)
    """Largest rank of such an adapter; ignored when max_adapters is 0."""
    drain_seconds: float = number(120.0, at_least=0)
    """Seconds a server that is about to leave may take to finish its requests; the rest go on at other servers."""
    max_seq_len: int = number(2048, at_least=2)
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    max_concurrent: int = number(256, at_least=1)
    """Sequences that one server decodes together; further requests wait in its queue."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype of the servers' weights; trained weights are converted before they are sent."""
    quantization: Literal["fp8", "none"] = "none"
    """fp8: linear layers of vLLM servers compute in 8-bit floating point, from weights that each server rounds when it
    gets them: half the memory and faster decoding on GPUs that have it. Answers are then sampled from another policy
    than the trained one, so objective.correction must weigh them."""
    stream_interval: int = number(16, at_least=1)
    """Tokens per message from a server. Fewer tokens lose less when a server dies; more tokens cost less."""
    stall_seconds: float = number(120.0, above=0)
    """Seconds without any message after which a server with requests is evicted; its requests continue elsewhere."""
    control_seconds: float = number(60.0, above=0)
    """Timeout in seconds of a control call (pause, resume, probe)."""
    weights_seconds: float = number(300.0, above=0)
    """Timeout in seconds for one server to stage or switch a weight version."""
    wait_seconds: float = number(900.0, above=0)
    """Longest time in seconds a request waits for a server to be ready."""
    max_attempts: int = number(4, at_least=1)
    """Servers on which a request is tried; tokens already sampled are kept between attempts."""
    max_consecutive_errors: int = number(8, at_least=1)
    """Consecutive errors of one server before it is evicted and restarted."""
    weight_attempts: int = number(2, at_least=1)
    """Attempts to send a version to a server before it is evicted and restarted."""
    affinity_tokens: int = number(256, at_least=0)
    """Requests that share this many leading tokens prefer the same server, which has them cached; 0 is off."""
    affinity_slack: int = number(8, at_least=0)
    """Requests in flight by which the preferred server may exceed the least loaded one."""
    clear_cache: bool = True
    """Recompute the key/value cache of running requests after a weight update. Without it the update is cheaper, but
    later tokens are sampled from a mixture of two versions, and their log-probabilities belong to neither."""
    probe_tokens: int = number(16, at_least=0)
    """Length of the sequence that both trainer and server score after every weight update; 0 is off."""
    probe_tolerance: float = number(0.0, at_least=0)
    """Largest difference of a log-probability in that comparison; 0 means 1e-3 for float32, 0.3 for bfloat16, and 1
    with quantization."""
    parity: bool = False
    """For debugging: servers run in their most deterministic mode, every answer is scored again in one forward pass,
    and a difference above parity_tolerance fails the request. Slow."""
    parity_tolerance: float = number(1e-3, at_least=0)
    """See parity."""

    def __post_init__(self) -> None:
        """Check addresses, and that a probe compares something."""
        super().__post_init__()
        for address in self.addresses:
            _check_address(address)
        if len(set(self.addresses)) < len(self.addresses):
            raise ConfigError(f"addresses are {list(self.addresses)}, expected each once")
        if self.addresses and self.directory:
            raise ConfigError("addresses and directory both say where servers are; give one of them")
        if bool(self.directory) != bool(self.directory_key):
            raise ConfigError(
                f"directory is {self.directory!r} and directory_key {self.directory_key!r}: expected both or none"
            )
        if self.max_adapters and self.sleep_level:
            raise ConfigError(
                f"max_adapters is {self.max_adapters}, and sleep_level {self.sleep_level} would drop adapters with the "
                f"device's memory; set one of them to 0"
            )
        if self.quantization != "none" and (self.dtype == "float32" or self.parity):
            other = "parity: true compares" if self.parity else "dtype float32 asks for"
            raise ConfigError(
                f"quantization is {self.quantization!r}, and {other} exact numbers; use dtype bfloat16 without parity, "
                f"or quantization none"
            )
        if self.probe_tokens == 1:
            raise ConfigError(f"probe_tokens is {self.probe_tokens}, expected 0 (off) or at least 2")

    @property
    def count(self) -> int:
        """Number of servers of a run."""
        return len(self.addresses) or self.num_servers

    @property
    def are_given(self) -> bool:
        """Whether somebody else starts the servers."""
        return bool(self.addresses or self.directory)

    @property
    def all_local(self) -> bool:
        """Whether every server runs on this machine, judging by the addresses, of servers or of the directory."""
        addresses = (self.directory,) if self.directory else self.addresses
        return all(urlsplit(address).hostname in _LOCAL_HOSTS for address in addresses)

    @property
    def resolved_probe_tolerance(self) -> float:
        """probe_tolerance, with 0 replaced by the default for the dtype and quantization."""
        rounded = 0.3 if self.quantization == "none" else 1.0
        return self.probe_tolerance or (1e-3 if self.dtype == "float32" else rounded)


@dataclass(frozen=True, kw_only=True)
class SGLangConfig(Config):
    """How SGLang servers are started. Other settings are in `servers` or passed by `extra_arguments`."""

    python: str = ".venv-sglang/bin/python"
    """Interpreter of the environment that has SGLang (`bash scripts/setup_sglang.sh` makes the default one)."""
    tensor_parallel_size: int = number(1, at_least=1)
    """Devices one server spreads its model over."""
    visible_devices: tuple[str, ...] = ()
    """Devices of each server, e.g. ["1", "2,3"] (CUDA_VISIBLE_DEVICES); empty leaves the choice to SGLang."""
    memory_fraction: float = number(0.8, above=0, at_most=1)
    """Share of the device's memory for weights and cache. On CPUs the cache holds max_concurrent sequences."""
    attention_backend: str = ""
    """E.g. "flashinfer", "fa3"; empty leaves the choice to SGLang ("torch_native" on CPUs)."""
    deterministic: bool = False
    """Batch-invariant kernels and seeded sampling: reproducible, slower. GPUs only."""
    extra_arguments: tuple[str, ...] = ()
    """Appended to the command line."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the servers' own."""


@dataclass(frozen=True, kw_only=True)
class VLLMConfig(Config):
    """How vLLM servers are started. Other settings are in `servers` or passed by `extra_arguments`."""

    python: str = ".venv-vllm/bin/python"
    """Interpreter of the environment that has vLLM (`bash scripts/setup_vllm.sh` makes the default one)."""
    tensor_parallel_size: int = number(1, at_least=1)
    """Devices one server spreads its model over."""
    visible_devices: tuple[str, ...] = ()
    """Devices of each server, e.g. ["1", "2,3"] (CUDA_VISIBLE_DEVICES); empty leaves the choice to vLLM."""
    gpu_memory_utilization: float = number(0.85, above=0, at_most=1)
    """Share of a GPU's memory for weights and cache; ignored on CPUs."""
    cpu_cache_gb: int = number(1, at_least=1)
    """Size of the key/value cache on CPUs; ignored on GPUs."""
    cpu_cores: str = ""
    """Cores of a server on CPUs, e.g. "0-3" (VLLM_CPU_OMP_THREADS_BIND); empty leaves the choice to vLLM."""
    enforce_eager: bool = True
    """Run without compilation and CUDA graphs: a server starts faster, and decodes slower on GPUs."""
    prefix_caching: bool = True
    """Keep prompts in the cache for the other samples of their group."""
    api: Literal["auto", "completions", "generate"] = "auto"
    """Endpoint for generations. generate: /inference/v1/generate, which labels tokens with weight versions;
    completions: /v1/completions, for versions of vLLM without it; auto: generate if the server has it."""
    extra_arguments: tuple[str, ...] = ()
    """Appended to the command line, e.g. ["--max-num-batched-tokens", "8192"]."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables added to the servers' own."""


def _check_address(address: str) -> None:
    """Require scheme, host and port and nothing else, because request URLs are built from it."""
    problem = "expected http://HOST:PORT"
    try:
        parts = urlsplit(address)
        good = parts.scheme == "http" and parts.hostname and parts.port and address == f"http://{parts.netloc}"
        if good and parts.username is None:
            return
    except ValueError as error:
        problem = f"{problem} ({error})"
    raise ConfigError(f"address is {address!r}, {problem}")
