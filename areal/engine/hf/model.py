"""A model of `transformers` as an `areal.api.CausalModel`: packed tokens in, hidden states and logits out.

Inside, sequences are padded on the right to rectangles, those of similar length together. Packing them into one row
would need attention that knows where documents end, which only some architectures of `transformers` have and none
announces; right padding is safe for every causal model, since no token sees what comes after it, and positions count
from 0 in each row by themselves.

The vocabulary projection is that of the model itself, with whatever it does to logits: the model is run with its body
replaced by given states. So logits exist in slices only, as for our own families.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from transformers.utils import ModelOutput

from areal.api import CheckpointError, ModelError
from areal.engine.hf.pixels import Tower, axis_positions, freeze_vision, is_vision, text_cells
from areal.models.blocks.padded_attention import MAX_PADDING_RATIO, make_rectangle, restoring_order
from areal.models.saving import CONFIG_FILE, carry_over, check_replaceable
from areal.utils.atomic import atomic_directory, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from areal.api import AttentionBackend, PackedImage
    from areal.engine.hf.pixels import VisionPart
    from areal.models.parallel.apply import Sharding
    from areal.models.parallel.plan import ParallelPlan
    from areal.models.vision import VisionFormat

_LENGTH_DEPENDENT_ROPE: Final = frozenset({"dynamic", "longrope"})
_MAX_IMAGE_PADDING: Final = 1 / 0.85
"""Cells for each token where rows may have images, whose numbers differ by many tokens."""
_PROBE_TOKENS: Final = 7
_PROBE_TOLERANCE: Final = 1e-4


@dataclass(frozen=True, kw_only=True)
class HuggingFaceArgs:
    """What engines ask about a model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int


