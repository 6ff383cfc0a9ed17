"""A tiny model of the architecture with random weights that are the same in every process, and what it computes."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, modeling_utils

from areal.porting.probe.subject import quiet
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.porting.probe.subject import Subject


_FROM_DICT = PreTrainedConfig.from_dict.__func__
EMBEDDING_STD = 0.2
VECTOR_STD = 0.3
DECAYS = {"A_log": (-4.0, 3.0), "recurrent_param": (-8.0, 1.0)}
"""What families call the parameters of decays, and between what they are drawn: from a state that hardly decays to one
that is gone at the next token. Initial values hide the order of decay and error."""
MEMORY_FOLDER = Path("/dev/shm")
"""Temporary files go here where it exists, or in a folder of it that the process is confined to: it is memory."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A built model in evaluation mode, float32, on CPU."""

    subject: Subject
    config: dict[str, Any]
    """What config.json would hold."""
    hf_config: Any
    model: Any
    """`PreTrainedModel`."""


def build(
    subject: Subject, config: dict[str, Any], *, seed: int = 0, attention: Literal["sdpa", "eager"] = "sdpa"
) -> Instance:
    """Return the model of a config.json's content, with the weights of `seed`.

    attention: implementation to use where the class has a choice.
    Raises `SubjectError` with the reason when the config is refused or the model does not build.
    """
    hf_config = read(subject, config)
    model = construct(subject, hf_config, attention=attention)
    if getattr(hf_config, "use_cache", False) is True:
        # Not every forward takes the switch as an argument, and some cannot make a cache for all their configs.
        hf_config.use_cache = False
    randomize(model, seed)
    return Instance(subject=subject, config=config, hf_config=hf_config, model=model)


def read(subject: Subject, config: dict[str, Any]) -> Any:
    """Return the config object, made as `from_pretrained` makes it of config.json. Raises `SubjectError`."""
    content = {name: value for name, value in copy.deepcopy(config).items() if name not in ("dtype", "torch_dtype")}
    with quiet():
        try:
            if _FROM_DICT is getattr(subject.config_class.from_dict, "__func__", None):
                return subject.config_class(**content)  # from_dict does this, and writes the config to a log
            return subject.config_class.from_dict(content)
        except Exception as error:  # foreign code fails in any way
            raise SubjectError(f"{subject.architecture} refuses the config: {_summary(error)}") from error


def construct(subject: Subject, hf_config: Any, *, attention: str = "sdpa") -> Any:
    """Return the model in evaluation mode with the library's own initial weights (seeded). Raises `SubjectError`."""
    failure: Exception | None = None
    for choice in (attention, "eager", None):
        options = {} if choice is None else {"attn_implementation": choice}
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # of the CPU alone: asking every device takes a millisecond
            try:
                return subject.model_class._from_config(hf_config, dtype=torch.float32, **options).eval()
            except Exception as error:  # noqa: BLE001 - foreign code fails in any way; the last failure is reported
                failure = error
    raise SubjectError(f"{subject.architecture} does not build: {_summary(failure)}") from failure


def randomize(model: nn.Module, seed: int) -> None:
    """Give every weight a value that depends on its name, its initial value and `seed`, in place.

    Buffers that checkpoints hold and that start as all zeros or ones are weights too (selection biases of routers), and
    so are single numbers (constants of activations); others are tables or masks and stay.
    """
    embeddings = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_value(name, parameter, seed, embedding=name in embeddings))
            parameter.requires_grad_(False)
        for name, buffer in _learned_buffers(model):
            buffer.copy_(_random_value(name, buffer, seed, embedding=False))


def logits(instance: Instance, tokens: Tensor) -> Tensor:
    """Return the logits of all positions: int64 [B, T] -> float32 [B, T, vocab]. Raises `SubjectError` when forward
    fails."""
    with quiet(), torch.no_grad():
        try:
            output = instance.model(tokens, **call_options(instance.model))
        except Exception as error:
            architecture = instance.subject.architecture
            raise SubjectError(f"{architecture} fails in forward: {type(error).__name__}: {error}") from error
    return logits_of(output)


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a causal model returned."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None:
        found = output[0]
    return found.float()


def call_options(model: nn.Module) -> dict[str, Any]:
    """Return the keywords for a call without a cache, as far as `forward` has them."""
    names = inspect.signature(model.forward).parameters
    return {"use_cache": False} if "use_cache" in names else {}


def make_tokens(instance: Instance, *, batch: int, length: int, seed: int) -> Tensor:
    """Return random tokens int64 [batch, length], without the special ones that some models treat differently.

    Raises `SubjectError` for a model that does not know its embedding, or has special tokens only.
    """
    try:
        vocabulary = int(instance.model.get_input_embeddings().weight.shape[0])
    except Exception as error:  # foreign code fails in any way
        architecture = instance.subject.architecture
        raise SubjectError(f"{architecture} has no get_input_embeddings: {_summary(error)}") from error
    config = instance.hf_config.get_text_config()
    special: set[Any] = set()
    for kind in ("pad", "bos", "eos"):
        found = getattr(config, f"{kind}_token_id", None)
        special |= set(found) if isinstance(found, list) else {found}
    usable = torch.tensor([token for token in range(vocabulary) if token not in special])
    if not len(usable):
        raise SubjectError(f"all {vocabulary} tokens of {instance.subject.architecture} are special: none is ordinary")
    generator = torch.Generator().manual_seed(seed)
    return usable[torch.randint(len(usable), (batch, length), generator=generator)]


