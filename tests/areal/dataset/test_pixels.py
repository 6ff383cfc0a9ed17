"""Files of images become upright, opaque RGB, or are refused with the reason before they cost anything."""

import io
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from areal.api import DataError
from areal.dataset.pixels import FinalImages, ImageLimits, declared_size, decode_image, image_of
from tests.support.vision import encoded, noise

FRAMES = [Image.new("RGB", (4, 4), (60 * index, 0, 0)) for index in range(4)]


def decoded(content, **limits):
    return np.asarray(decode_image(content, ImageLimits(**limits)))


def film(form):
    return encoded(FRAMES[0], form, save_all=True, append_images=FRAMES[1:])


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    return encoded(noise(4, 6), exif=exif)


def palette(**options):
    image = Image.new("P", (2, 2), 0)
    image.putpalette([10, 20, 30] * 256)
    return encoded(image, **options)


@pytest.mark.parametrize(
    ("content", "first"),
    [
        (encoded(np.full((2, 2), 40000, dtype=np.uint16)), [156, 156, 156]),
        (encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 0))), [255, 255, 255]),
        (encoded(Image.new("RGBA", (2, 2), (0, 0, 255, 51))), [204, 204, 255]),
        (encoded(Image.new("LA", (2, 2), (0, 128))), [127, 127, 127]),
        (encoded(Image.new("1", (2, 2), 1)), [255, 255, 255]),
        (encoded(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "JPEG"), [255, 0, 0]),
        (palette(), [10, 20, 30]),
        (palette(transparency=0), [255, 255, 255]),
    ],
    ids=["16 bit", "transparent", "half transparent", "grey alpha", "1 bit", "CMYK", "palette", "transparent palette"],
)
def test_all_colours_become_rgb_on_white(content, first):
    assert decoded(content)[0, 0].tolist() == first


@pytest.mark.parametrize("orientation", [None, 1, 3, 6, 8])
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_declared_size_is_that_of_the_decoded_image(form, orientation):
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    content = encoded(noise(4, 6), form, **({} if orientation is None else {"exif": exif}))
    assert declared_size(content, ImageLimits()) == decoded(content).shape[:2]


def test_the_declared_size_needs_no_pixels_and_has_the_same_limits():
    assert declared_size(encoded(noise(64, 6))[:200], ImageLimits()) == (64, 6)
    for content, words in ((encoded(noise(300, 1)), "over 200 times"), (b"<svg/>", "cannot be decoded")):
        with pytest.raises(DataError, match=words):
            declared_size(content, ImageLimits())
    with pytest.raises(DataError, match="at most 20 are decoded"):
        declared_size(encoded(noise(6, 6)), ImageLimits(max_file_pixels=20))


def test_files_are_decoded_once_and_failures_are_those_of_their_own_file():
    files = FinalImages(ImageLimits(), lambda picture: picture.resize((2, 3)))
    good, bad = encoded(noise(5, 5)), encoded(noise(5, 5))[:60]
    found = [files.submit(content) for content in (good, bad, good)]
    assert found[0].result() is found[2].result()
    assert found[0].result().pixels.shape == (3, 2, 3)
    with pytest.raises(DataError, match="cannot be decoded"):
        found[1].result()
    assert files.num_decoded == 2


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_pixels_of_lossless_files_are_kept(form):
    pixels = noise(7, 5)
    assert np.array_equal(decoded(encoded(pixels, form, **({"lossless": True} if form == "WEBP" else {}))), pixels)


def test_orientation_is_applied_once():
    upright = np.rot90(noise(4, 6), k=-1)
    once = decode_image(turned(), ImageLimits())
    assert np.array_equal(np.asarray(once), upright)
    assert np.array_equal(decoded(encoded(once)), upright)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_films_are_refused_unless_their_first_frame_is_wanted(form):
    with pytest.raises(DataError, match="4 frames; films are not read"):
        decoded(film(form))
    assert decoded(film(form), first_frame=True).shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (encoded(noise(64, 64))[:4000], "cannot be decoded"),
        (encoded(noise(64, 64), "JPEG")[:900], "cannot be decoded"),
        (b"", "cannot be decoded"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be decoded"),
        (b"<html></html>", "cannot be decoded"),
        (encoded(noise(8, 8), "TIFF"), "cannot be decoded as PNG"),
        (encoded(noise(300, 1)), "one side is over 200 times the other"),
        (encoded(noise(9, 9), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"), ""),
    ],
    ids=["PNG cut off", "JPEG cut off", "empty", "SVG", "HTML", "TIFF", "thin", "broken EXIF"],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_what_is_no_image_is_refused_or_read_and_never_something_else(content, words):
    if words:
        with pytest.raises(DataError, match=words):
            decoded(content)
    else:
        assert np.array_equal(decoded(content), noise(9, 9))


def test_a_bomb_is_refused_by_its_header():
    content = encoded(Image.new("1", (20000, 4000)))
    started, _ = time.process_time(), tracemalloc.start()
    with pytest.raises(DataError, match="20000 x 4000 pixels, at most 33554432"):
        decoded(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22
    assert time.process_time() - started < 5
    with pytest.raises(DataError, match=r"file of \d+ bytes, at most 100"):
        decoded(content, max_file_bytes=100)


def test_digests_tell_pixels_and_shapes_apart_and_pixels_cannot_be_changed():
    one, again = image_of(noise(4, 6)), image_of(noise(4, 6))
    assert one == again
    assert len({one.digest, image_of(noise(4, 6, seed=1)).digest, image_of(noise(4, 6).reshape(6, 4, 3)).digest}) == 3
    with pytest.raises(ValueError, match="read-only"):
        one.pixels[0, 0, 0] = 1
    assert not image_of(np.asarray(Image.open(io.BytesIO(encoded(noise(4, 6)))))).pixels.flags.writeable
