"""Trees of plain values and tensors survive a round trip exactly."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.api import CheckpointError
from areal.infra.checkpoint.store import load_state, save_state, state_bytes
from areal.utils.seeding import rng_state, seed_everything, set_rng_state

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_KEYS = st.integers() | st.text() | st.booleans() | st.tuples(st.integers(), st.text())
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(_KEYS, inner),
    max_leaves=12,
)


def _typed(tree):
    """The tree with the type of every value spelt out, since 1 == 1.0 == True."""
    if isinstance(tree, dict):
        return {"dict": [(_typed(key), _typed(value)) for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, [_typed(item) for item in tree])
    return (type(tree).__name__, math.copysign(1, tree) if isinstance(tree, float) else None, tree)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(tree=_TREES)
def test_plain_values_come_back_with_equal_value_type_and_order(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    save_state(folder, "x", tree)
    assert _typed(load_state(folder, "x")) == _typed(tree)
    assert [entry.name for entry in folder.iterdir()] == ["x.json"]


def test_floats_that_json_lacks_come_back(tmp_path):
    save_state(tmp_path, "x", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, {"$": 1}, 10**400])
    nan, high, low, zero, *rest = load_state(tmp_path, "x")
    assert math.isnan(nan)
    assert (high, low, math.copysign(1, zero)) == (math.inf, -math.inf, -1)
    assert rest == [5e-324, 0.1 + 0.2, {"$": 1}, 10**400]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool],
)
def test_tensors_come_back_bit_by_bit_in_every_dtype(tmp_path, dtype):
    values = (torch.randn(3, 5, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    tree = {"a": values, "t": values.t(), "scalar": values[0, 0], "empty": values[:0], 7: [values[1:, ::2]]}
    save_state(tmp_path, "x", tree)
    found = load_state(tmp_path, "x")
    for key in ("a", "t", "scalar", "empty"):
        assert found[key].dtype == dtype
        assert torch.equal(found[key], tree[key])
    assert torch.equal(found[7][0], values[1:, ::2])


def test_a_tensor_that_occurs_twice_is_stored_once_and_comes_back_as_one_object(tmp_path):
    tied = torch.arange(1000.0)
    save_state(tmp_path, "x", {"embed": tied, "head": tied, "view": tied.view(10, 100)})
    found = load_state(tmp_path, "x")
    assert found["embed"] is found["head"]
    assert torch.equal(found["view"], tied.view(10, 100))
    assert (tmp_path / "x.safetensors").stat().st_size < 2 * 4000 + 1000


def test_parameters_with_gradient_are_saved_as_plain_tensors(tmp_path):
    save_state(tmp_path, "x", torch.nn.Parameter(torch.ones(2)))
    assert not load_state(tmp_path, "x").requires_grad


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, random.Random(1), torch.ones(2).to_sparse()])
def test_what_has_no_exact_form_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(TypeError, match=r"trainer\.ledger\[1\]"):
        save_state(tmp_path, "trainer", {"ledger": [0, value]})


def test_a_missing_or_malformed_state_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="'absent'"):
        load_state(tmp_path, "absent")
    save_state(tmp_path, "x", {"a": torch.ones(3)})
    (tmp_path / "x.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match="safetensors"):
        load_state(tmp_path, "x")


def test_the_size_estimate_counts_tensors(tmp_path):
    assert state_bytes({"a": [torch.ones(10, dtype=torch.float64)], "b": (b"12345",)}) == 85


def test_random_generators_continue_exactly_where_they_were_saved(tmp_path):
    np = pytest.importorskip("numpy")
    before = rng_state()
    try:
        seed_everything(3)
        random.gauss(0, 1)
        np.random.standard_normal()
        torch.randn(3)
        save_state(tmp_path, "rng", rng_state())
        expected = (random.gauss(0, 1), random.random(), np.random.standard_normal(4).tolist(), torch.randn(4).tolist())
        seed_everything(99)
        set_rng_state(load_state(tmp_path, "rng"))
        found = (random.gauss(0, 1), random.random(), np.random.standard_normal(4).tolist(), torch.randn(4).tolist())
        assert found == expected
    finally:
        set_rng_state(before)


def test_equal_seeds_give_equal_numbers_and_other_seeds_give_others():
    before = rng_state()
    try:
        seen = []
        for seed in (1, 1, 2):
            seed_everything(seed)
            seen.append((random.random(), torch.rand(2).tolist()))
        assert seen[0] == seen[1] != seen[2]
        with pytest.raises(ValueError, match=">= 0"):
            seed_everything(-1)
    finally:
        set_rng_state(before)
