"""The image half of a model of `transformers`: which parameters it has, and features of images, each computed once.

A tower that is never trained gives an image the same features for ever, so they are kept. A trained one is run once per
call for each distinct image, whose gradients add up.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from transformers.utils import ModelOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

    from areal.api import PackedImage
    from areal.models.vision import VisionFormat

    Part = Literal["language", "projector", "tower"]
    VisionPart = Literal["none", "projector", "all"]

_TOWERS: Final = ("visual", "vision_tower")
_PROJECTORS: Final = ("visual.merger", "visual.deepstack_merger_list", "multi_modal_projector")
FEATURE_BYTES: Final = 2**28
"""Features of a frozen tower that are kept, the latest ones."""


@dataclass
class ImageFeatures(ModelOutput):
    """What the body of a model takes in place of pixels."""

    pooler_output: Any = None
    """Of each image: features [placeholders, hidden_size]."""
    deepstack_features: Any = None
    """Of each of the first layers: those of each image; None for models without."""


class Tower:
    """Computes and keeps the features of images of one model. Holds no module itself."""

    def __init__(self, vision: VisionFormat) -> None:
        self.vision = vision
        self.is_frozen = False
        """Whether nothing ever changes its parameters, so that features may be kept."""
        self.num_computed = 0
        """Images that went through the tower."""
        self._kept: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()
        self._changes = 0
        """Of its parameters, when what is kept was computed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tower:
        """Return one that has computed nothing: kept features may be on another device than the copied model."""
        del memo
        copied = Tower(self.vision)
        copied.is_frozen = self.is_frozen
        return copied

    def forget(self) -> None:
        """Drop what is kept; due when the tower was changed in shards, which gathered parameters do not show."""
        self._kept.clear()

    def features(self, body: Any, images: Sequence[PackedImage]) -> ImageFeatures:
        """Return the features of images, in order, by the tower of `body`."""
        changes = sum(parameter._version for name, parameter in body.named_parameters() if is_vision(name))
        if changes != self._changes:
            self._kept.clear()
            self._changes = changes
        found = {image.digest: self._kept[image.digest] for image in images if image.digest in self._kept}
        missing = {image.digest: image.pixels for image in images if image.digest not in found}
        if missing:
            found |= dict(zip(missing, self._computed(body, list(missing.values())), strict=True))
            self.num_computed += len(missing)
        if self.is_frozen:
            self._keep(found)
        parts = list(zip(*(found[image.digest] for image in images), strict=True))
        return ImageFeatures(
            pooler_output=list(parts[0]), deepstack_features=[list(part) for part in parts[1:]] or None
        )

    def _computed(self, body: Any, pixels: list[Tensor]) -> list[tuple[Tensor, ...]]:
        """Features of each image, and what goes into the first layers."""
        found = body.get_image_features(**self.vision.tower_inputs(pixels), return_dict=True)
        return list(zip(found.pooler_output, *(getattr(found, "deepstack_features", None) or ()), strict=True))

    def _keep(self, found: dict[str, tuple[Tensor, ...]]) -> None:
        for digest, parts in found.items():
            # Slices of one large tensor would keep all of it.
            self._kept[digest] = self._kept.get(digest) or tuple(part.detach().clone() for part in parts)
            self._kept.move_to_end(digest)
        size = sum(part.nbytes for parts in self._kept.values() for part in parts)
        while size > FEATURE_BYTES and len(self._kept) > 1:
            size -= sum(part.nbytes for part in self._kept.popitem(last=False)[1])


def freeze_vision(body: nn.Module, train: VisionPart) -> None:
    """Switch off the gradients of the parts of the tower that are not trained."""
    for name, parameter in body.named_parameters():
        if (part := part_of(name)) != "language":
            parameter.requires_grad_(train in ("all", part))


def is_vision(name: str) -> bool:
    """Whether a module or parameter of a body, by its name there, belongs to the tower or its projector."""
    return part_of(name) != "language"


def part_of(name: str) -> Part:
    """Return the part of an image-text model that has a module or parameter, by its name in the body."""
    if any(f"{name}.".startswith(f"{part}.") for part in _PROJECTORS):
        return "projector"
    return "tower" if name.partition(".")[0] in _TOWERS else "language"


def text_cells(cells: Tensor, mask: Tensor | None, placeholder: int) -> Tensor:
    """Return tokens [B, L] with padding that is never taken for an image."""
    return cells if mask is None else cells.masked_fill(mask == 0, int(placeholder == 0))


def axis_positions(
    vision: VisionFormat, lengths: Iterable[int], rows: Sequence[Sequence[tuple[int, int, int]]]
) -> tuple[list[list[list[int]]], list[int]]:
    """Return positions of each sequence [B][3][length], and by how much later ones differ from their columns [B].

    rows: of each sequence, start column, height and width of its images.
    """
    found = [vision.positions(length, images) for length, images in zip(lengths, rows, strict=True)]
    return [axes for axes, _ in found], [shift for _, shift in found]