class HuggingFaceModel(nn.Module):
    """Wraps `inner`, an AutoModelForCausalLM, or an AutoModelForImageTextToText with what its images become.

    Parameters are named "inner." and what `transformers` calls them.
    """

    def __init__(self, inner: Any, vision: VisionFormat | None = None) -> None:
        """Wrap `inner`. Raises ModelError for a model whose vocabulary projection cannot be separated from its body."""
        super().__init__()
        self.vision = vision
        """None for a model that reads text only."""
        self.tower = None if vision is None else Tower(vision)
        config = inner.config.get_text_config()
        self.args = HuggingFaceArgs(
            model_type=inner.config.model_type,
            vocab_size=inner.get_input_embeddings().weight.shape[0],
            hidden_size=config.hidden_size,
            max_position_embeddings=getattr(config, "max_position_embeddings", None) or 1 << 30,
        )
        self.inner = inner
        self.sharding: Sharding | None = None
        self.layers_of: dict[int, tuple[str, ...]] = {}
        """Of a part of a pipeline: the layers of each of its pieces, by name."""
        self.last_piece = 0
        self.has_length_dependent_positions = _rope_type(config) in _LENGTH_DEPENDENT_ROPE
        self.rebuild_head()
        self._check_head()

    @property
    def length_limit(self) -> int:
        """0: no two sequences share the states of what they have in common."""
        return 0

    @property
    def embed_tokens(self) -> nn.Module | None:
        """Of the input; None in parts of a pipeline that do not have it."""
        found: nn.Module = self.inner.get_input_embeddings()
        return None if isinstance(found, nn.Identity) else found

    @property
    def lm_head(self) -> nn.Module | None:
        """None where the projection is the embedding's weight."""
        head: Any = self.inner.get_output_embeddings()
        embedding = self.embed_tokens
        return None if head is None or (embedding is not None and head.weight is embedding.weight) else head

    @property
    def head_transform(self) -> None:
        """Whatever there is belongs to `inner`."""
        return

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
    ) -> Tensor:
        """Logits [T, vocab_size]; see `CausalModel.forward`."""
        states = self.hidden(tokens, positions, cu_seqlens, max_seqlen, tree_attn_meta, attention=attention)
        return self.project(states)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend | None = None,
        images: Sequence[PackedImage] = (),
        piece: int | None = None,
        received: Tensor | None = None,
        routes: None = None,
    ) -> Tensor:
        """Output of the body [T, hidden_size]; see `CausalModel.hidden`. Sequences start at position 0.

        images: those of the tokens, which have all placeholders of each. attention, piece, received: where the model is
        divided, see `packed_hidden`. routes: never recorded of such a model.
        """
        if attention is not None and self.sharding is not None and self.sharding.plan.meshes is not None:
            from areal.engine.hf.divided import packed_hidden

            return packed_hidden(
                self,
                tokens,
                positions,
                cu_seqlens,
                cp=self.sharding.plan.meshes.group("cp"),
                attention=attention,
                images=images,
                piece=piece,
                received=received,
            )
        if attention is not None or tree_attn_meta is not None:
            raise ModelError("a model of transformers has its own attention; pass attention=None, tree_attn_meta=None")
        bounds = cu_seqlens.tolist()
        spans = [(start, end - start) for start, end in itertools.pairwise(bounds) if end > start]
        ratio = MAX_PADDING_RATIO if self.vision is None else _MAX_IMAGE_PADDING
        groups = _group(spans, exact=self.has_length_dependent_positions, ratio=ratio)
        num_blanks = self._num_rectangles(len(groups), tokens.device) - len(groups)
        blank = tokens.new_full((1,), 0 if self.vision is None else int(self.vision.placeholder == 0))
        parts = [self._run(tokens, group, images) for group in groups]
        parts += [self._run(blank, [(0, 1)], ()) for _ in range(num_blanks)]
        states = torch.cat(parts)[: tokens.shape[0]]
        order = restoring_order(groups, tokens.device)
        return states if order is None else states.index_select(0, order)

    def project(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits, [..., hidden_size] -> [..., vocab_size]; includes everything the model does to them."""
        head, body = self._head
        flat = hidden.reshape(1, -1, hidden.shape[-1])
        body.states = flat
        try:
            ids = torch.zeros(flat.shape[:2], dtype=torch.int64, device=hidden.device)
            logits: Tensor = head(input_ids=ids, use_cache=False, return_dict=True).logits
        finally:
            body.states = None
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Whether blocks drop their activations and recompute them in the backward pass."""
        # Older versions know the second name only.
        kind = "activation" if hasattr(self.inner, "activation_checkpointing_enable") else "gradient"
        if not enabled:
            getattr(self.inner, f"{kind}_checkpointing_disable")()
            return
        options = {f"{kind}_checkpointing_kwargs": {"use_reentrant": False}}
        getattr(self.inner, f"{kind}_checkpointing_enable")(**options)
        # transformers recomputes in training mode only; nothing else depends on it, since dropout is 0.
        self.inner.train()

    def freeze_vision(self, train: VisionPart) -> None:
        """Leave the tower, or all of it but the projector, as it is from now on; no effect on a model of text."""
        if self.tower is not None:
            freeze_vision(self.inner.base_model, train)
            self.tower.is_frozen = train == "none"

    def read_pretrained(self, path: str | Path, *, dtype: torch.dtype, device: str) -> HuggingFaceModel:
        """Return the same model with the weights of a checkpoint folder. Raises ModelError when they do not fit."""
        options: dict[str, Any] = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
        try:
            inner = type(self.inner).from_pretrained(path, config=self.inner.config, dtype=dtype, **options)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"transformers cannot load {path}: {error}") from error
        return HuggingFaceModel(inner.to(device), self.vision)

    def changed_only(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Leave out of new weights what a frozen tower has already, so that features of images stay as they are."""
        if self.tower is None or not self.tower.is_frozen:
            return state
        prefix = f"inner.{self.inner.base_model_prefix}."
        own = {
            name: value
            for name, value in self.named_parameters()
            if name.startswith(prefix) and is_vision(name.removeprefix(prefix)) and not value.requires_grad
        }
        return {
            name: value
            for name, value in state.items()
            if name not in own or not torch.equal(own[name], value.to(own[name].device, own[name].dtype))
        }

    def make_decode_batch(self, **options: Any) -> Any:
        """Make what `EmbeddedEngine` decodes with; options as of its own. Raises ModelError for a model that cannot
        continue a sequence from a cache."""
        from areal.engine.hf.decoding import RectangleBatch

        if self.has_length_dependent_positions:
            raise ModelError(
                f"positions of {type(self.inner).__name__} change with the length of a sequence (rope type "
                f"{_rope_type(self.inner.config.get_text_config())}), which a cache cannot follow; sample from a server"
            )
        return RectangleBatch(self, **options)

    def parallelize(self, plan: ParallelPlan) -> None:
        """Apply `plan` in place. Raises ModelError where that splits what this type of model does not allow."""
        from areal.engine.hf.parallel import shard

        self.sharding = shard(self, plan)

    def take_part(self, pieces: Sequence[int], number: int, *, projects: bool) -> HuggingFaceModel:
        """Return some pieces; see `areal.models.parallel.pipeline.take_part`."""
        from areal.engine.hf.divided import part_of

        return part_of(self, pieces, number, projects=projects)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a checkpoint folder that `transformers` loads, replacing an existing one; whole or not at all."""
        write_folder(path, self.inner.save_pretrained)

    def save_tensors(self, tensors: Mapping[str, Tensor], path: str | Path) -> None:
        """`save_pretrained` with the weights of a model whose own are in shards, by the names that they have here."""
        with torch.device("meta"):
            blank = type(self.inner)(self.inner.config)
        prefix = "inner."
        blank.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, assign=True)
        blank.tie_weights()
        blank.generation_config = self.inner.generation_config
        write_folder(path, blank.save_pretrained)

    def rebuild_head(self) -> None:
        """Look at `inner` again; due when modules of it were replaced."""
        prefix = self.inner.base_model_prefix
        if prefix not in self.inner._modules or self.inner.get_output_embeddings() is None:
            raise ModelError(
                f"{type(self.inner).__name__} has no body {prefix!r} with a vocabulary projection after it; only "
                f"decoders that AutoModelForCausalLM makes of one can be trained"
            )
        head, body = copy.copy(self.inner), _GivenStates()
        head.__dict__["_modules"] = {**self.inner._modules, prefix: body}
        # In a tuple, so that it is no part of this module: its parameters are those of `inner`.
        self._head = (head, body)

    def _num_rectangles(self, own: int, device: torch.device) -> int:
        """How often the body is run: it communicates, so equally often on every rank that shares the parameters."""
        if self.sharding is None or self.sharding.plan.meshes is None:
            return own
        from areal.engine.hf.parallel import largest_over

        return largest_over(self.sharding.plan.meshes.group("data"), own, device)

    def _run(self, tokens: Tensor, spans: list[tuple[int, int]], images: Sequence[PackedImage]) -> Tensor:
        """States of the tokens in the spans, in their order, [tokens of them, hidden_size]."""
        rectangle = make_rectangle(spans, tokens.shape[0], tokens.device)
        cells = rectangle.gather(tokens)
        mask = None
        if rectangle.kept is not None:
            mask = torch.zeros(cells.numel(), dtype=torch.int64, device=tokens.device)
            mask = mask.index_fill(0, rectangle.kept, 1).view(cells.shape)
        body = self.inner.base_model
        options: dict[str, Any] = {}
        if self.vision is not None:
            cells = text_cells(cells, mask, self.vision.placeholder)
            rows = [[image for image in images if start <= image.start < start + size] for start, size in spans]
            options = self._image_options(rows, spans, cells)
        states: Tensor = body(
            input_ids=cells, attention_mask=mask, use_cache=False, return_dict=True, **options
        ).last_hidden_state
        flat = states.flatten(0, 1)
        return flat if rectangle.kept is None else flat.index_select(0, rectangle.kept)

    def _image_options(
        self, rows: list[list[PackedImage]], spans: list[tuple[int, int]], cells: Tensor
    ) -> dict[str, Any]:
        """Features and positions of rows that are padded on the right; {} without an image."""
        assert self.vision is not None, "text has no images"
        assert self.tower is not None, "what has images has a tower"
        own = [image for row in rows for image in row]
        if not own:
            return {}
        options: dict[str, Any] = {"mm_encoder_outputs": {"image": self.tower.features(self.inner.base_model, own)}}
        if self.vision.has_grid:
            places = [
                [(image.start - start, *image.pixels.shape[:2]) for image in row]
                for row, (start, _) in zip(rows, spans, strict=True)
            ]
            # Padding counts on as text does; nothing sees it.
            axes, _ = axis_positions(self.vision, [cells.shape[1]] * len(rows), places)
            options["position_ids"] = torch.tensor(axes, device=cells.device).transpose(0, 1)
        return options

    @torch.no_grad()
    def _check_head(self) -> None:
        count = min(_PROBE_TOKENS, self.args.vocab_size)
        tokens = torch.arange(count, device=self.inner.get_input_embeddings().weight.device)
        bounds = torch.tensor([0, count], dtype=torch.int32, device=tokens.device)
        found = self(tokens, tokens, bounds, count).float()
        expected = self.inner(input_ids=tokens[None], use_cache=False).logits[0].float()
        error = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
        if not error < _PROBE_TOLERANCE:
            raise ModelError(
                f"{type(self.inner).__name__}: body and vocabulary projection one after the other give other logits "
                f"than the whole model (relative error {float(error):.1e}), so it cannot be trained in slices"
            )


