"""Sums over bits are those of big integers, whatever the dtype and the place in memory, and damage changes them."""

from __future__ import annotations

import pytest
import torch

from areal.utils import tensors as tensors_module
from areal.utils import transfers
from areal.utils.tensors import bit_sums, digest, digests
from areal.utils.transfers import download

MODULUS = 2**64


def by_integers(tensor):
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    words = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)]
    sums = [
        sum((word ^ (word >> shift)) * (2 * i + 1) * factor for i, word in enumerate(words)) % MODULUS
        for shift, factor in ((32, 0x9E3779B97F4A7C15), (17, 0xBF58476D1CE4E5B9))
    ]
    return "sums:" + "".join(f"{value:016x}" for value in sums)


def drawn(*shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


TENSORS = {
    "float32": drawn(5, 7, dtype=torch.float32),
    "bfloat16, rest of a word": drawn(3, 7, dtype=torch.bfloat16),
    "one byte": torch.tensor(200, dtype=torch.uint8),
    "negative": torch.tensor([-1, -(2**63)], dtype=torch.int64),
    "transposed": drawn(4, 6, dtype=torch.float64).t(),
    "not at a word": drawn(9, dtype=torch.float32)[1:],
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
def test_sums_are_those_of_integers_whatever_is_computed_at_a_time(monkeypatch, chunk):
    monkeypatch.setattr(tensors_module, "_CHUNK_WORDS", chunk)
    assert bit_sums(list(TENSORS.values())) == [by_integers(tensor) for tensor in TENSORS.values()]


def test_damage_changes_the_sums():
    whole = drawn(64, dtype=torch.bfloat16)
    known = bit_sums([whole])[0]
    signs, swapped = whole.clone(), whole.clone()
    signs[[3, 7]] = -signs[[3, 7]]  # the highest bits of two words: in plain sums they would cancel
    swapped[:4], swapped[4:8] = whole[4:8], whole[:4]
    for other in (signs, swapped, whole.roll(1), torch.cat((whole[:-1], whole[-1:] * 2))):
        assert bit_sums([other])[0] != known


def test_what_is_compared_is_of_the_kind_that_was_announced():
    announced = {"a": digest(TENSORS["float32"]), "b": bit_sums([TENSORS["negative"]])[0]}
    assert digests({"a": TENSORS["float32"], "b": TENSORS["negative"]}, announced) == announced
    assert "sums" not in announced["a"]


def test_downloads_are_contiguous_and_copies_where_that_is_asked_for():
    given = {"a": TENSORS["transposed"], "b": TENSORS["float32"]}
    found, copied = download(given), download(given, copy=True)
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor)
        assert found[name].is_contiguous()
        assert copied[name].data_ptr() != tensor.data_ptr()
    assert found["b"].data_ptr() == given["b"].data_ptr()


def test_only_small_tensors_get_pinned_memory_and_only_where_there_is_some(monkeypatch):
    given = {"large": torch.zeros(30), "small": torch.zeros(2), "middle": torch.zeros(5)}
    unpinned = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, dtype, pin_memory: unpinned(*shape, dtype=dtype))
    monkeypatch.setattr(transfers, "_PINNED_BYTES", 100)
    assert {name: each.shape for name, each in transfers._pinned_for(given).items()} == {"small": (2,), "middle": (5,)}

    def refuse(*_, **__):
        raise RuntimeError("cannot lock memory")

    monkeypatch.setattr(torch, "empty", refuse)
    assert transfers._pinned_for(given) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_same_sums_and_copies():
    on_gpu = {name: tensor.cuda() for name, tensor in TENSORS.items()}
    assert list(digests(on_gpu).values()) == [by_integers(tensor) for tensor in TENSORS.values()]
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in download(on_gpu).items())