def export(instance: Instance) -> dict[str, Tensor]:
    """Return what `save_pretrained` writes: name on disk to tensor."""
    in_memory = Path(tempfile.gettempdir()).is_relative_to(MEMORY_FOLDER) or not MEMORY_FOLDER.is_dir()
    folder = None if in_memory else MEMORY_FOLDER
    with tempfile.TemporaryDirectory(dir=folder) as target, quiet(), _unwritten(target) as tensors:
        try:
            instance.model.save_pretrained(target)
        except Exception as error:
            raise SubjectError(f"{instance.subject.architecture} cannot be saved: {_summary(error)}") from error
        for file in sorted(Path(target).glob("*.safetensors")):
            tensors |= {name: tensor.clone() for name, tensor in safetensors.torch.load_file(file).items()}
    return tensors


@contextmanager
def _unwritten(folder: str) -> Iterator[dict[str, Tensor]]:
    """Keep copies of what the library would write to safetensors files in `folder`: to write and read them is half of
    the time.

    What such a file cannot hold goes to the library as ever, which says so: tensors that share memory, or have gaps. So
    do files of other folders, which other threads may save meanwhile.
    """
    kept: dict[str, Tensor] = {}

    def keep(tensors: dict[str, Tensor], filename: str, metadata: dict[str, str] | None = None) -> None:
        places = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values() if tensor.numel())
        apart = all(place + size <= after for (place, size), (after, _) in itertools.pairwise(places))
        is_ours = Path(filename).is_relative_to(folder)
        if is_ours and apart and all(tensor.is_contiguous() for tensor in tensors.values()):
            kept.update((name, tensor.detach().clone()) for name, tensor in tensors.items())
        else:
            write(tensors, filename, metadata=metadata)

    write = modeling_utils.safe_save_file
    modeling_utils.safe_save_file = keep
    try:
        yield kept
    finally:
        modeling_utils.safe_save_file = write


@functools.lru_cache(maxsize=1024)
def _noise(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return noise, which is kept, since most configs of an analysis share most weights. Not to be changed."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF))
    return torch.randn(shape, generator=generator)


def _random_value(name: str, initial: Tensor, seed: int, *, embedding: bool) -> Tensor:
    noise = _noise(name, tuple(initial.shape), seed)
    low, high = DECAYS.get(name.rpartition(".")[2], (0.0, 0.0))
    if low < high:
        return low + (high - low) * 0.5 * (1 + torch.erf(noise / 2**0.5))
    if embedding:
        return noise * EMBEDDING_STD
    start = float(initial.flatten()[0]) if initial.numel() and bool((initial == initial.flatten()[0]).all()) else 0.0
    if initial.ndim < 2 or start != 0.0:  # vectors, and scales of shape [heads, dim], which start as ones
        return start + VECTOR_STD * noise
    return noise * max(1, initial.shape[-1]) ** -0.5


def _learned_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = functools.cache(lambda: model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and buffer.numel():
            first = float(buffer.flatten()[0])
            alike = buffer.numel() == 1 or (first in (0.0, 1.0) and bool((buffer == first).all()))
            if alike and name in persistent():  # asked last: to list what checkpoints hold takes longest
                yield name, buffer


def _summary(error: BaseException | None) -> str:
    """Return the first lines of an error, with its kind."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}"


# ------------------------------------------------------------------------------------------------------------- recorded

# Proof for types that the installed transformers lacks. `record` keeps logits and the shapes of tensors as JSON with
# the tests of the family; `recorded_weights` makes the same weights again from the names on disk, in every process.

_DIGITS = 6
"""Decimals of a recorded logit: far below what parity allows, and short."""


def record(instance: Instance, tokens: Tensor, *, seed: int = 0) -> dict[str, Any]:
    """Return the logits of tokens [B, T] by a model like `instance` whose weights are made from their names on disk.

    Raises SubjectError when what is on disk is not what is in memory, so that the weights cannot be given to it.
    """
    fresh = build(instance.subject, instance.config)
    shapes = {name: list(tensor.shape) for name, tensor in export(fresh).items()}
    weights = recorded_weights({"shapes": shapes, "seed": seed})
    report = fresh.model.load_state_dict(weights, strict=False)
    missing = [name for name in report.missing_keys if name in {key for key, _ in fresh.model.named_parameters()}]
    if missing or report.unexpected_keys:
        names = sorted({*missing, *report.unexpected_keys})
        raise SubjectError(f"weights of {instance.subject.architecture} have other names on disk: {names[:4]}")
    found = logits(fresh, tokens)
    rounded = [[[round(value, _DIGITS) for value in row] for row in rows] for rows in found.tolist()]
    return {"shapes": shapes, "seed": seed, "tokens": tokens.tolist(), "logits": rounded}


def recorded_weights(recording: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the float32 weights of a recording, by their names on disk: vectors around one, which suits scales and is
    visible in biases; matrices that keep the size of what they are applied to; embeddings small."""
    seed = int(recording["seed"])
    weights = {}
    for name, shape in recording["shapes"].items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF))
        noise = torch.randn(tuple(shape), generator=generator)
        if len(shape) < 2:
            weights[name] = (0.1 if name.endswith("bias") else 1.0) + 0.3 * noise
        else:
            weights[name] = noise * (0.2 if "emb" in name else shape[-1] ** -0.5)
    return weights
