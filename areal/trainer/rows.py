"""Rows of a dataset as batches: supervised sequences, with their images, and pairs of answers. Columns that only RL has
are neutral."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.packing import collate
from areal.algorithm.preference import marked
from areal.api import DataError, PaddedBatch, PairedBatch, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from areal.api import ImageRef
    from areal.dataset.loading import ShuffledRows
    from areal.trainer.image_rows import ImageRows


def collate_rows(rows: ShuffledRows, ordinals: Iterable[int], *, images: ImageRows | None = None) -> PaddedBatch:
    """Batch of supervised rows. images: reads those of rows that have some; None for a model of text."""
    chosen = list(ordinals)
    found, places = [rows.row(ordinal) for ordinal in chosen], [rows.place(ordinal) for ordinal in chosen]
    refs = [()] * len(found) if images is None else images.refs(found, places)
    return collate(
        [
            _as_trajectory(row["input_ids"], row["loss_mask"], where=place, group=ordinal, images=own)
            for ordinal, row, place, own in zip(chosen, found, places, refs, strict=True)
        ]
    )


def collate_pairs(
    rows: Sequence[Mapping[str, Any]], *, numbers: Sequence[int] | None = None, with_marks: bool = False
) -> PairedBatch:
    """Batch of preference rows: of each the chosen answer, then the rejected one.

    numbers: of the pairs, for messages; from 0 when None. with_marks: each sequence ends with the token that a reward
    model's score belongs to (`areal.algorithm.preference`).
    """
    trajectories = []
    for number, row in zip(range(len(rows)) if numbers is None else numbers, rows, strict=True):
        for side, reward in (("chosen", 1.0), ("rejected", 0.0)):
            tokens, mask = row[f"{side}_ids"], row[f"{side}_loss_mask"]
            if with_marks:
                tokens, mask = marked(tokens, mask)
            trajectories.append(
                _as_trajectory(tokens, mask, where=f"pair {number}, {side} answer", group=number, reward=reward)
            )
    batch = collate(trajectories)
    margins = None
    if rows and all(row.get("margin") is not None for row in rows):
        margins = torch.tensor([float(row["margin"]) for row in rows]).repeat_interleave(2)
    return PairedBatch(**{item.name: getattr(batch, item.name) for item in fields(batch)}, margins=margins)


def _as_trajectory(
    ids: Sequence[int],
    loss_mask: Sequence[int],
    *,
    where: str,
    group: int,
    reward: float = 0.0,
    images: tuple[ImageRef, ...] = (),
) -> Trajectory:
    # Nothing predicts the first token, so it cannot be learnt.
    tokens, mask = list(ids), [0, *(int(value) for value in loss_mask[1:])]
    if not any(mask):
        raise DataError(f"{where}: no token to learn (loss_mask is 0 everywhere after the first token)")
    versions = [0 if value else -1 for value in mask]
    return Trajectory(
        tokens=tokens,
        loss_mask=mask,
        logprobs=[0.0] * len(tokens),
        versions=versions,
        turn_ids=versions,
        reward=reward,
        stop_reason=StopReason.STOP,
        group_id=group,
        images=images,
    )
