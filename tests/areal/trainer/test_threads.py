"""The number of threads follows from the machine, its load and the model; a continued run keeps it."""

from __future__ import annotations

import pytest
import runs
import torch

from areal.engine import precision
from areal.trainer.configuration import threads
from areal.trainer.configuration.threads import THREADS, choose_threads, keep_threads, start_threads, threads_of
from areal.utils.machine import CpuShare

IDLE = CpuShare(total=16, allowed=16, quota=None, load=0.2)
BUSY = CpuShare(total=16, allowed=16, quota=None, load=13.0)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("OMP_NUM_THREADS", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


@pytest.mark.parametrize(
    ("share", "parameters", "processes", "number", "reason"),
    [
        (IDLE, 500_000_000, 1, 16, "16 of 16 cores usable"),
        (BUSY, 500_000_000, 1, 3, "16 of 16 cores usable, 3 free at a load of 13.0"),
        (IDLE, 400_000, 1, 1, "a second one would slow down a model of 0.4M parameters"),
        (IDLE, 12_500_000, 1, 3, "more would slow down a model of 12M parameters"),
        (IDLE, None, 1, 16, "16 of 16 cores usable"),
        # The ranks of a run are the load.
        (BUSY, 500_000_000, 4, 4, "4 processes"),
        (IDLE, 500_000_000, 64, 1, "64 processes"),
    ],
)
def test_it_is_no_more_than_is_free_and_worthwhile(share, parameters, processes, number, reason):
    chosen = choose_threads(share, parameters=parameters, processes=processes)
    assert chosen.number == number
    assert reason in chosen.reason


def test_what_is_set_wins(tmp_path, monkeypatch):
    config = runs.tiny(tmp_path)
    chosen = threads_of(config, IDLE)
    assert chosen.number == 1
    assert "second one would slow down a model of 0.0" in chosen.reason
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert str(threads_of(config, IDLE)) == "3 threads (OMP_NUM_THREADS in the environment)"
    assert threads_of(runs.tiny(tmp_path, num_threads=2), IDLE).number == 2


def test_a_model_on_an_accelerator_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "accelerator", lambda: "cuda")
    assert threads_of(runs.tiny(tmp_path), IDLE).number == 16
    assert threads_of(runs.tiny(tmp_path, actor__device="cpu"), IDLE).number == 1


def test_the_choice_is_made_and_said_and_a_continued_run_keeps_its_own(tmp_path, caplog, monkeypatch):
    config = runs.tiny(tmp_path)
    monkeypatch.setattr(threads, "cpu_share", lambda: IDLE)
    with caplog.at_level("INFO", logger="areal"):
        start_threads(config)
    assert torch.get_num_threads() == 1
    assert "computing with 1 thread (a second one would slow down" in caplog.text
    keep_threads(config, {THREADS: 2})
    assert torch.get_num_threads() == 2
    keep_threads(config, {})
    keep_threads(config, {THREADS: 64})  # of a larger machine
    keep_threads(runs.tiny(tmp_path, num_threads=2), {THREADS: 1})
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("device", "found", "native", "expected"),
    [
        ("auto", "", False, "float32"),
        ("auto", "cuda", True, "bfloat16"),
        ("auto", "cuda", False, "float32"),
        ("auto", "xpu", False, "bfloat16"),
        ("auto", "mps", False, "float32"),
        ("cpu", "cuda", True, "float32"),
        ("cuda:1", "cuda", True, "bfloat16"),
    ],
)
def test_the_dtype_follows_the_device(tmp_path, monkeypatch, device, found, native, expected):
    monkeypatch.setattr(precision, "accelerator", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found == "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    config = runs.tiny(tmp_path, actor__device=device).actor
    assert config.dtype == "auto"
    assert precision.concrete_dtype(config) == expected
    assert precision.with_concrete_dtype(config).dtype == expected
    assert precision.with_concrete_dtype(runs.tiny(tmp_path, actor__dtype="float64").actor).dtype == "float64"
