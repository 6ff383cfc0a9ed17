"""What a rank draws after a checkpoint is what it would have drawn without it, on the processor and on its device."""

import pytest
import torch

from areal.engine.train.processes import random_states, restore_random_states

CPU = torch.device("cpu")


class PlayedDevice:
    """Stands for the module of a device that is not here; draws from a generator of its own, as devices do."""

    def __init__(self):
        self.generators = {0: torch.Generator().manual_seed(1), 1: torch.Generator().manual_seed(2)}

    def get_rng_state(self, device):
        return self.generators[device.index].get_state()

    def set_rng_state(self, state, device):
        self.generators[device.index].set_state(state)


def test_the_processor_draws_what_it_would_have_drawn():
    states = random_states(CPU)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    restore_random_states(states, CPU)
    assert torch.equal(torch.rand(3), drawn)
    assert list(states) == ["cpu"]


def test_a_rank_keeps_the_generator_of_its_own_device_and_of_no_other(monkeypatch):
    played, device = PlayedDevice(), torch.device("cuda", 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: played)
    states = random_states(device)
    assert list(states) == ["cpu", "cuda"]
    drawn = [torch.rand(3, generator=played.generators[index]) for index in (0, 1)]
    restore_random_states(states, device)
    assert torch.equal(torch.rand(3, generator=played.generators[1]), drawn[1])
    assert not torch.equal(torch.rand(3, generator=played.generators[0]), drawn[0])


def test_a_state_of_another_kind_of_device_is_left_alone(monkeypatch):
    played = PlayedDevice()
    monkeypatch.setattr(torch, "get_device_module", lambda _: played)
    before = played.generators[0].get_state()
    restore_random_states(random_states(CPU), torch.device("cuda", 0))
    restore_random_states({"xpu": torch.zeros(3, dtype=torch.uint8)}, torch.device("cuda", 0))
    assert torch.equal(played.generators[0].get_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_what_it_would_have_drawn():
    device = torch.device("cuda", torch.cuda.current_device())
    states = random_states(device)
    drawn = torch.rand(3, device=device)
    restore_random_states(states, device)
    assert torch.equal(torch.rand(3, device=device), drawn)
