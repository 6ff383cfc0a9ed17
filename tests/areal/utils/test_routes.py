"""Routes of a growing sequence: the first record of a token stays."""

import torch

from areal.utils.routes import join_routes, route_dtype, unrecorded


def routes(first, last, expert):
    return torch.full((last - first, 2, 1), expert, dtype=torch.uint8)


def test_later_parts_add_only_what_earlier_ones_do_not_have():
    joined = join_routes([routes(0, 5, 1), routes(0, 8, 2), routes(0, 9, 3)])
    assert joined[:, 0, 0].tolist() == [1] * 5 + [2] * 3 + [3]


def test_a_part_without_a_record_leaves_none():
    assert join_routes([routes(0, 5, 1), None]) is None
    assert join_routes([]) is None


def test_a_byte_holds_255_experts_and_what_is_unrecorded_is_none_of_them():
    assert (route_dtype(255), unrecorded(torch.uint8)) == (torch.uint8, 255)
    assert (route_dtype(256), unrecorded(torch.int16)) == (torch.int16, -1)
