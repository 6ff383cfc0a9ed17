"""Servers that are sent only what changed: the tokens are those of the new weights, and a server that cannot go on from
the version before is sent all of it."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from areal.engine.vllm.adapter import VLLMAdapter
from areal.infra.supervisor.process import free_port
from areal.infra.weights.files import FileCarrier

engines = sys.modules["contract_engines"]
EXACT = 2e-5
pytestmark = pytest.mark.timeout(300)
TRAINED = "layers.1.mlp"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_vllm_itself_reloads_what_changed_and_computes_with_all_of_it(tmp_path, tied):
    """Its layers are fused and, on CPUs, packed: what is reloaded in part has to be whole afterwards."""
    if not engines.VLLM_PYTHON.is_file():
        pytest.skip("no vLLM here: bash scripts/setup_vllm.sh")
    model = engines.build_model(tie_word_embeddings=tied)
    settings = engines.ServerEngineConfig(dtype="float32", max_concurrent=16)
    engine = engines.with_servers(
        "vllm",
        engines.vllm_command(tmp_path, model, settings),
        model,
        tmp_path,
        carrier=FileCarrier.in_memory(str(tmp_path), deltas=True),
        max_concurrent=16,
    )
    try:
        engine.wait_ready()
        subject = engines.Subject(engine, model, "vllm")
        for seed, trained in enumerate(
            ("layers.1.mlp", "q_proj", "embed", "norm", "layers", "nothing", "lm_head", "v_proj")
        ):
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if trained in name:
                        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
            version = subject.publish()
            assert engine.stats()["skipped_bytes"] > 0, trained
            responses = subject.generate(*(subject.request(3 + index, new=16, seed=index) for index in range(3)))
            assert all(set(response.output_versions) == {version} for response in responses)
            assert all(subject.deviation(response) < 5e-5 for response in responses), trained
        assert engine.stats()["evictions"] == engine.stats()["weight_failures"] == 0
    finally:
        engine.close()


class Site:
    """Two addresses of doubles, and an engine that sends them what changed."""

    def __init__(self, folder, fork_server, **options):
        self.model, self.fork_server, self.folder = engines.build_model(), fork_server, folder
        engines.write_config(folder / "model", self.model)
        self.ports, self.processes = [free_port(), free_port()], []
        addresses = tuple(f"http://127.0.0.1:{port}" for port in self.ports)
        self.engine = engines.with_servers(
            "vllm",
            None,
            self.model,
            folder,
            pool=engines.given_pool(addresses, "trainer"),
            adapter=VLLMAdapter(owner="trainer"),
            carrier=FileCarrier.in_memory(str(folder), deltas=True),
            addresses=addresses,
            affinity_tokens=0,
            **options,
        )
        self.subject = engines.Subject(self.engine, self.model, "vllm double")
        self.whole = sum(value.nbytes for name, value in self.model.named_parameters())
        self.trained = sum(value.nbytes for name, value in self.model.named_parameters() if TRAINED in name)

    def start(self, index):
        command = engines.double_command("vllm", self.folder / "model")(index, self.ports[index])
        self.processes.append(self.fork_server.start(command.arguments[1], command.arguments[2:]))
        self.engine.wait_ready(servers=index + 1)

    def update(self, seed):
        """Train one layer; returns (bytes that were sent, bytes that servers had)."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if TRAINED in name:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        self.subject.publish()
        stats = self.engine.stats()
        return stats["sent_bytes"], stats["skipped_bytes"]

    def exact(self):
        """The names of the servers that answered, each exactly with the present weights."""
        requests = [self.subject.request(3 + index, new=24, seed=index) for index in range(8)]
        responses = self.subject.generate(*requests)
        assert all(set(response.output_versions) == {self.engine.version} for response in responses)
        assert all(self.subject.deviation(response) < EXACT for response in responses)
        return {response.metadata["server"] for response in responses}


@pytest.fixture
def site(tmp_path, fork_server):
    """Returns a function that builds an engine without servers yet."""
    with contextlib.ExitStack() as stack:

        def build(**options):
            site = Site(tmp_path, fork_server, **options)
            stack.callback(lambda: [process.kill() for process in site.processes])
            stack.callback(site.engine.close)
            return site

        yield build


@pytest.mark.exhaustive
def test_what_is_frozen_is_sent_once_to_each_server_whenever_it_comes(site):
    site = site()
    site.start(0)
    stats = site.engine.stats()
    assert (stats["sent_bytes"], stats["skipped_bytes"]) == (site.whole, 0)
    assert 0 < site.trained < site.whole / 3
    assert site.update(1) == (site.trained, site.whole - site.trained)
    assert site.exact() == {"vllm-0"}
    site.start(1)
    assert site.engine.stats()["sent_bytes"] == site.whole
    assert site.update(2) == (2 * site.trained, 2 * (site.whole - site.trained))
    assert site.exact() == {"vllm-0", "vllm-1"}
    assert site.engine.stats()["evictions"] == 0


@pytest.mark.exhaustive
def test_a_server_that_does_not_take_what_changed_is_sent_everything(site, monkeypatch, caplog):
    site = site()
    site.start(0)
    stage = VLLMAdapter.stage

    async def forgetful(self, client, url, published, route, **options):
        if published.manifest.since:
            raise engines.ServerRefusedError("it keeps another version")
        return await stage(self, client, url, published, route, **options)

    with monkeypatch.context() as patched:
        patched.setattr(VLLMAdapter, "stage", forgetful)
        assert site.update(1) == (site.whole, 0)
    assert "gets the whole of version 1: it keeps another version" in caplog.text
    assert site.exact() == {"vllm-0"}
    assert site.update(2) == (site.trained, site.whole - site.trained)
    assert site.exact() == {"vllm-0"}
    stats = site.engine.stats()
    assert (stats["evictions"], stats["weight_failures"]) == (0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_a_server_that_slept_and_dropped_its_weights_is_sent_everything(site, level):
    site = site(sleep_level=level)
    site.start(0)
    site.engine.sleep()
    expected = (site.trained, site.whole - site.trained) if level == 1 else (site.whole, 0)
    assert site.update(1) == expected
    assert site.exact() == {"vllm-0"}
