"""Servers that are sent adapters only: the same promises as for whole weights, over the same path.

With doubles of vLLM and SGLang, and with vLLM itself where it is installed; there also on a model that has no family of
ours, whose layers are stored the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from areal import models
from areal.api import WeightUpdateMeta
from areal.engine.checks import RequestLimits
from areal.engine.config import LoraConfig, ServerEngineConfig, TrainEngineConfig, VLLMConfig
from areal.engine.hf import loading as hf_loading
from areal.engine.hf.on_disk import AdaptersOnDisk, base_tensors, merged_tensors, transposed_layers
from areal.engine.server.client import is_healthy
from areal.engine.server.engine import ServerEngine
from areal.engine.server.publishing import AdapterBase
from areal.engine.server.updates import ProbeReference
from areal.engine.sglang.adapter import SGLangAdapter
from areal.engine.train.engine import TrainingEngine
from areal.engine.vllm.adapter import VLLMAdapter
from areal.engine.vllm.launch import prepare
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand
from areal.infra.weights.files import FileCarrier

engines = sys.modules["contract_engines"]
EXACT = 5e-5
pytestmark = pytest.mark.timeout(400)

QWEN2 = {
    **engines.TINY, "model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
del QWEN2["head_dim"]
GPT2 = {
    "model_type": "gpt2", "vocab_size": 20, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": engines.CONTEXT,
    "initializer_range": 0.25, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


class Adapted:
    """A model with adapters, and an engine over one server that is sent nothing else after the first version."""

    def __init__(self, folder, server, *, kind, config, library, targets):
        lora = LoraConfig(rank=4, alpha=16, targets=targets)
        self.folder, self._config, self._library = folder, config, library
        self.actor = TrainingEngine(
            library.from_config(config, seed=1), config=TrainEngineConfig(lora=lora), total_steps=4
        )
        adapters = AdaptersOnDisk.of(self.actor.model)
        self.resources = contextlib.ExitStack()
        api = "sglang" if "sglang" in kind else "vllm"
        if kind in ("double", "sglang double"):
            double = engines.forked_double(server, api, folder, self.actor.model)
            self.pool = engines.RunningServer(self.resources.enter_context(double))
        else:
            self.pool = LocalSupervisor(
                ["vllm-0"],
                self._command(kind, config, library),
                health=is_healthy,
                config=SupervisorConfig(poll_seconds=0.1, restart_pause_seconds=0.1, startup_seconds=240.0),
                log_folder=folder / "logs",
            )
        self.engine = ServerEngine(
            {"vllm": VLLMAdapter, "sglang": SGLangAdapter}[api](),
            pool=self.pool,
            carrier=FileCarrier.in_memory(str(folder)),
            config=ServerEngineConfig(
                dtype="float32", max_seq_len=engines.CONTEXT, stream_interval=4, probe_tokens=8, wait_seconds=240.0,
                max_concurrent=16,
            ),
            limits=RequestLimits(context=engines.CONTEXT, vocab_size=20, eos_token_id=None, tokenizer=None),
            to_hf=adapters.factors,
            weights=adapters.factors(self.actor.weights()),
            base=AdapterBase(tensors=base_tensors(self.actor.model), changes=adapters.changes),
            reference=ProbeReference(
                score=lambda tokens, _: self._logprobs(self.model(), tokens)[:-1]
                .gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
                .tolist()
            ),
        )  # fmt: skip
        self.models = {0: self.model()}

    def _command(self, kind, config, library):
        if kind == "supervised double":
            return engines.double_command("vllm", engines.write_config(self.folder / "model", self.actor.model))
        if kind == "sglang":
            settings = ServerEngineConfig(dtype="float32", max_concurrent=16)
            return engines.sglang_command(self.folder, self.actor.model, settings)
        content = {**config, "dtype": "float32"}
        if library is hf_loading:
            inner = self.actor.model.inner
            content = {"architectures": [type(inner).__name__], **inner.config.to_diff_dict(), "dtype": "float32"}
        else:
            content = {**self.actor.model.args.to_hf_config(), "dtype": "float32"}
        command = prepare(
            VLLMConfig(python=str(engines.VLLM_PYTHON)),
            ServerEngineConfig(dtype="float32", max_concurrent=16),
            folder=self.folder,
            model_config=content,
            context=engines.CONTEXT,
            on_cpu=True,
        )
        return lambda index, port: ServerCommand(arguments=command(index, port)[0], environment=command(index, port)[1])

    def model(self):
        """What the servers should compute with now."""
        adapted, lora = self.actor.model, self.actor.config.lora
        merged = self._library.from_config(self._config, seed=1)
        tensors = merged_tensors(adapted.state_dict().items(), lora, transposed=transposed_layers(adapted))
        merged.load_state_dict(dict(tensors))
        return merged

    def update(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.actor.weights().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        version = self.engine.version + 1
        self.models[version] = self.model()
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=self.actor.weights()))
        return version

    def generate(self, count=3, new=24):
        async def main():
            requests = [engines.Subject.request(3 + index, new=new, seed=index) for index in range(count)]
            return await asyncio.wait_for(asyncio.gather(*map(self.engine.agenerate, requests)), 250)

        return asyncio.run(main())

    def deviation(self, response, version, part=slice(None)):
        """Largest difference of recorded log-probabilities from a forward of the merged model of a version."""
        tokens = [*response.input_tokens, *response.output_tokens]
        logp = self._logprobs(self.models[version], tokens)[len(response.input_tokens) - 1 : -1]
        expected = logp.gather(1, torch.tensor(response.output_tokens)[:, None])[:, 0]
        return float((expected - torch.tensor(response.output_logprobs))[part].abs().max())

    def _logprobs(self, model, tokens):
        return engines.full_forward(model, tokens)


CASES = {
    # Part of a fused layer with biases, and a layer that stands alone.
    "double": {"kind": "double", "config": QWEN2, "library": models, "targets": ["q_proj", "down_proj"]},
    "sglang double": {"kind": "sglang double", "config": QWEN2, "library": models, "targets": ["q_proj", "down_proj"]},
    "supervised double": {"kind": "supervised double", "config": QWEN2, "library": models, "targets": ["q_proj"]},
    "sglang": {"kind": "sglang", "config": QWEN2, "library": models, "targets": ["q_proj", "down_proj"]},
    "vllm": {"kind": "vllm", "config": QWEN2, "library": models, "targets": ["q_proj", "down_proj"]},
    "vllm, model of transformers": {"kind": "vllm", "config": GPT2, "library": hf_loading, "targets": []},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            name, marks=[] if name in ("double", "sglang double") else [pytest.mark.slow, pytest.mark.exhaustive]
        )
        for name in CASES
        if name != "supervised double"
    ],
)
def adapted(request, tmp_path_factory, fork_server):
    """One server for all tests of a case, for its start takes seconds."""
    case = CASES[request.param]
    if case["kind"] == "vllm" and not engines.VLLM_PYTHON.is_file():
        pytest.skip("no vLLM here: bash scripts/setup_vllm.sh")
    if case["kind"] == "sglang" and not engines.SGLANG_PYTHON.is_file():
        pytest.skip("no SGLang here: bash scripts/setup_sglang.sh")
    subject = Adapted(tmp_path_factory.mktemp("adapted"), fork_server, **case)
    try:
        subject.engine.wait_ready()
        yield subject
    finally:
        subject.engine.close()
        subject.resources.close()


@pytest.mark.sample(1)
def test_updates_are_as_small_as_the_adapters_and_exact(adapted):
    for seed in (1, 2):
        version = adapted.update(seed)
        for response in adapted.generate():
            assert set(response.output_versions) == {version}
            assert adapted.deviation(response, version) < EXACT
            assert adapted.deviation(response, version - 1) > 1e-2
    stats = adapted.engine.stats()
    assert stats["published_bytes"] == sum(tensor.numel() * 4 for tensor in adapted.actor.weights().values())
    assert stats["published_bytes"] < stats["base_bytes"] / 3
    assert stats["probe_abs_max"] < EXACT
    assert stats["probes"] == 3


@pytest.mark.exhaustive
def test_requests_live_through_an_update_of_adapters(adapted):
    async def main():
        requests = [engines.Subject.request(3 + index, new=480, seed=index) for index in range(6)]
        before = adapted.engine.stats()["generated_tokens"]
        with engines.answers_held(adapted.folder):
            tasks = [asyncio.create_task(adapted.engine.agenerate(request)) for request in requests]
            while adapted.engine.stats()["generated_tokens"] < before + 10:
                await asyncio.sleep(0.01)
            version = await asyncio.to_thread(adapted.update, 3)
        return version, await asyncio.wait_for(asyncio.gather(*tasks), 90)

    version, responses = asyncio.run(main())
    # A server may be done with some before the update comes.
    mixed = [response for response in responses if set(response.output_versions) == {version - 1, version}]
    assert mixed
    for response in mixed:
        cut = response.output_versions.index(version)
        assert adapted.deviation(response, version - 1, slice(None, cut)) < EXACT
        assert adapted.deviation(response, version, slice(cut, None)) < EXACT


@pytest.mark.exhaustive
def test_a_whole_checkpoint_in_between_and_adapters_again(adapted, tmp_path):
    whole = adapted.model()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.mul_(0.9)
    whole.save_pretrained(tmp_path / "checkpoint")
    version = adapted.engine.version + 1
    adapted.models[version] = whole
    adapted.engine.update_weights(WeightUpdateMeta(kind="disk", version=version, path=tmp_path / "checkpoint"))
    for _ in range(2):
        for response in adapted.generate(2):
            assert adapted.deviation(response, version) < EXACT
        version = adapted.update(4)


@pytest.mark.exhaustive  # a server that comes later: tests/areal/engine/server/test_adapters.py
@pytest.mark.parametrize("adapted", [name for name in CASES if "vllm" in name or "supervised" in name], indirect=True)
def test_a_server_that_was_killed_gets_the_base_and_the_present_adapters(adapted):
    version = adapted.engine.version
    starts = adapted.engine.stats()["starts"]
    guard = adapted.pool.pid("vllm-0")
    for child in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if int(child.read_text().rpartition(")")[2].split()[1]) == guard:
                os.kill(int(child.parent.name), signal.SIGKILL)
                break
    for response in adapted.generate(2):
        assert set(response.output_versions) == {version}
        assert adapted.deviation(response, version) < EXACT
    assert adapted.engine.stats()["starts"] == starts + 1
    version = adapted.update(5)
    for response in adapted.generate(2):
        assert adapted.deviation(response, version) < EXACT
