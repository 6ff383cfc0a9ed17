"""Adapters that servers hold by name beside their weights: each request gets its own, and none is left behind.

With doubles of vLLM and SGLang, which compute with the merged model, as the servers' kernels do up to rounding;
and with the programs themselves, where they are installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import sys
import urllib.request
from dataclasses import replace

import pytest
import torch
from processes import eventually
from safetensors.torch import save_file

from areal.api import ConfigError, EngineError, FaultError, ServerInstance
from areal.engine.config import ServerEngineConfig, SGLangConfig, VLLMConfig
from areal.engine.server.client import is_healthy
from areal.engine.sglang.launch import prepare as prepare_sglang
from areal.engine.vllm.launch import prepare as prepare_vllm
from areal.infra.supervisor.process import ServerProcess, free_port

engines = sys.modules["contract_engines"]
EXACT = 5e-5
RANK, ALPHA = 4, 8
LAYERS = ("self_attn.q_proj", "mlp.down_proj")
pytestmark = pytest.mark.timeout(300)


def write_adapter(folder, model, seed):
    """A PEFT folder; returns the model with it merged."""
    generator = torch.Generator().manual_seed(seed)
    adapted, stored = copy.deepcopy(model), {}
    modules = dict(adapted.named_modules())
    for number in range(engines.TINY["num_hidden_layers"]):
        for layer in LAYERS:
            name = f"model.layers.{number}.{layer}"
            weight = next(modules[key].weight for key in (name, name.removeprefix("model.")) if key in modules)
            down = torch.randn(RANK, weight.shape[1], generator=generator) * 0.1
            up = torch.randn(weight.shape[0], RANK, generator=generator) * 0.1
            stored[f"base_model.model.{name}.lora_A.weight"] = down
            stored[f"base_model.model.{name}.lora_B.weight"] = up
            with torch.no_grad():
                weight += up @ down * ALPHA / RANK
    folder.mkdir(parents=True)
    save_file(stored, folder / "adapter_model.safetensors")
    content = {"r": RANK, "lora_alpha": ALPHA, "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none",
               "target_modules": [layer.rpartition(".")[2] for layer in LAYERS]}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return adapted


REAL = {
    "vllm server": (engines.VLLM_PYTHON, engines.vllm_command, "bash scripts/setup_vllm.sh"),
    "sglang server": (engines.SGLANG_PYTHON, engines.sglang_command, "bash scripts/setup_sglang.sh"),
}
"""Programs that are started for real, where they are installed; how; and what installs them."""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Returns a function: name of a program to the address of its server, which is started once."""
    running, addresses = contextlib.ExitStack(), {}

    def address_of(program):
        python, command, setup = REAL[program]
        if not python.is_file():
            pytest.skip(f"{python} is not there: {setup}")
        if program == "sglang server" and not torch.cuda.is_available():
            pytest.skip("SGLang 0.5.20 holds adapters in pinned memory, which needs an accelerator")
        if program not in addresses:
            folder, port = tmp_path_factory.mktemp("real"), free_port()
            config = ServerEngineConfig(dtype="float32", max_adapters=2)
            started = command(folder, engines.build_model(), config)(0, port)
            process = ServerProcess(
                started.arguments, environment=started.environment, log_path=folder / "log",
                incarnation=engines.RunningServer.incarnation, grace_seconds=5.0,
            )  # fmt: skip
            running.callback(process.stop)
            addresses[program] = f"http://127.0.0.1:{port}"
            ready = eventually(lambda: is_healthy(addresses[program], 1.0) or process.exit_text, 300)
            assert ready is True, process.tail(60)
        return addresses[program]

    with running:
        yield address_of


EVERYWHERE = [
    "vllm",
    pytest.param("sglang", marks=pytest.mark.exhaustive),
    *(pytest.param(name, marks=[pytest.mark.exhaustive, pytest.mark.timeout(500)]) for name in REAL),
]


@pytest.fixture(params=EVERYWHERE)
def served(request, tmp_path, fork_server, start):
    """An engine over one server, its model, and the address of the server: a double, or the program itself."""
    (api, _, real), model = request.param.partition(" "), engines.build_model()
    with contextlib.ExitStack() as stack:
        address = (
            start(request.param) if real
            else stack.enter_context(engines.forked_double(fork_server, api, tmp_path / "served", model))
        )  # fmt: skip
        engine = engines.with_servers(
            api, None, model, tmp_path / "served", pool=engines.RunningServer(address), max_adapters=2, drain_seconds=20
        )
        stack.callback(engine.close)
        engine.wait_ready()
        yield engines.Subject(engine, model, api), address


