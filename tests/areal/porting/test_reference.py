"""Models made of a spec refuse what their blocks cannot do: a wrong prediction must be wrong, and no failure."""

import pytest

from areal.porting import reference
from areal.porting.outlines import outlined
from areal.porting.records import UnsupportedError
from areal.porting.spec import BLOCK_NORMS, LayerSpec, MlpSpec, NormSpec

MLP = MlpSpec(gated=True, activation="silu", intermediate_size=8)


def test_only_a_sandwich_block_has_a_factor_on_what_it_gives() -> None:
    norms = dict.fromkeys(BLOCK_NORMS["one_part"], NormSpec(kind="rms", eps=1e-5))
    layer = LayerSpec(block="one_part", norms=norms, attention=None, feed_forward=MLP, output_scale=True)
    with outlined(), pytest.raises(UnsupportedError, match="one_part"):
        reference.block(layer, 8, 0)