class _GivenStates(nn.Module):
    """Stands for the body of a model: returns the states it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.states: Tensor | None = None

    @property
    def decoder(self) -> nn.Module:
        """Some models go past their body to this part of it."""
        return self

    def forward(self, *_: Any, **__: Any) -> Any:
        return _Output(last_hidden_state=self.states)


@dataclass
class _Output(ModelOutput):
    """States and nothing else: whatever else a head asks a body for is None."""

    last_hidden_state: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


def write_folder(path: str | Path, write: Callable[[Path], Any], *, mark: str = CONFIG_FILE) -> None:
    """Have `write(folder)` fill the checkpoint folder `path`; whole or not at all, other files of an old one are kept.

    mark: file by which an existing folder of this kind is known, and may be replaced. Raises CheckpointError when
    `path` holds something else, or cannot be written.
    """
    target = Path(path).resolve()
    check_replaceable(target, mark=mark)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, name=target.name)
        with atomic_directory(target, replace=True) as staging:
            write(staging)
            carry_over(target, staging)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {target}: {error}") from error


def _group(spans: list[tuple[int, int]], *, exact: bool, ratio: float) -> list[list[tuple[int, int]]]:
    """Sequences that are padded to one rectangle: all, unless it had more than `ratio` cells for each token; then those
    of similar length. exact: only those of equal length, for models in which positions are turned by what the longest
    row of a batch needs."""
    longest, total = max(length for _, length in spans), sum(length for _, length in spans)
    if not exact and len(spans) * longest <= ratio * total:
        return [spans]
    if exact or ratio == MAX_PADDING_RATIO:
        groups: dict[int, list[tuple[int, int]]] = {}
        for span in spans:
            groups.setdefault(span[1] if exact else (span[1] - 1).bit_length(), []).append(span)
        return list(groups.values())
    rectangles: list[list[tuple[int, int]]] = []
    tokens = 0
    for span in sorted(spans, key=lambda each: (-each[1], each[0])):
        tokens += span[1]
        if not rectangles or (len(rectangles[-1]) + 1) * rectangles[-1][0][1] > ratio * tokens:
            rectangles.append([])
            tokens = span[1]
        rectangles[-1].append(span)
    return [sorted(rectangle) for rectangle in rectangles]


def _rope_type(config: Any) -> str:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(parameters.get("rope_type", parameters.get("type", "")))
