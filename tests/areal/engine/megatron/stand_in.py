"""Lets megatron-core run on processors: a stand-in for the names of `torch.cuda` that it uses. Tests own it.

`install` comes before megatron is imported, which keeps some of these names.
"""

import torch

_CPU = torch.device("cpu")


class _Generators:
    """Of every device: that of the processor."""

    def __getitem__(self, index):
        return torch.default_generator


def _at_home(make):
    """`make` that puts on the processor what is meant for a device."""

    def made(*arguments, **options):
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = _CPU
        return make(*arguments, **options)

    return made


def _seed(seed):
    torch.manual_seed(seed)


def _get_state(*_, **__):
    return torch.get_rng_state()


def _set_state(state, *_, **__):
    torch.set_rng_state(state)


def install():
    # A device, not a number: a number would mean a CUDA device.
    torch.cuda.current_device = lambda: _CPU
    for module in (torch.cuda, torch.cuda.random):
        module.manual_seed = _seed
        module.get_rng_state, module.set_rng_state = _get_state, _set_state
    torch.cuda._lazy_call = lambda work, **_: work()
    torch.cuda.default_generators = _Generators()
    # Each its own object: torch keeps a table of them.
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    # Schedules count tokens on "cuda".
    torch.zeros = _at_home(torch.zeros)
