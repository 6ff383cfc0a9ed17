"""Images of padded batches: collected from records, chosen by rows, cut out of micro-batches. Pixels move, nothing is
computed from them.

A batch has each distinct image once (`areal.api.BatchImages`). Two images with one digest but other sizes are a defect
and refused; equal digests are equal pixels.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from areal.api import BatchImages, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import Image, ImageRef


def collate_images(rows: Sequence[Sequence[ImageRef]]) -> BatchImages | None:
    """Return the images of all rows, each distinct one once in order of first appearance; None when there is none.

    Raises DataError for one digest with two sizes.
    """
    known: dict[str, int] = {}
    distinct: list[Image] = []
    places: list[tuple[int, int, int, int]] = []
    for row, refs in enumerate(rows):
        for ref in sorted(refs, key=lambda item: item.start):
            number = known.setdefault(ref.image.digest, len(distinct))
            if number == len(distinct):
                distinct.append(ref.image)
            elif distinct[number].pixels.shape != ref.image.pixels.shape:
                raise DataError(
                    f"row {row}: image {ref.image.digest} has {ref.image.height} x {ref.image.width} pixels here and "
                    f"{distinct[number].height} x {distinct[number].width} in another row"
                )
            places.append((number, row, ref.start, ref.length))
    if not places:
        return None
    # `torch.tensor` copies, so that nobody can write to the image through the batch.
    flat = [torch.tensor(image.pixels).flatten() for image in distinct]
    columns = torch.tensor(places, dtype=torch.int64).T.contiguous()
    return BatchImages(
        pixels=torch.cat(flat),
        offsets=_offsets([part.numel() for part in flat]),
        sizes=torch.tensor([[image.height, image.width] for image in distinct], dtype=torch.int64),
        digests=tuple(image.digest for image in distinct),
        index=columns[0],
        row=columns[1],
        start=columns[2],
        length=columns[3],
    )


def select_images(images: BatchImages, rows: Sequence[int]) -> BatchImages | None:
    """Return the images of the given rows, which get the numbers 0, 1, ...; None when they have none.

    Distinct images that no chosen row has are left out.
    """
    found: dict[int, list[int]] = {}
    for place, row in enumerate(images.row.tolist()):
        found.setdefault(row, []).append(place)
    chosen = [(place, number) for number, row in enumerate(rows) for place in found.get(row, ())]
    if not chosen:
        return None
    device = images.row.device
    places = torch.tensor([place for place, _ in chosen], device=device)
    renumbered: dict[int, int] = {}
    index = [renumbered.setdefault(number, len(renumbered)) for number in images.index[places].tolist()]
    kept = list(renumbered)
    parts = [images.pixels_of(number).flatten() for number in kept]
    return BatchImages(
        pixels=torch.cat(parts),
        offsets=_offsets([part.numel() for part in parts]).to(device),
        sizes=images.sizes[kept],
        digests=tuple(images.digests[number] for number in kept),
        index=torch.tensor(index, dtype=torch.int64, device=device),
        row=torch.tensor([number for _, number in chosen], dtype=torch.int64, device=device),
        start=images.start[places],
        length=images.length[places],
    )


def images_to(images: BatchImages, device: torch.device) -> BatchImages:
    """Return the images with all tensors on `device`."""
    found: dict[str, Any] = {item.name: getattr(images, item.name) for item in fields(images)}
    moved: dict[str, Any] = {name: value.to(device) for name, value in found.items() if torch.is_tensor(value)}
    return replace(images, **moved)


def image_keys(images: BatchImages | None, num_rows: int) -> list[tuple[tuple[int, str], ...]]:
    """Return, for every row, the column and the digest of each image in it: what tells rows apart whose tokens are
    equal."""
    found: list[list[tuple[int, str]]] = [[] for _ in range(num_rows)]
    if images is not None:
        starts, rows, numbers = images.start.tolist(), images.row.tolist(), images.index.tolist()
        for start, row, number in zip(starts, rows, numbers, strict=True):
            found[row].append((start, images.digests[number]))
    return [tuple(keys) for keys in found]


def _offsets(sizes: Sequence[int]) -> Tensor:
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    offsets[1:] = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return offsets
