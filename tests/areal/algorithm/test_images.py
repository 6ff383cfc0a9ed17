"""Images of batches follow their rows, whatever is cut and joined; each distinct one is there once."""

import random

import pytest
import torch

from areal.algorithm.images import collate_images, image_keys
from areal.algorithm.packing import collate, select
from areal.api import DataError, Image, ImageRef, StopReason, Trajectory
from tests.support.vision import noisy_image

PICTURES = [noisy_image(height, width, seed=seed) for seed, (height, width) in enumerate([(2, 3), (4, 4), (3, 2)])]


def ref(picture, start, length=2):
    return ImageRef(image=picture, start=start, length=length)


def trajectory(*refs, length=12, sampled=2, group=0):
    prompt = length - sampled
    return Trajectory(
        tokens=list(range(length)),
        loss_mask=[0] * prompt + [1] * sampled,
        logprobs=[0.0] * prompt + [-1.0] * sampled,
        versions=[-1] * prompt + [0] * sampled,
        turn_ids=[-1] * prompt + [0] * sampled,
        reward=1.0,
        stop_reason=StopReason.STOP,
        images=refs,
        group_id=group,
    )


def seen(batch):
    """Of each row: its images as columns and pixels."""
    rows = [[] for _ in range(batch.tokens.shape[0])]
    images = batch.images
    for place in range(0 if images is None else len(images.row)):
        pixels = images.pixels_of(int(images.index[place])).tolist()
        rows[int(images.row[place])].append((int(images.start[place]), int(images.length[place]), pixels))
    return rows


def test_each_distinct_image_is_there_once():
    batch = collate([trajectory(ref(PICTURES[0], 1)), trajectory(ref(PICTURES[1], 2), ref(PICTURES[0], 6))])
    assert batch.images.digests == (PICTURES[0].digest, PICTURES[1].digest)
    assert batch.images.pixels.numel() == (2 * 3 + 4 * 4) * 3
    assert seen(batch)[1] == [(2, 2, PICTURES[1].pixels.tolist()), (6, 2, PICTURES[0].pixels.tolist())]
    assert collate([trajectory()]).images is None


@pytest.mark.parametrize("seed", range(20))
def test_any_choice_of_rows_has_their_images(seed):
    draw = random.Random(seed)
    rows = [
        trajectory(*(ref(draw.choice(PICTURES), 1 + 3 * place) for place in range(draw.randrange(4)))) for _ in range(6)
    ]
    whole = collate(rows)
    chosen = [draw.randrange(6) for _ in range(4)]
    part = select(whole, chosen)
    assert seen(part) == [seen(whole)[row] for row in chosen]
    again = [draw.randrange(4) for _ in range(3)]
    assert seen(select(part, again)) == [seen(part)[row] for row in again]
    distinct = {image.image.digest for row in chosen for image in rows[row].images}
    assert set(part.images.digests if part.images else ()) == distinct


@pytest.mark.parametrize(
    ("refs", "words"),
    [
        ([ref(PICTURES[0], 5), ref(PICTURES[0], 4)], "before the end of the one before"),
        ([ref(PICTURES[0], 5), ref(PICTURES[0], 6)], "before the end of the one before"),
        ([ref(PICTURES[0], 8, 4)], "a token has to follow"),
        ([ref(PICTURES[0], 9)], "loss_mask is not 0 in the image"),
    ],
)
def test_records_refuse_images_that_cannot_be(refs, words):
    with pytest.raises(ValueError, match=words):
        trajectory(*refs)


def test_one_digest_with_two_sizes_is_a_defect():
    wrong = Image(digest=PICTURES[0].digest, pixels=PICTURES[1].pixels)
    with pytest.raises(DataError, match="has 4 x 4 pixels here and 2 x 3 in another row"):
        collate_images([[ref(PICTURES[0], 0)], [ref(wrong, 0)]])


def test_equal_tokens_with_other_pixels_are_told_apart():
    batch = collate([trajectory(ref(picture, 3)) for picture in (PICTURES[0], PICTURES[1], PICTURES[0])])
    keys = image_keys(batch.images, 3)
    assert torch.equal(batch.tokens[0], batch.tokens[1])
    assert keys[0] == keys[2] != keys[1]
