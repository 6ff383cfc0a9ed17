"""Models made of a spec refuse what their blocks cannot do: a wrong prediction must be wrong, and no failure."""

import pytest

from areal.porting import reference
from areal.porting.outlines import outlined
from areal.porting.records import UnsupportedError
from areal.porting.spec import BLOCK_NORMS, LayerSpec, MlpSpec, NormSpec

MLP = MlpSpec(gated=True, activation="silu", intermediate_size=8)


@pytest.mark.parametrize("feature", ["output_scale", "counted_sums"])
def test_only_a_sandwich_block_weighs_its_sums_and_what_it_gives(feature: str) -> None:
    norms = dict.fromkeys(BLOCK_NORMS["one_part"], NormSpec(kind="rms", eps=1e-5))
    layer = LayerSpec(block="one_part", norms=norms, attention=None, feed_forward=MLP, **{feature: True})
    with outlined(), pytest.raises(UnsupportedError, match="one_part"):
        reference.block(layer, 8, 0)
