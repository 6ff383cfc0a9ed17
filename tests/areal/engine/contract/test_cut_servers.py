"""A server that cannot be reached for a while, on a host of its own: what it was doing goes on, or is done again, and
tokens are right either way.

Nothing is closed when a cable is cut: both sides wait for packets that do not come.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from two_hosts import two_hosts

engines = sys.modules["contract_engines"]
HERE = Path(__file__).parent
PORT = "8123"
EXACT = 2e-5
CLIENT = """
import asyncio, importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("contract_engines", sys.argv[1])
engines = importlib.util.module_from_spec(spec)
sys.modules["contract_engines"] = engines
spec.loader.exec_module(engines)
from areal.engine.vllm.adapter import VLLMAdapter
folder, url, options = Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
model = engines.build_model()
pool = engines.given_pool((url,), "one", poll_seconds=0.2, health_timeout_seconds=options["stall_seconds"] / 2)
engine = engines.with_servers("vllm", None, model, folder, pool=pool, adapter=VLLMAdapter(owner="one"),
                              addresses=(url,), **options)
subject = engines.Subject(engine, model, "given")
engine.wait_ready()

async def main():
    tasks = [asyncio.create_task(engine.agenerate(subject.request(4, 5, new=480, seed=seed))) for seed in range(8)]
    while engine.stats()["generated_tokens"] < 64:
        await asyncio.sleep(0.005)
    print("sampling", flush=True)
    return await asyncio.wait_for(asyncio.gather(*tasks), 120)

found = asyncio.run(main())
subject.change_weights(seed=1)
subject.publish()
(after,) = subject.generate(subject.request(7, new=8))
print(json.dumps({
    "lengths": [len(one.output_tokens) for one in found],
    "deviation": max(subject.deviation(one, model=subject.old_models[0]) for one in found),
    "after": [after.output_versions, subject.deviation(after)],
    "stats": dict(engine.stats()),
}), flush=True)
engine.close()
"""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


@pytest.mark.fault(
    row=6,
    injected="the cable to a server's host is cut while it samples, shorter and longer than servers.stall_seconds",
    seen="the same server goes on, or it is evicted and taken in again; all tokens are of the weights they say",
)
@pytest.mark.parametrize(("cut", "stall"), [(3.0, 30.0), (8.0, 2.0)], ids=["short", "long"])
def test_requests_of_a_server_that_was_cut_off_are_answered_in_full(tmp_path, cut, stall):
    engines.write_config(tmp_path / "model", engines.build_model())
    (tmp_path / "client").mkdir()
    with two_hosts() as hosts:
        url = f"http://{hosts.addresses[1]}:{PORT}"
        served = [sys.executable, HERE / "double.py", "vllm", tmp_path / "model", PORT, "", hosts.addresses[1]]
        options = json.dumps({"stall_seconds": stall, "control_seconds": 30.0, "wait_seconds": 60.0})
        asked = [sys.executable, "-c", CLIENT, HERE / "engines.py", tmp_path / "client", url, options]
        with subprocess.Popen(hosts.command(1, *served)) as server:
            try:
                client = subprocess.Popen(hosts.command(0, *asked), stdout=subprocess.PIPE, text=True)
                assert client.stdout.readline() == "sampling\n"
                with hosts.cut():
                    time.sleep(cut)
                    assert client.poll() is None, "it was done before the cut"
                output, _ = client.communicate(timeout=200)
            finally:
                client.kill()
                server.kill()
    found = json.loads(output)
    assert found["lengths"] == [480] * 8
    assert found["deviation"] < EXACT
    versions, deviation = found["after"]
    assert set(versions) == {1}
    assert deviation < EXACT
    starts = found["stats"]["starts"]
    assert (starts, found["stats"]["evictions"]) == ((1, 0) if stall > cut else (2, 1))
