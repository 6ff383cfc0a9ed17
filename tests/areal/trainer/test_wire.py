"""Messages between the processes of a run: every value arrives as it was, large tensors without a pickle."""

import threading
from multiprocessing import Pipe

import pytest
import torch

from areal.trainer.wire import WireMessage, receive

LARGE = 3000
"""Values of which all but the smallest types are sent beside the pickle."""


def sent(value):
    here, there = Pipe()
    with here, there:
        message = WireMessage(value)
        thread = threading.Thread(target=message.send, args=(here,))
        thread.start()
        found = receive(there).load()
        thread.join()
    return found, message


@pytest.mark.parametrize("size", [0, 1, LARGE])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_tensors_of_every_type_arrive_bit_by_bit_and_may_be_written_to(dtype, size):
    value = (torch.arange(size * 7) % 2).to(dtype).reshape(size, 7)
    found, message = sent({"a": [value], "b": "text"})
    assert found["b"] == "text"
    assert found["a"][0].dtype == dtype
    assert torch.equal(found["a"][0], value)
    assert message.num_bytes >= value.numel() * value.element_size()
    found["a"][0].zero_()


def test_views_and_expanded_tensors_arrive_as_their_values():
    whole = torch.randn(400, 300)
    found, _ = sent((whole[:, ::2], whole.t(), whole[:1].expand(50, 300), torch.tensor(3.5), whole[0, 0]))
    expected = (whole[:, ::2], whole.t(), whole[:1].expand(50, 300), torch.tensor(3.5), whole[0, 0])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_other_tensors_arrive_as_pickle_sends_them():
    special = [torch.nn.Parameter(torch.randn(3)), torch.randn(3, requires_grad=True), torch.randn(2).to(torch.cfloat)]
    found, _ = sent([*special, torch.eye(3).to_sparse()])
    assert isinstance(found[0], torch.nn.Parameter)
    assert found[1].requires_grad
    assert torch.equal(found[2], special[2])
    assert torch.equal(found[3].to_dense(), torch.eye(3))


def test_what_cannot_be_pickled_fails_before_anything_is_sent():
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        WireMessage(threading.Lock())
