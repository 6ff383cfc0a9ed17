"""Reads what a model makes of images: their final sizes, placeholder tokens, positions, and what the tower is given.

    vision = read_vision("checkpoints/qwen2.5-vl")       # None for a model that reads text only
    image = vision.fit(decode_image(content, limits))    # resized once, for good
    ids = vision.block(image.height, image.width)        # start token, placeholders, end token
    inputs = vision.tower_inputs([pixels])               # pixel_values, image_grid_thw

Two kinds of models are read: the Qwen-VL line (images keep their proportions; rotary positions in three axes) and LLaVA
with a CLIP or SigLIP tower (all images have one size). Everything else is refused by its `model_type`. Resizing is that
of the Pillow classes of `transformers`, bit for bit: other classes give other pixels, and which of them its automatic
choice takes depends on what happens to be installed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError, ModelError
from areal.hub.download import METADATA, local_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_HALF: Final = (0.5, 0.5, 0.5)
_BICUBIC: Final = 3
"""Number of the filter in preprocessor_config.json, which is Pillow's."""
PATCH_GRIDS: Final = frozenset({"qwen2_5_vl", "qwen2_vl", "qwen3_vl"})
ONE_SIZE: Final = frozenset({"llava"})
SEES_AHEAD: Final = frozenset({"gemma3", "paligemma"})
"""Types in which a token of an image, or of a whole prompt, attends to later ones."""
_TOWERS: Final = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Towers of LLaVA, and how many tokens they put before those of patches."""


@dataclass(frozen=True, kw_only=True)
class VisionFormat:
    """What an image becomes in one model."""

    model_type: str
    placeholder: int
    """Token id that stands for a piece of an image."""
    start: int | None
    """Token id before the placeholders of an image; None for none."""
    end: int | None
    refused: Mapping[int, str]
    """Token ids that text must not hold, and the config fields that say so."""
    patch: int
    """Side of a patch, in pixels."""
    merge: int
    """Patches along one side of what becomes a token."""
    frames: int
    """Copies of a patch that the tower wants; 0 for whole images instead of patches."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int
    """Pillow's number of the filter."""
    size: tuple[int, int]
    """Final height and width; with a grid the fewest and the most pixels."""
    crops: bool = False
    """Cut out the middle after the shorter side was resized."""
    extra_tokens: int = 0
    """Placeholders of an image beyond one per patch; may be negative."""

    @property
    def has_grid(self) -> bool:
        """Whether images keep their proportions, and their tokens have rows and columns."""
        return self.frames > 0

    def final_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image of this size gets. Raises DataError when it has none."""
        if not self.has_grid:
            return self.size
        if max(height, width) > 200 * min(height, width):
            raise DataError(f"{width} x {height} pixels: one side is over 200 times the other")
        side, (fewest, most) = self.patch * self.merge, self.size
        rows, columns = round(height / side) * side, round(width / side) * side
        if rows * columns > most:
            scale = math.sqrt(height * width / most)
            return _both(lambda length: max(side, math.floor(length / scale / side) * side), height, width)
        if rows * columns < fewest:
            scale = math.sqrt(fewest / (height * width))
            return _both(lambda length: math.ceil(length * scale / side) * side, height, width)
        return rows, columns

    def fit(self, picture: Any) -> Any:
        """Return a Pillow image of mode RGB in its final size."""
        width, height = picture.size
        rows, columns = self.final_size(height, width)
        if not self.crops:
            return picture if (width, height) == (columns, rows) else picture.resize((columns, rows), self.resample)
        short = min(rows, columns)
        larger = (max(short, int(short * width / height)), max(short, int(short * height / width)))
        resized = picture if picture.size == larger else picture.resize(larger, self.resample)
        left, top = (larger[0] - columns) // 2, (larger[1] - rows) // 2
        return resized.crop((left, top, left + columns, top + rows))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tokens of an image of this final size."""
        side = self.patch * self.merge
        return height // side, width // side

    def num_placeholders(self, height: int, width: int) -> int:
        """Return the number of placeholder tokens of an image of this final size."""
        rows, columns = self.grid(height, width)
        return rows * columns + self.extra_tokens

    def block(self, height: int, width: int) -> tuple[list[int], int]:
        """Return the token ids in the place of an image of this final size, and how many precede its placeholders."""
        before = [] if self.start is None else [self.start]
        after = [] if self.end is None else [self.end]
        return [*before, *[self.placeholder] * self.num_placeholders(height, width), *after], len(before)

    def place(
        self, pieces: Sequence[Sequence[int]], sizes: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token ids of a text with an image between each two of its pieces, and of every image the column of its
        first placeholder and how many it has.

        pieces: token ids, one more than images. sizes: final height and width of each image.
        """
        ids = list(pieces[0])
        spans: list[tuple[int, int]] = []
        for (height, width), piece in zip(sizes, pieces[1:], strict=True):
            block, before = self.block(height, width)
            spans.append((len(ids) + before, self.num_placeholders(height, width)))
            ids += [*block, *piece]
        return ids, spans

    def positions(self, length: int, images: Iterable[tuple[int, int, int]]) -> tuple[list[list[int]], int]:
        """Return the rotary positions of one sequence in three axes (time, rows, columns), [3][length], and by how much
        the position of every later token differs from its column.

        images: start column, final height and width of each. Text counts on alike in all axes; an image takes rows and
        columns from the present position p, and what follows starts at p + max(rows, columns).
        """
        axes: list[list[int]] = [[], [], []]
        position = 0
        for start, height, width in images:
            text = start - len(axes[0])
            for axis in axes:
                axis.extend(range(position, position + text))
            position += text
            rows, columns = self.grid(height, width)
            axes[0].extend([position] * (rows * columns))
            axes[1].extend(position + row for row in range(rows) for _ in range(columns))
            axes[2].extend(position + column for _ in range(rows) for column in range(columns))
            position += max(rows, columns)
        rest = length - len(axes[0])
        for axis in axes:
            axis.extend(range(position, position + rest))
        return axes, position + rest - length

    def tower_inputs(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the inputs of the tower for images uint8 [H, W, 3] of final size, on their device.

        `pixel_values` float32: with a grid patches [P, values], and `image_grid_thw` [images, 3]; else [images, 3, H,
        W].
        """
        import torch

        mean, std = (torch.tensor(values, device=images[0].device)[:, None, None] for values in (self.mean, self.std))
        normal = [((image.permute(2, 0, 1).float() / 255) - mean) / std for image in images]
        if not self.has_grid:
            return {"pixel_values": torch.stack(normal)}
        grids = [[1, image.shape[1] // self.patch, image.shape[2] // self.patch] for image in normal]
        return {
            "pixel_values": torch.cat([self._patches(image) for image in normal]),
            "image_grid_thw": torch.tensor(grids, device=images[0].device),
        }

    def _patches(self, image: Tensor) -> Tensor:
        """Patches [P, 3 * frames * patch * patch] of an image [3, H, W], those of one token side by side."""
        merge, patch = self.merge, self.patch
        rows, columns = (size // patch // merge for size in image.shape[1:])
        cut = image.reshape(3, rows, merge, patch, columns, merge, patch).permute(1, 4, 2, 5, 0, 3, 6)
        copies = cut.unsqueeze(5).expand(*cut.shape[:5], self.frames, *cut.shape[5:])
        return copies.reshape(rows * columns * merge * merge, -1)


def _both(function: Callable[[int], int], height: int, width: int) -> tuple[int, int]:
    return function(height), function(width)


def is_image_model(model_type: str) -> bool:
    """Whether images of this type of model are known here; others, with or without images, are models of text."""
    return model_type in PATCH_GRIDS | ONE_SIZE


def read_vision(path: str, *, max_pixels: int | None = None) -> VisionFormat | None:
    """Return what the checkpoint folder or hub name `path` says of images; None when its model reads text only.

    Raises ModelError for a model whose way of reading images is not known.
    """
    folder = local_folder(path, METADATA)
    config = _content(folder / "config.json")
    processor = _content(folder / "preprocessor_config.json")
    processor = processor or _content(folder / "processor_config.json").get("image_processor", {})
    return vision_format(config, processor, max_pixels=max_pixels)


def vision_format(
    config: Mapping[str, Any], processor: Mapping[str, Any] | None = None, *, max_pixels: int | None = None
) -> VisionFormat | None:
    """Return what the contents of config.json and preprocessor_config.json say; None for a model of text.

    max_pixels: of a final image, below what the processor allows. Raises ModelError, see `read_vision`, and ConfigError
    for a limit that a model with one size cannot keep.
    """
    kind = str(config.get("model_type", ""))
    if "vision_config" not in config:
        return None
    if kind in SEES_AHEAD:
        raise ModelError(
            f"tokens of one image see each other in both directions in a {kind!r} model; sampling from a cache and "
            f"training here let a token see only what comes before it, so the numbers would be of another model. Rows "
            f"of text can be used; for images take one of {', '.join(sorted(PATCH_GRIDS | ONE_SIZE))}"
        )
    if not is_image_model(kind):
        known = ", ".join(sorted(PATCH_GRIDS | ONE_SIZE))
        raise ModelError(f"how a {kind!r} model reads images is not known here; known are {known}")
    settings = dict(processor or {})
    whole = _whole(config)
    if kind in PATCH_GRIDS:
        return _patch_grid(kind, whole, settings, max_pixels)
    if max_pixels is not None:
        raise ConfigError(f"vision.max_pixels: all images of a {kind} model have one size; leave it out")
    return _one_size(kind, whole, settings)


def _patch_grid(
    kind: str, config: Mapping[str, Any], settings: Mapping[str, Any], max_pixels: int | None
) -> VisionFormat:
    tower = config["vision_config"]
    patch, merge = int(tower.get("patch_size", 14)), int(tower.get("spatial_merge_size", 2))
    frames = int(tower.get("temporal_patch_size", 2))
    wanted = {"patch_size": patch, "merge_size": merge, "temporal_patch_size": frames}
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise ModelError(f"{kind}: the tower has {name} {value}, the image processor {settings[name]}")
    size = settings.get("size", {})
    side = patch * merge
    fewest = int(size.get("shortest_edge") or settings.get("min_pixels") or 4 * side * side)
    most = int(size.get("longest_edge") or settings.get("max_pixels") or 1280 * side * side)
    most = most if max_pixels is None else min(most, max_pixels)
    if not side * side <= fewest <= most:
        raise ConfigError(f"{kind}: images of {fewest} to {most} pixels, expected at least {side * side}, and a range")
    ids = {name: config[name] for name in ("image_token_id", "vision_start_token_id", "vision_end_token_id")}
    fields = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return VisionFormat(
        model_type=kind,
        placeholder=ids["image_token_id"],
        start=ids["vision_start_token_id"],
        end=ids["vision_end_token_id"],
        refused={config[name]: name for name in fields[:2] if name in config},
        patch=patch,
        merge=merge,
        frames=frames,
        size=(min(fewest, most), most),
        **_colours(settings, _HALF if kind == "qwen3_vl" else _CLIP_MEAN, _HALF if kind == "qwen3_vl" else _CLIP_STD),
    )


def _one_size(kind: str, config: Mapping[str, Any], settings: Mapping[str, Any]) -> VisionFormat:
    tower = config["vision_config"]
    tower_kind = tower.get("model_type", "clip_vision_model")
    if tower_kind not in _TOWERS:
        raise ModelError(f"{kind} with a tower of type {tower_kind!r}; known are {', '.join(sorted(_TOWERS))}")
    if settings.get("do_pad"):
        raise ModelError(f"{kind}: an image processor with do_pad=true is not known here")
    side, patch = int(tower.get("image_size", 336)), int(tower.get("patch_size", 14))
    size, crop = settings.get("size", {"height": side, "width": side}), settings.get("crop_size", {})
    crops = "shortest_edge" in size
    if crops and not settings.get("do_center_crop", True):
        raise ModelError(f"{kind}: an image processor that resizes one side and crops nothing gives images of any size")
    final = [crop.get(name, side) if crops else size.get(name) for name in ("height", "width")]
    if final != [side, side] or (crops and size["shortest_edge"] != side):
        raise ModelError(f"{kind}: the tower reads {side} x {side} pixels, its image processor gives {size}, {crop}")
    clip = tower_kind == "clip_vision_model"
    before = _TOWERS[tower_kind] - (config.get("vision_feature_select_strategy", "default") == "default")
    name = "image_token_id" if "image_token_id" in config else "image_token_index"
    return VisionFormat(
        model_type=kind,
        placeholder=config[name],
        start=None,
        end=None,
        refused={config[name]: name},
        patch=patch,
        merge=1,
        frames=0,
        size=(side, side),
        crops=crops,
        extra_tokens=before,
        **_colours(settings, _CLIP_MEAN if clip else _HALF, _CLIP_STD if clip else _HALF),
    )


def _colours(settings: Mapping[str, Any], mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if settings.get(name, True) is False:
            raise ModelError(f"the image processor has {name}=false, which is not known here")
    if not math.isclose(settings.get("rescale_factor", 1 / 255), 1 / 255):
        raise ModelError(f"the image processor has rescale_factor {settings['rescale_factor']}, expected 1/255")
    return {
        "mean": tuple(settings.get("image_mean", mean)),
        "std": tuple(settings.get("image_std", std)),
        "resample": int(settings.get("resample", _BICUBIC)),
    }


def _whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the values that a file leaves out since they are those of every such model."""
    from transformers import AutoConfig

    fields = dict(config)
    found: dict[str, Any] = AutoConfig.for_model(fields.pop("model_type"), **fields).to_dict()
    return found


def _content(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found