def held(address):
    """Adapters of a server, without the engine's part of their names."""
    with urllib.request.urlopen(f"{address}/v1/models", timeout=60) as response:
        models = json.loads(response.read())["data"]
    return sorted(model["id"].rpartition(".")[0] for model in models if model["parent"])


def asking(subject, name, *prompt, new=16, seed=0):
    return replace(subject.request(*prompt, new=new, seed=seed), adapter=name)


def test_each_request_is_computed_with_the_adapter_it_asks_for(served, tmp_path):
    subject, address = served
    merged = {name: write_adapter(tmp_path / name, subject.model, seed) for seed, name in enumerate(("one", "two"))}
    for name in merged:
        subject.engine.load_adapter(name, tmp_path / name)
    assert (subject.engine.adapters, held(address)) == (["one", "two"], ["one.1", "two.2"])
    names = ["one", "", "two"]
    found = subject.generate(*(asking(subject, name, 5, 6, new=24, seed=9) for name in names))
    for name, response in zip(names, found, strict=True):
        assert subject.deviation(response, model=merged.get(name)) < EXACT
        others = [model for other, model in merged.items() if other != name]
        assert all(subject.deviation(response, model=other) > 1e-2 for other in others)
    # A new version of the weights is a new base for all adapters.
    subject.change_weights(seed=3)
    subject.publish()
    again = {name: write_adapter(tmp_path / f"{name}-again", subject.model, seed) for seed, name in enumerate(merged)}
    for name, model in again.items():
        (response,) = subject.generate(asking(subject, name, 5, 6, new=8))
        assert subject.deviation(response, model=model) < EXACT
        assert set(response.output_versions) == {1}
    subject.engine.unload_adapter("one")
    assert (subject.engine.adapters, held(address)) == (["two"], ["two.2"])


@pytest.mark.exhaustive
def test_what_was_replaced_stays_until_its_last_request_has_ended(served, tmp_path):
    subject, address = served
    old, new = (write_adapter(tmp_path / name, subject.model, seed) for seed, name in enumerate(("old", "new")))
    subject.engine.load_adapter("judge", tmp_path / "old")

    async def main():
        with engines.answers_held(tmp_path / "served"):
            running = asyncio.create_task(subject.engine.agenerate(asking(subject, "judge", new=300)))
            while subject.engine.stats()["generated_tokens"] < 8:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(subject.engine.load_adapter, "judge", tmp_path / "new")
            assert held(address) == ["judge.1", "judge.2"]
            later = await subject.engine.agenerate(asking(subject, "judge", new=8))
            assert not running.done()
        return await running, later

    first, later = asyncio.run(main())
    assert subject.deviation(first, model=old) < EXACT
    assert subject.deviation(later, model=new) < EXACT
    assert eventually(lambda: held(address) == ["judge.2"], 60), held(address)


@pytest.mark.exhaustive
def test_there_is_a_bound_and_what_cannot_be_loaded_changes_nothing(served, tmp_path):
    subject, address = served
    for seed, name in enumerate(("one", "two", "three")):
        write_adapter(tmp_path / name, subject.model, seed)
    subject.engine.load_adapter("one", tmp_path / "one")
    subject.engine.load_adapter("two", tmp_path / "two")
    with pytest.raises(ConfigError, match="max_adapters is 2, and one, two are loaded"):
        subject.engine.load_adapter("three", tmp_path / "three")
    (tmp_path / "three" / "adapter_model.safetensors").unlink()
    with pytest.raises(EngineError, match="'two' was refused by every server"):
        subject.engine.load_adapter("two", tmp_path / "three")
    assert held(address) == ["one.1", "two.2"]
    with pytest.raises(ConfigError, match=r"no adapter_config\.json"):
        subject.engine.load_adapter("two", tmp_path)
    with pytest.raises(ConfigError, match="adapter name"):
        subject.engine.load_adapter("a/b", tmp_path / "one")
    with pytest.raises(FaultError, match="no adapter 'four' is loaded on the servers, only one, two"):
        subject.generate(asking(subject, "four"))
    with pytest.raises(ConfigError, match="no adapter 'four' is loaded"):
        subject.engine.unload_adapter("four")
    subject.engine.load_adapter("two", tmp_path / "one")
    assert held(address) == ["one.1", "two.4"]


