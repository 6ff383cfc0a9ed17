"""Absolute positions have the values and rows of transformers, and end where the model's do."""

from __future__ import annotations

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks.positions import LearnedPositions, SinusoidalPositions

PLACES = torch.tensor([0, 1, 2, 0, 1, 7, 29])
FAR = torch.arange(3999)


def test_learned_positions_are_rows_from_the_offset_on():
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

    theirs = OPTLearnedPositionalEmbedding(30, 12)
    ours = LearnedPositions(30, 12, offset=2)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(PLACES), theirs(None, position_ids=PLACES))
    plain = LearnedPositions(30, 12)
    assert torch.equal(plain(PLACES), plain.weight[PLACES])
    ours(PLACES).sum().backward()
    assert ours.weight.grad[[2, 31]].tolist() == [[2.0] * 12, [1.0] * 12]
    assert ours.weight.grad[0].abs().max() == 0


def test_sinusoids_in_halves_up_to_the_endpoint_are_those_of_xglm():
    from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

    theirs = XGLMSinusoidalPositionalEmbedding(4000, 12, padding_idx=1)(FAR[None])[0]
    assert torch.equal(SinusoidalPositions(4000, 12, offset=2, endpoint=True)(FAR), theirs)


def test_sinusoids_in_halves_are_those_of_ctrl():
    from transformers.models.ctrl.modeling_ctrl import positional_encoding

    theirs = positional_encoding(4000, 12, torch.float32)[FAR]
    assert torch.equal(SinusoidalPositions(4000, 12)(FAR), theirs)


def test_interleaved_sinusoids_are_those_of_the_paper():
    places = PLACES.double()[:, None]
    column = torch.arange(12)
    angles = places / 10000.0 ** (2 * column.div(2, rounding_mode="floor").double() / 12)
    expected = torch.where(column % 2 == 0, angles.sin(), angles.cos())
    found = SinusoidalPositions(30, 12, interleaved=True)(PLACES)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("positions", [LearnedPositions(30, 12, offset=2), SinusoidalPositions(30, 12, offset=2)])
def test_a_position_beyond_the_last_is_refused_and_the_meta_device_computes_nothing(positions):
    with pytest.raises(ModelError, match="position 30 is beyond the model's 30 positions"):
        positions(torch.tensor([3, 30, 1]))
    assert positions(torch.zeros(0, dtype=torch.int64)).shape == (0, 12)
    assert positions.to("meta")(PLACES.to("meta")).shape == (7, 12)


def test_sinusoids_survive_being_made_on_the_meta_device_and_cast():
    with torch.device("meta"):
        made = SinusoidalPositions(30, 12)
    assert torch.equal(made.to(torch.bfloat16)(PLACES), SinusoidalPositions(30, 12)(PLACES))
    assert made.state_dict() == {}


def test_an_odd_width_is_refused():
    with pytest.raises(ModelError, match="hidden_size is 7, expected an even one"):
        SinusoidalPositions(30, 7)
