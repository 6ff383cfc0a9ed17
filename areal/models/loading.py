"""Builds models: from a Hugging Face checkpoint folder, or from a config with random weights.

Only config.json and safetensors are read. Nothing from a checkpoint is ever executed: no pickles, no remote code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from areal.api import ModelError
from areal.hub.download import local_folder
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import SandwichBlock
from areal.models.blocks.decoder import VocabularyHead
from areal.models.blocks.differential import DifferentialHeads
from areal.models.blocks.experts_beside import ExpertsBeside
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.mlp import XIELU
from areal.models.blocks.moe import Experts, Router
from areal.models.blocks.norms import GatedNorm, LayerNorm, RMSNorm
from areal.models.blocks.rg_lru import RGLRU, BlockDiagonal
from areal.models.blocks.short_convolution import DepthwiseConvolution
from areal.models.registry import get_spec, get_wrapper
from areal.models.saving import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE
from areal.utils.special_numbers import untagged

if TYPE_CHECKING:
    from areal.api import BaseModelArgs, ModelSpec
    from areal.models.adapter import Box
    from areal.models.blocks.decoder import DecoderModel


def from_pretrained(
    path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> DecoderModel:
    """Load a checkpoint folder or a model of the hub ("org/name@revision").

    Parameters are converted to `dtype` (default float32) on `device`, buffers keep theirs.

    Raises ModelError when the folder is not a checkpoint, its model_type or a config field is not implemented, a file
    is damaged, or names and shapes in it do not fit the config.
    """
    folder = local_folder(path)
    config = read_config(folder)
    try:
        model = from_tensors(config, SafetensorsFolder(folder), dtype=dtype, device=device, source=folder)
        return with_code_of(folder, model)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error


def with_code_of(folder: Path, model: DecoderModel) -> DecoderModel:
    """Return the model, which from now on knows where the modeling files that its config names are."""
    args: Any = model.args
    if getattr(args, "auto_map", None):
        args.code_folder = str(folder.absolute())
    return model


def from_tensors(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    source: Path | None = None,
) -> DecoderModel:
    """`from_pretrained` of a checkpoint that is not a folder: the content of its config.json, and tensors by their
    names on disk. source: the folder that they are from, which an export copies what is not read from."""
    spec, args = resolve(config, names=tensors, source=source)
    model = _blank(spec, args)
    loaded = spec.state_dict_adapter(args).from_hf(tensors)
    kept = {name: buffer.dtype for name, buffer in model.named_buffers()}
    own = {
        # A copy, never an alias: the tensors read are views into the mapped file, some of them transposed.
        name: tensor.to(
            device, kept.get(name, dtype or torch.float32), copy=True, memory_format=torch.contiguous_format
        )
        for name, tensor in loaded.items()
    }
    model.load_state_dict(own, strict=True, assign=True)
    return model


def from_config(
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> DecoderModel:
    """Build a model with random weights from the content of a config.json.

    The weights depend on config and seed alone: not on the global random state, the device or, up to rounding, the
    dtype. Raises ModelError as `from_pretrained` does.
    """
    spec, args = resolve(config)
    if getattr(args, "wrapping", None) is not None:
        raise ModelError(
            f"a checkpoint of model_type {config['model_type']!r} has parts that are not trained and have no weights "
            "here; expected a checkpoint to start from, or the config of a text model",
            fix="give model.path, or the content of text_config as model.init",
        )
    model = _blank(spec, args).to_empty(device=device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype or torch.float32)
    initialize(model, std=model.args.initializer_range, seed=seed)
    return model


def blank_model(config: Mapping[str, Any], *, source: Path | None = None) -> DecoderModel:
    """Return the model that the content of a config.json describes, without memory: parameters have shapes only.

    source: the folder of its checkpoint, which an export copies what is not read from.
    """
    wrapped = source is not None and get_wrapper(str(config.get("model_type"))) is not None
    names = SafetensorsFolder(source) if source is not None and wrapped else ()
    return _blank(*resolve(config, names=names, source=source))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json; ModelError when there is none."""
    if not folder.is_dir():
        raise ModelError(
            f"no checkpoint folder at {str(folder)!r}; give a local folder with {CONFIG_FILE} and safetensors files, "
            "or a model of the hub as OWNER/NAME@REVISION"
        )
    try:
        config = untagged(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {folder / CONFIG_FILE}: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / CONFIG_FILE} holds a {type(config).__name__}, expected an object")
    return config


