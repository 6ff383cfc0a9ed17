"""One engine of each kind per module, for its start takes seconds; skipped where the program is not installed."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("contract_engines", Path(__file__).with_name("engines.py"))
engines = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(engines)

KINDS = (
    "embedded", "vllm double", "sglang double", "vllm",
    # Its start takes a minute; the double, which has its traps, is in every run.
    pytest.param("sglang", marks=pytest.mark.exhaustive),
    # What differs from "vllm double" is in test_given_addresses.py, and in the tests of the supervisor.
    pytest.param("vllm double at an address", marks=pytest.mark.exhaustive),
    pytest.param("vllm double, supervised", marks=pytest.mark.exhaustive),
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def running(request, tmp_path_factory, fork_server):
    """The engine of one kind that tests share, until one of them closes it."""
    kept = []
    with contextlib.ExitStack() as engines_of_this_kind:
        start = functools.partial(_started, request.param, tmp_path_factory, fork_server)
        yield kept, lambda: engines_of_this_kind.enter_context(start())


@pytest.fixture
def subject(running):
    """An engine of one kind and its model."""
    kept, start = running
    if not kept:
        kept.append(start())
    return kept[0]


@pytest.fixture
def last_subject(running, subject):
    """The same, for a test that closes it: other tests get another one."""
    kept, _ = running
    kept.clear()
    return subject


@contextlib.contextmanager
def _started(kind, tmp_path_factory, fork_server):
    model = engines.build_model()
    folder = tmp_path_factory.mktemp("engine")
    resources = contextlib.ExitStack()
    if kind == "embedded":
        engine = engines.embedded(model, folder)
    elif kind == "vllm":
        if not engines.VLLM_PYTHON.is_file():
            pytest.skip("no vLLM here: bash scripts/setup_vllm.sh")
        command = engines.vllm_command(folder, model, engines.ServerEngineConfig(dtype="float32", max_concurrent=64))
        # Broadcast here, files for the doubles and in the run of test_with_servers.py.
        engine = engines.with_servers("vllm", command, model, folder, carrier=engines.gloo_carrier(), max_concurrent=64)
    elif kind == "sglang":
        if not engines.SGLANG_PYTHON.is_file():
            pytest.skip("no SGLang here: bash scripts/setup_sglang.sh")
        command = engines.sglang_command(folder, model, engines.ServerEngineConfig(dtype="float32", max_concurrent=64))
        engine = engines.with_servers("sglang", command, model, folder, max_concurrent=64)
    elif kind == "vllm double, supervised":
        command = engines.double_command("vllm", engines.write_config(folder / "model", model))
        engine = engines.with_servers("vllm", command, model, folder)
    elif kind == "vllm double at an address":
        address = resources.enter_context(engines.forked_double(fork_server, "vllm", folder, model))
        pool, adapter = engines.given_pool([address], "trainer"), engines.VLLMAdapter(owner="trainer")
        engine = engines.with_servers("vllm", None, model, folder, pool=pool, adapter=adapter, addresses=(address,))
    else:
        api = kind.split()[0]
        address = resources.enter_context(engines.forked_double(fork_server, api, folder, model))
        engine = engines.with_servers(api, None, model, folder, pool=engines.RunningServer(address))
    try:
        if kind != "embedded":
            engine.wait_ready()
        yield engines.Subject(engine, model, kind, folder=folder)
    finally:
        engine.close()
        resources.close()
