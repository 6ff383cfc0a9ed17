"""A broadcast of weights that one server does not take part in: the others have the version within seconds."""

from __future__ import annotations

import contextlib
import sys
import time

import pytest

engines = sys.modules["contract_engines"]


@pytest.mark.exhaustive
def test_a_server_that_refuses_a_broadcast_holds_up_nobody(tmp_path, fork_server, caplog):
    model = engines.build_model()
    with contextlib.ExitStack() as resources:
        addresses = [
            resources.enter_context(engines.forked_double(fork_server, "vllm", tmp_path / name, model, fault=name))
            for name in ("", "refuse")
        ]
        engine = engines.with_servers(
            "vllm", None, model, tmp_path, pool=engines.given_pool(addresses, "one", max_restarts=0),
            adapter=engines.VLLMAdapter(owner="one"), addresses=tuple(addresses), carrier=engines.gloo_carrier(),
        )  # fmt: skip
        resources.callback(engine.close)
        engine.wait_ready()
        subject, begun = engines.Subject(engine, model, "given"), time.monotonic()
        subject.change_weights(seed=1)
        assert subject.publish() == 1
        assert time.monotonic() - begun < 30  # of a timeout of 60
        (response,) = subject.generate(subject.request(new=8))
        assert response.output_versions == [1] * 8
        assert subject.deviation(response) < 2e-5
        assert engine.stats()["evictions"] == 1
    assert "there is no memory for another version" in caplog.text