class SafetensorsFolder(Mapping[str, Tensor]):
    """All tensors of a checkpoint folder by their name on disk, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = {file: _open(file) for file in weight_files(folder)}
        self._owner = {name: file for file, handle in self._files.items() for name in handle.keys()}  # noqa: SIM118 - a safetensors handle is not iterable

    def __getitem__(self, name: str) -> Tensor:
        """Tensor on the CPU in its stored dtype."""
        tensor: Tensor = self._files[self._owner[name]].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._owner)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._owner)


class StoredTensor:
    """A tensor of a safetensors file, of which parts can be read."""

    def __init__(self, handle: Any, name: str, folder: SlicedFolder) -> None:
        self._part, self._name, self._folder = handle.get_slice(name), name, folder
        self.shape = torch.Size(self._part.get_shape())

    def read(self, box: Box | None = None) -> Tensor:
        """Return a part, or all; in the stored dtype. Raises ModelError when the file does not give it."""
        try:
            found: Tensor = self._part[box if box is not None else ...]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {self._name}: {error}") from error
        self._folder.bytes_read += found.nbytes
        return found


class SlicedFolder(Mapping[str, StoredTensor]):
    """As `SafetensorsFolder`, for readers of parts."""

    def __init__(self, folder: Path) -> None:
        self._handles = {name: handle for file in weight_files(folder) for name, handle in _named(_open(file))}
        self.bytes_read = 0
        """By all tensors of this folder, so far."""

    def __getitem__(self, name: str) -> StoredTensor:
        """Nothing of it is read yet."""
        return StoredTensor(self._handles[name], name, self)

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._handles)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._handles)


def _named(handle: Any) -> Iterator[tuple[str, Any]]:
    return ((name, handle) for name in handle.keys())  # noqa: SIM118 - a safetensors handle is not iterable


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder. Raises ModelError when there are none, or not all of them."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        try:
            weight_map = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(weight_map.values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{folder / INDEX_FILE} is not a safetensors index: {error!r}") from error
        # The index is data from elsewhere: it may only name files of its own folder.
        outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
        absent = [name for name in names if name not in outside and not (folder / name).is_file()]
        if outside or absent:
            raise ModelError(f"{folder / INDEX_FILE} names files that are not in its folder: {[*outside, *absent]}")
        return [folder / name for name in names]
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    if pickles:
        raise ModelError(
            f"{folder} has only pickled weights ({', '.join(pickles[:3])}), which can run code when loaded; convert "
            "them: transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise ModelError(f"{folder} has no weights: expected {WEIGHTS_FILE} or {INDEX_FILE}")


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} is damaged or not a safetensors file ({error}); download or write it again"
        ) from error


def resolve(
    config: Mapping[str, Any], *, names: Iterable[str] = (), source: Path | None = None
) -> tuple[ModelSpec, BaseModelArgs]:
    """Return the family and the arguments that the content of a config.json names; of a wrapped config those of its
    text model. Raises ModelError.

    names, source: tensors on disk and their folder, which say how a wrapped model is stored.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"config has model_type {model_type!r}, expected a name such as 'qwen3'")
    wrapper = get_wrapper(model_type)
    if wrapper is None:
        spec = get_spec(model_type)
        return spec, spec.args_class.from_hf_config(config)
    inner, wrapping = wrapper.unwrap(config)
    spec = get_spec(inner["model_type"])
    args: Any = spec.args_class.from_hf_config(inner)
    names = list(names)
    if names:
        adapter: Any = spec.state_dict_adapter(args)
        wrapping = wrapping.located(names, own=adapter.names_on_disk(), source=source)
        wrapping = replace(wrapping, open_folder=SafetensorsFolder)
    return spec, replace(args, wrapping=wrapping)