@pytest.mark.exhaustive
def test_a_server_that_kept_its_adapters_takes_them_again(served, tmp_path):
    subject, address = served
    merged = write_adapter(tmp_path / "judge", subject.model, 0)
    subject.engine.load_adapter("judge", tmp_path / "judge")
    server = ServerInstance(name="server-0", incarnation=engines.RunningServer.incarnation, url=address)
    subject.engine.server_down(server, "it did not answer")
    subject.engine.server_up(server)
    (response,) = subject.generate(asking(subject, "judge"))
    assert subject.deviation(response, model=merged) < EXACT
    subject.engine.close()
    assert held(address) == []


@pytest.mark.exhaustive
def test_what_a_run_that_died_has_left_is_unloaded_by_the_next_one_that_has_the_server(served, tmp_path):
    subject, address = served
    api = subject.kind
    write_adapter(tmp_path / "judge", subject.model, 0)
    path = {"vllm": "/v1/load_lora_adapter", "sglang": "/load_lora_adapter"}[api]
    for name in ("judge.1.0123abcd", "by-hand", "judge.2"):
        body = json.dumps({"lora_name": name, "lora_path": str(tmp_path / "judge")}).encode()
        asked = urllib.request.Request(f"{address}{path}", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(asked, timeout=60).close()
    after = engines.with_servers(
        api, None, subject.model, tmp_path / "served", pool=engines.RunningServer(address), max_adapters=2
    )
    try:
        after.wait_ready()
        assert held(address) == ["", "judge"], "those that somebody else has loaded stay"
        other = write_adapter(tmp_path / "other", subject.model, 1)
        after.load_adapter("judge", tmp_path / "other")
        following = engines.Subject(after, subject.model, subject.kind)
        (response,) = following.generate(asking(following, "judge"))
        assert following.deviation(response, model=other) < EXACT
    finally:
        after.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("served", EVERYWHERE[:2], indirect=True)
def test_a_server_joins_while_generations_keep_an_adapter_that_is_to_leave(served, tmp_path, fork_server):
    subject, address = served
    api = subject.kind
    merged = write_adapter(tmp_path / "judge", subject.model, 0)
    subject.engine.load_adapter("judge", tmp_path / "judge")

    async def main(other):
        with engines.answers_held(tmp_path / "served"):
            running = asyncio.create_task(subject.engine.agenerate(asking(subject, "judge", new=400)))
            while subject.engine.stats()["generated_tokens"] < 8:
                await asyncio.sleep(0.005)
            leaving = asyncio.create_task(asyncio.to_thread(subject.engine.unload_adapter, "judge"))
            while subject.engine.adapters:
                await asyncio.sleep(0.005)
            second = ServerInstance(name="server-1", incarnation=engines.RunningServer.incarnation, url=other)
            await asyncio.to_thread(subject.engine.server_up, second)
            assert subject.engine.stats()["servers"] == 2
            assert not leaving.done()
            assert held(other) == ["judge.1"], "a generation may still have to go on there"
        response = await running
        await leaving
        return response

    with engines.forked_double(fork_server, api, tmp_path / "served", subject.model) as other:
        assert eventually(lambda: is_healthy(other, 1.0))
        response = asyncio.run(main(other))
        assert subject.deviation(response, model=merged) < EXACT
        assert held(address) == held(other) == []


def test_engines_without_room_for_adapters_say_so(tmp_path):
    model = engines.build_model()
    engine = engines.embedded(model, tmp_path)
    try:
        subject = engines.Subject(engine, model, "embedded")
        with pytest.raises(ConfigError, match="computes with its weights alone"):
            subject.generate(asking(subject, "one"))
    finally:
        engine.close()
    with pytest.raises(ConfigError, match="drop adapters"):
        ServerEngineConfig(max_adapters=1, sleep_level=2)


@pytest.mark.parametrize("program", ["vllm", "sglang"])
def test_servers_are_started_with_room_for_adapters_and_for_what_they_replace(program, tmp_path):
    servers = ServerEngineConfig(max_adapters=3, max_adapter_rank=8)
    more = {"folder": tmp_path, "model_config": engines.build_model().args.to_hf_config(), "context": 64}
    if program == "vllm":
        made = prepare_vllm(VLLMConfig(python=sys.executable), servers, tokenizer=None, on_cpu=True, **more)
        options, slots = ["--enable-lora", "--max-loras", "--max-lora-rank"], "--max-loras"
    else:
        made = prepare_sglang(SGLangConfig(python=sys.executable), servers, on_cpu=True, **more)
        options, slots = ["--enable-lora", "--max-loaded-loras", "--max-lora-rank"], "--max-loaded-loras"
    words, variables = made(0, 1234)
    assert set(options) <= set(words)
    assert (words[words.index(slots) + 1], words[words.index("--max-lora-rank") + 1]) == ("6", "8")
    assert variables.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1") == "1"
