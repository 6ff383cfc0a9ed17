"""Rows with images: their placeholders before a run starts, their pixels when a batch is made of them.

    images = image_rows_of(config.model, content, config.images)   # None for a model that reads text only
    dataset = images.place(dataset, "dataset geometry3k_sft")      # `image_places` become tokens
    refs = images.refs([dataset[0], dataset[1]], ["row 0", "row 1"])
    measure = prompt_images_of(config.workflow_options, tokenizer)   # lengths of prompts of RL

How many placeholders an image has follows from what its file declares, so that all rows are measured, and those that
are too long are dealt with, before anything is decoded. Pixels are decoded batch by batch, and have to agree.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from areal.api import ArealError, DataError, ImageRef
from areal.dataset.images import decoded_file, text_ids
from areal.dataset.origins import RowOrigins, origins_of, remember
from areal.dataset.pixels import FinalImages, ImageLimits, declared_size
from areal.dataset.schema import complain
from areal.models.vision import is_image_model, read_vision, vision_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from datasets import Dataset

    from areal.dataset.config import ImageReadingConfig
    from areal.models.vision import VisionFormat
    from areal.trainer.config import ModelConfig

_PLACED = frozenset({"image_places", "image_starts", "image_lengths", "input_ids", "loss_mask"})


class ImageRows:
    """Rows of one run, for one model."""

    def __init__(self, vision: VisionFormat, limits: ImageLimits) -> None:
        self.vision = vision
        self.files = FinalImages(limits, vision.fit)

    def place(self, dataset: Dataset, name: str) -> Dataset:
        """Return a dataset of SFT rows with the tokens of images in `input_ids`, which are not learned, and columns
        `image_starts`, `image_lengths` instead of `image_places`.

        Raises DataError, with rows, for images that cannot be used and for texts with tokens that stand for images.
        """
        found = origins_of(dataset) or RowOrigins(source=name, unit="row", numbers=())
        placed: list[dict[str, list[int]]] = []
        problems: list[tuple[str, str]] = []
        for index, row in enumerate(dataset):
            try:
                placed.append(self._placed(row))
            except DataError as error:
                problems.append((_place(found, index), str(error)))
        complain(found.source, problems)
        made = dataset.remove_columns([column for column in dataset.column_names if column in _PLACED])
        for column in placed[0]:
            made = made.add_column(column, [row[column] for row in placed])
        return remember(made, replace(found, lengths=[len(row["input_ids"]) for row in placed]))

    def refs(self, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> list[tuple[ImageRef, ...]]:
        """Return the images of rows that were placed; files are decoded in threads. places: of the rows, for messages.

        Raises DataError for a file that is broken behind its header.
        """
        submitted = [[self.files.submit(content) for content in _contents(row)] for row in rows]
        found: list[tuple[ImageRef, ...]] = []
        for row, futures, place in zip(rows, submitted, places, strict=True):
            spans = zip(row.get("image_starts") or (), row.get("image_lengths") or (), strict=True)
            refs: list[ImageRef] = []
            for number, (future, (start, length)) in enumerate(zip(futures, spans, strict=True)):
                try:
                    image = future.result()
                except DataError as error:
                    raise DataError(f"{place}: images[{number}]: {error}", where=place) from error
                if self.vision.num_placeholders(image.height, image.width) != length:
                    raise DataError(
                        f"{place}: images[{number}] has {image.height} x {image.width} pixels, not the size that its "
                        f"{length} placeholders were made for",
                        where=place,
                    )
                refs.append(ImageRef(image=image, start=start, length=length))
            found.append(tuple(refs))
        return found

    def measure(self, dataset: Dataset, tokenizer: Any, name: str) -> Dataset:
        """Return a dataset of RL rows that remembers how long prompts are with the tokens of their images.

        A row whose images cannot be used has the length of its text: the fault of its episode says why.
        """
        if "images" not in dataset.column_names:
            return dataset
        found = origins_of(dataset) or RowOrigins(source=name, unit="row", numbers=())
        lengths = list(found.lengths)
        if len(lengths) != len(dataset):
            lengths = [None] * len(dataset)
            for index, row in enumerate(dataset):
                with suppress(DataError):  # a prompt that only its workflow can read
                    lengths[index] = len(text_ids(row, tokenizer))
        for index, files in enumerate(dataset["images"]):
            try:
                sizes = self._sizes({"images": files})
            except DataError:
                continue
            length = lengths[index]
            if length is not None:
                lengths[index] = length + sum(len(self.vision.block(*size)[0]) for size in sizes)
        return remember(dataset, replace(found, lengths=lengths))

    def _sizes(self, row: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Return final height and width of each image of a row, from what its file declares."""
        sizes: list[tuple[int, int]] = []
        for number, content in enumerate(_contents(row)):
            try:
                sizes.append(self.vision.final_size(*declared_size(content, self.files.limits)))
            except DataError as error:
                raise DataError(f"images[{number}]: {error}") from error
        return sizes

    def _placed(self, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return the columns of a row that change."""
        ids, mask = row["input_ids"], row["loss_mask"]
        if wrong := self.vision.refused.keys() & {*ids}:
            token = min(wrong)
            raise DataError(f"token {token} of its text is {self.vision.refused[token]} of the config; remove it")
        sizes = self._sizes(row)
        bounds = [0, *(row.get("image_places") or ()), len(ids)]
        pieces = list(pairwise(bounds))
        placed, spans = self.vision.place([ids[begin:end] for begin, end in pieces], sizes)
        learned: list[int] = []
        for number, (begin, end) in enumerate(pieces):
            if number:
                learned += [0] * len(self.vision.block(*sizes[number - 1])[0])
            learned += mask[begin:end]
        return {
            "input_ids": placed,
            "loss_mask": learned,
            "image_starts": [start for start, _ in spans],
            "image_lengths": [length for _, length in spans],
        }


def image_rows_of(model: ModelConfig, content: Mapping[str, Any], reading: ImageReadingConfig) -> ImageRows | None:
    """Return what deals with images of rows for this model; None for one that reads text only.

    content: of its config.json. Raises ModelError for a model whose way of reading images is not known, ConfigError for
    limits that it cannot keep.
    """
    if model.implementation != "transformers" or not is_image_model(str(content.get("model_type"))):
        return None
    most = reading.max_pixels
    vision = read_vision(model.path, max_pixels=most) if model.path else vision_format(content, max_pixels=most)
    if vision is None:
        return None
    limits = ImageLimits(
        max_file_bytes=reading.max_file_bytes,
        max_file_pixels=reading.max_file_pixels,
        first_frame=reading.first_frame,
    )
    return ImageRows(vision, limits)


def prompt_images_of(options: Mapping[str, Any], tokenizer: Any) -> Callable[[Dataset, str], Dataset] | None:
    """Return what measures prompts as a workflow with these options reads their images; None where it reads none."""
    processor = options.get("processor")
    if processor is None:
        return None
    most = options.get("max_pixels")
    try:
        if isinstance(processor, str):
            vision = read_vision(processor, max_pixels=most)
        else:
            vision = vision_format(processor, max_pixels=most)
    except ArealError:
        return None  # what is wrong is said by the workflow, which needs it
    if vision is None:
        return None
    given = {item.name: options[item.name] for item in fields(ImageLimits) if item.name in options}
    rows = ImageRows(vision, ImageLimits(**given))
    return lambda dataset, name: rows.measure(dataset, tokenizer, name)


def _contents(row: Mapping[str, Any]) -> Iterator[bytes]:
    for number, value in enumerate(row.get("images") or ()):
        yield decoded_file(number, value)


def _place(origins: RowOrigins, index: int) -> str:
    return f"{origins.unit} {origins.numbers[index]}" if index < len(origins.numbers) else f"row {index}"