def _blank(spec: ModelSpec, args: BaseModelArgs) -> DecoderModel:
    """Return a model whose parameters have shapes but no memory."""
    with torch.device("meta"):
        model: DecoderModel = spec.model_class(args)
    return model


_MATRICES = (nn.Linear, nn.Embedding, VocabularyHead, Router, Experts, DepthwiseConvolution, BlockDiagonal)


@torch.no_grad()
def initialize(model: nn.Module, *, std: float, seed: int) -> None:
    """Fill every parameter and persistent buffer in place.

    Numbers are drawn in float32 on the CPU, in the order of the parameters. Raises TypeError for a tensor without a
    rule.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for module_name, module in model.named_modules():
        for name, tensor in _own_tensors(module):
            constant = _constant(module, name)
            if constant is not None:
                tensor.fill_(constant)
            elif isinstance(module, _MATRICES):
                tensor.copy_(torch.normal(0.0, std, tensor.shape, generator=generator, device="cpu"))
            elif isinstance(module, LightningAttention):
                tensor.copy_(module.tables()[name])
            elif isinstance(module, GatedDelta | Mamba1 | Mamba2):
                tensor.copy_(_decay(name, torch.rand(tensor.shape, generator=generator, device="cpu")))
            elif isinstance(module, DifferentialHeads):
                tensor.copy_(torch.normal(0.0, 0.1, tensor.shape, generator=generator, device="cpu"))
            elif isinstance(module, RGLRU):
                # Open gates keep between 0.9 and 0.999 of a state (arXiv 2402.19427).
                kept = torch.rand(tensor.shape, generator=generator, device="cpu") * (0.999**2 - 0.9**2) + 0.9**2
                tensor.copy_(torch.expm1(-0.5 * kept.log()).log())
            else:
                full_name = f"{module_name}.{name}" if module_name else name
                raise TypeError(f"no initialisation rule for {full_name} of {type(module).__name__}")


def _decay(name: str, uniform: Tensor) -> Tensor:
    """Return what a parameter of decays starts with: rates from 1 to 16, steps from 0.001 to 0.1 (arXiv 2312.00752)."""
    if name == "A_log":
        return (1 + 15 * uniform).log()
    step = 0.001 * 100**uniform
    return step + (-torch.expm1(-step)).log()


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and persistent buffers that `module` itself holds."""
    parameters = list(module.named_parameters(recurse=False))
    kept = [item for item in module.named_buffers(recurse=False) if item[0] not in module._non_persistent_buffers_set]
    return [*parameters, *kept]


def _constant(module: nn.Module, name: str) -> float | None:
    """Return what a tensor that does not start at random starts with; None for the others."""
    if isinstance(module, RMSNorm):
        return 1.0 - module.offset
    if isinstance(module, LayerNorm):
        return 1.0 - module.offset if name == "weight" else 0.0
    if isinstance(module, Router) and name == "selection_bias":
        return 0.0
    if isinstance(module, XIELU | nn.PReLU):
        # What a new one has: the same in every layer.
        return float(type(module)().state_dict()[name])
    if isinstance(module, GatedNorm) or (isinstance(module, Mamba1 | Mamba2) and name == "D"):
        return 1.0
    if (isinstance(module, SandwichBlock) and name == "output_scale") or isinstance(module, ExpertsBeside):
        return 1.0
    # Sinks start as one more key with a score of zero.
    if isinstance(module, SelfAttention) and name == "sinks":
        return 0.0
    is_bias = name == "bias" or name.endswith("_bias")
    return 0.0 if isinstance(module, _MATRICES) and is_bias else None
