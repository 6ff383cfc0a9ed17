"""Models without memory have the names and shapes of real ones."""

import torch
from torch import nn

from areal.porting.outlines import outlined


def test_an_outline_has_the_names_and_shapes_of_a_model_and_no_memory() -> None:
    with outlined():
        outline = nn.TransformerEncoderLayer(16, 2, 8)
    real = nn.TransformerEncoderLayer(16, 2, 8)
    assert {name: part.shape for name, part in outline.named_parameters()} == {
        name: part.shape for name, part in real.named_parameters()
    }
    assert all(part.is_meta for part in outline.parameters())


def test_tensors_with_memory_are_drawn_all_the_same() -> None:
    with outlined():
        drawn = torch.empty(64, device="cpu").normal_()
        matrix = nn.init.kaiming_uniform_(torch.empty(8, 64, device="cpu"))
    assert drawn.std() > 0.1
    assert matrix.std() > 0.01
